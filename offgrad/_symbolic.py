"""``torch.sym_*``: arithmetic on sizes, which are plain numbers here."""

import math
from typing import Any, NoReturn


class _Symbolic:
    """A size that a tracer does not know yet. Nothing traces here, so no number is one."""

    def __new__(cls, *_: Any) -> NoReturn:
        """Refuse: sizes are Python numbers."""
        raise TypeError(
            f"{cls.__name__} stands for a size that a tracer does not know; sizes are plain "
            "numbers here"
        )


class SymInt(_Symbolic):
    """A symbolic integer; ``isinstance(n, SymInt)`` is False for every number."""


class SymFloat(_Symbolic):
    """A symbolic floating point number; ``isinstance(x, SymFloat)`` is False for every number."""


class SymBool(_Symbolic):
    """A symbolic bool; ``isinstance(b, SymBool)`` is False for every bool."""


def sym_float(a: Any) -> float:
    """Return a number as float."""
    return float(a)


def sym_int(a: Any) -> int:
    """Return a number without its fraction."""
    number: int = math.trunc(a)
    return number


def sym_not(a: Any) -> bool:
    """Return the negation."""
    return not a


def sym_sqrt(a: Any) -> float:
    """Return the square root."""
    return math.sqrt(a)


def _chosen(a: Any, b: Any, chosen: Any) -> Any:
    return float(chosen) if isinstance(a, float) or isinstance(b, float) else chosen


def sym_max(a: Any, b: Any) -> Any:
    """Return the larger of two numbers; a float if either is one."""
    return _chosen(a, b, max(a, b))


def sym_min(a: Any, b: Any) -> Any:
    """Return the smaller of two numbers; a float if either is one."""
    return _chosen(a, b, min(a, b))


def sym_ite(b: bool, t: Any, f: Any) -> Any:
    """Return `t` if `b` is true, else `f`.

    Raises:
        AssertionError: unless `b` is a bool, and `t` and `f` are of one type.
    """
    if not isinstance(b, bool) or type(t) is not type(f):
        raise AssertionError(
            f"sym_ite takes a bool and two values of one type, got {b!r}, {t!r} and {f!r}"
        )
    return t if b else f


def sym_sum(*args: Any) -> Any:
    """Return the sum of numbers, or of one list of them."""
    return sum(args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args)


def sym_fresh_size(expr: Any) -> Any:
    """Return a size itself."""
    return expr


def sym_constrain_range(size: Any, *, min: int | None = None, max: int | None = None) -> None:
    """Raise unless a number is from `min` to `max`.

    Raises:
        RuntimeError: if it is not.
    """
    low, high = -math.inf if min is None else min, math.inf if max is None else max
    if not low <= size <= high:
        raise RuntimeError(f"Invalid value range for {size} between [{low}, {high}]")


def sym_constrain_range_for_size(
    size: Any, *, min: int | None = None, max: int | None = None
) -> None:
    """Raise unless a size is from `min`, by default 0, to `max`; see `sym_constrain_range`."""
    if max is not None and max <= 2:
        raise RuntimeError(
            f"sym_constrain_range_for_size: max must be above 2, got {max}; other sizes are known"
        )
    sym_constrain_range(size, min=0 if min is None else min, max=max)
