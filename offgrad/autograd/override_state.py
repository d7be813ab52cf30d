"""Whether calls go to ``__torch_function__``, per thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any


class _State(threading.local):
    """How functions treat arguments with ``__torch_function__`` in this thread.

    Attributes:
        enabled: whether they call it for subclasses of tensors, and for other classes.
        modes: the modes that the program has entered, the innermost last.
        levels: the calls of `vmap` that it is in, the innermost last.
        apply_function: called as ``apply_function(cls, args, kwargs)`` for each call of a Function,
            if there is one; it may return NotImplemented.
        is_batched_pass: whether a backward pass runs for several gradients at once.
        running: the function that `default_torch_function` is calling, if any.
    """

    enabled = True
    modes: tuple[Any, ...] = ()
    levels: tuple[Any, ...] = ()
    apply_function: Any = None
    is_batched_pass = False
    running: Any = None


state = _State()


@contextmanager
def within(levels: tuple[Any, ...], apply_function: Any) -> Iterator[None]:
    """A block in the calls of `vmap` that were running at another time."""
    outer = state.levels, state.apply_function
    state.levels, state.apply_function = levels, apply_function
    try:
        yield
    finally:
        state.levels, state.apply_function = outer


class DisableTorchFunctionSubclass:
    """A block in which functions take tensors of subclasses as plain ones; modes stay."""

    _with_modes = False

    def __enter__(self) -> None:
        self._outer = state.enabled, state.modes
        state.enabled = False
        if self._with_modes:
            state.modes = ()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state.enabled, state.modes = self._outer


class DisableTorchFunction(DisableTorchFunctionSubclass):
    """A block in which functions call no ``__torch_function__``, of classes or modes."""

    _with_modes = True


def disabled_torch_function(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Call `func` as if no argument had ``__torch_function__``.

    A class with this function as its ``__torch_function__`` is taken for a plain tensor.
    """
    with DisableTorchFunction():
        return func(*args, **(kwargs or {}))
