"""Byte counts as text: parsing and formatting."""

import operator
import re

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}IB"] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*")


def parse_nbytes(size: int | str) -> int:
    """Return the number of bytes in `size`.

    Args:
        size: a count of bytes, or text such as ``"512MiB"`` (1024-based; ``"512M"`` is the same)
            or ``"512MB"`` (1000-based).

    Raises:
        ValueError: if the text is not a size, or the size is not positive.
        TypeError: if `size` is neither a str nor an integer.
    """
    if isinstance(size, str):
        match = _PATTERN.fullmatch(size)
        factor = _UNITS.get(match[2].upper()) if match else None
        if match is None or factor is None:
            raise ValueError(
                "a size is a number and a unit, such as '512MiB' (B, KiB, MiB, GiB, TiB; or, of "
                f"1000, KB, MB, GB, TB); got {size!r}"
            )
        nbytes = int(float(match[1]) * factor)
    else:
        try:
            if isinstance(size, bool):
                raise TypeError
            nbytes = operator.index(size)
        except TypeError:
            kind = type(size).__name__
            raise TypeError(f"a size is an int or text such as '1MiB', got {kind}") from None
    if nbytes <= 0:
        raise ValueError(f"a size must be positive, got {size!r}")
    return nbytes


def size_text(nbytes: int) -> str:
    """Return text that `parse_nbytes` reads: ``"512MiB"``, ``"57.3MiB"``.

    It is exact where four digits are enough, else rounded down: a bound stays a bound.
    """
    for power, letter in zip(range(4, 0, -1), "TGMK", strict=True):
        unit = 1024**power
        if nbytes >= 10 * unit or (nbytes >= unit and not nbytes * 10 % unit):
            tenths = nbytes * 10 // unit
            whole, rest = divmod(tenths, 10)
            return f"{whole}.{rest}{letter}iB" if rest else f"{whole}{letter}iB"
    return f"{nbytes}B"


def format_nbytes(nbytes: float) -> str:
    """Return `nbytes` as text: ``"0 B"``, ``"1.5 KiB"``, ``"200.0 MiB"``."""
    if abs(nbytes) < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        nbytes /= 1024
        if abs(nbytes) < 1024:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1024:.1f} TiB"
