"""Options that layers take."""

from dataclasses import dataclass
from typing import Any

_CHUNKING = ("auto", None)
_POLICIES = ("accurate", "balanced", "compact", "auto")
_FACTORY = frozenset(("device", "dtype", "memory_format"))


@dataclass(frozen=True)
class LinearCrossEntropyOptions:
    """How PyTorch's `linear_cross_entropy` splits its work; results here do not depend on it.

    Attributes:
        allow_retain_graph: whether a second backward may follow; here it may.
        batch_chunk_size: how many rows at a time.
        chunking_method: how to choose that: "auto", or "aspect_ratio:" and a number.
        acc_policy: in which dtype gradients add up: "accurate", "balanced", "compact" or "auto".
        acc_dtype: that dtype itself.

    Raises:
        ValueError: for another value.
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: Any = None

    def __post_init__(self) -> None:
        method, size = self.chunking_method, self.batch_chunk_size
        if method not in _CHUNKING and not str(method).startswith("aspect_ratio:"):
            raise ValueError(
                f"invalid chunking_method: {method!r}; it is 'auto', None or 'aspect_ratio:NUMBER'"
            )
        if size is not None and (not isinstance(size, int) or size <= 0):
            raise ValueError(f"batch_chunk_size must be a number of rows, or None; got {size!r}")
        if self.acc_policy not in _POLICIES:
            raise ValueError(
                f"invalid acc_policy: {self.acc_policy!r}; it is one of {', '.join(_POLICIES)}"
            )


def factory_kwargs(kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the keywords among `kwargs` that functions take which make tensors.

    They are ``device``, ``dtype`` and ``memory_format``; further ones come in a dict
    ``factory_kwargs``.

    Raises:
        TypeError: for other keywords, or one that is given twice.
    """
    if kwargs is None:
        return {}
    given = dict(kwargs)
    found = dict(given.pop("factory_kwargs", {}))
    if unknown := (given.keys() | found.keys()) - _FACTORY:
        raise TypeError(f"unexpected kwargs {unknown}; a layer takes {sorted(_FACTORY)}")
    if twice := given.keys() & found.keys():
        raise TypeError(f"{sorted(twice)} is given twice, the second time in factory_kwargs")
    return {**found, **given}
