"""Checks of arguments."""

from __future__ import annotations

import operator


def check_count(name: str, value: object, minimum: int = 0) -> None:
    """Raise unless ``value``, the argument ``name``, is an integer of at least ``minimum``.

    Raises:
        TypeError: it is not an integer; bools are not.
        ValueError: it is less.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is an int, got {type(value).__name__}") from None
    if count < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
