"""The contents of memory at one instant, as rows."""

from typing import Any

from offgrad.profiler.categories import CATEGORIES
from offgrad.profiler.records import Record
from offgrad.profiler.sites import line_of

_MAX_ROWS = 1_000


def contents(records: list[tuple[Record, int]]) -> list[dict[str, Any]]:
    """Return what was alive, in groups of the same kind and origin, largest first.

    Of very many, the smallest are added up by category.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for record, category in records:
        dtype = None if record.dtype is None else record.dtype.name
        key = (
            category, record.op, record.slot, record.module, record.shape, dtype, record.site,
        )  # fmt: skip
        sums = groups.setdefault(key, [0, 0])
        sums[0] += record.nbytes
        sums[1] += 1
    rows = [
        {
            "category": CATEGORIES[category],
            "op": op,
            "slot": slot,
            "module": module,
            "shape": None if shape is None else list(shape),
            "dtype": dtype,
            "nbytes": nbytes,
            "count": count,
            "line": "" if site is None else str(line_of(site)),
        }
        for (category, op, slot, module, shape, dtype, site), (nbytes, count) in groups.items()
    ]
    rows.sort(key=lambda row: -row["nbytes"])
    return rows[:_MAX_ROWS] + _rest(rows[_MAX_ROWS:])


def _rest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each category of the others."""
    sums: dict[str, dict[str, Any]] = {}
    for row in rows:
        rest = sums.setdefault(
            row["category"],
            {**row, "op": "(others)", "slot": "", "module": "", "shape": None, "dtype": None}
            | {"nbytes": 0, "count": 0, "line": ""},
        )
        rest["nbytes"] += row["nbytes"]
        rest["count"] += row["count"]
    return list(sums.values())
