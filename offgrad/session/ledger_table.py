"""The tables of a ledger: which columns, and what they mean."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from offgrad._display import Grid, Part
from offgrad.memory import format_nbytes

if TYPE_CHECKING:
    from offgrad.session.ledger import LedgerRow

_MAX_LINES = 10


class Column(NamedTuple):
    """A column: its cells, and its meaning for the legend.

    Attributes:
        figure: the figure of `LedgerRow`.
        show: returns it as text.
        meaning: for the legend.
    """

    figure: str
    show: Callable[[float], str]
    meaning: str

    def cell(self, row: "LedgerRow") -> str:
        """Return the text of a row."""
        figure = getattr(row, self.figure)
        return self.show(figure) if figure else "-"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s"


_STORE = "where the policy sends them"
_HITS = Column("hits", str, "uses that found them in memory")
_STALL = Column("stall_seconds", _seconds, "time that computing waited for stores")

SAVED: Mapping[str, Column] = {
    "saves": Column("saves", str, "tensors saved for backward"),
    "saved": Column("logical_nbytes", format_nbytes, "their bytes"),
    "kept": Column("kept_nbytes", format_nbytes, "bytes that the policy kept in memory"),
    "stored": Column("stored_nbytes", format_nbytes, "bytes taken in stores"),
    "read": Column("read_nbytes", format_nbytes, "bytes read back"),
    "recomputed": Column("recomputed_nbytes", format_nbytes, "bytes computed again"),
    "hits": _HITS,
    "stall": _STALL,
}
"""The columns of a session's ledger."""

PAGED: Mapping[str, Column] = {
    "pages": Column("saves", str, "tensors that are paged"),
    "size": Column("logical_nbytes", format_nbytes, "their bytes"),
    "writes": Column("writes", str, "how often they were written"),
    "stored": Column("stored_nbytes", format_nbytes, "bytes of these writes"),
    "reads": Column("reads", str, "how often they were read"),
    "read": Column("read_nbytes", format_nbytes, "bytes of these reads"),
    "hits": _HITS,
    "stall": _STALL,
}
"""The columns of a ledger of pages."""


def grids(
    groups: Mapping[str, Mapping[str, "LedgerRow"]], columns: Mapping[str, Column]
) -> list[Part]:
    """Return a table for each grouping of the rows, by its title, and the legend.

    A column without any figure is left out.
    """
    every = [row for group in groups.values() for row in group.values()]
    if not every:
        return []
    first = next(iter(columns))
    used = {
        name: column
        for name, column in columns.items()
        if name == first or any(getattr(row, column.figure) for row in every)
    }
    meanings = {"store": _STORE} | {name: column.meaning for name, column in used.items()}
    legend = "; ".join(f"{name}: {meaning}" for name, meaning in meanings.items())
    return [*(_grid(title, group, used) for title, group in groups.items()), legend]


def _grid(title: str, group: Mapping[str, "LedgerRow"], columns: Mapping[str, Column]) -> Grid:
    """Return one table, most bytes first; the smallest groups share the last line."""
    ordered = sorted(group.items(), key=lambda each: -each[1].logical_nbytes)
    shown, rest = ordered[:_MAX_LINES], ordered[_MAX_LINES:]
    if rest:
        shown.append((f"({len(rest)} more)", _sum([row for _, row in rest])))
    cells = [
        [name, row.store or "-", *(column.cell(row) for column in columns.values())]
        for name, row in shown
    ]
    return Grid([title, "store", *columns], cells, texts=2)


def _sum(rows: Sequence["LedgerRow"]) -> "LedgerRow":
    total = type(rows[0])()
    for row in rows:
        total.add(row)
    return total
