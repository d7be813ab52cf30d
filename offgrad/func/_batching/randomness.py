"""Rules of functions that draw random numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from offgrad.func._batching import elementwise
from offgrad.func._batching.batched import Level
from offgrad.func._batching.dispatch import innermost, register, stacked
from offgrad.ops._random import replay

_ELEMENTWISE = "rand_like randn_like bernoulli dropout alpha_dropout poisson"
_IN_PLACE = """
bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_
"""


def drawing(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function that draws a number for each element: all at once, unless samples share them."""
    if level.randomness == "same":
        return NotImplemented
    rule = elementwise.in_place if func.__name__.endswith("_") else elementwise.elementwise
    return rule(func, level, args, kwargs)


class DifferentNumbers:
    """A mode in which functions that draw numbers without a batched tensor do so for each sample.

    Args:
        level: the call of `vmap`.

    Attributes:
        count: how many draws were made for samples.
    """

    def __init__(self, level: Level) -> None:
        self._level = level
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A block whose draws are made for each sample."""
        with replay.recording() as draws:
            yield
        self.count += len(draws)

    def __torch_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call the function; for each sample, if it draws numbers for none of them."""
        options, level = kwargs or {}, self._level
        found = innermost(args, options)
        if found is not None and found.depth >= level.depth:
            return func(*args, **options)
        name = getattr(func, "__name__", "")
        if name in _IN_PLACE.split():
            raise RuntimeError(
                f"vmap: Cannot ask for different inplace randomness on an unbatched tensor: {name} "
                "would write the numbers of all samples into one tensor; change one of a batched "
                "tensor, as of x.new_empty(), or call the function that returns a new one"
            )
        with replay.recording() as draws:
            first = func(*args, **options)
            if not draws:
                return first
            others = [func(*args, **options) for _ in range(level.size - 1)]
        self.count += len(draws)
        return stacked([first, *others], level)


def install() -> None:
    """Register the rules."""
    register(drawing, *_ELEMENTWISE.split(), *_IN_PLACE.split())
