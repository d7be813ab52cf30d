"""The operations of a profile summed up by name, as `key_averages` of PyTorch's profiler."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from offgrad._display import Grid, as_rich, as_text
from offgrad.memory import format_nbytes

_MICROSECONDS = 1e6
_KINDS = frozenset({"op", "mark"})


@dataclass(frozen=True)
class Average:
    """Operations of one name; times in microseconds.

    Attributes:
        key: the name.
        count: how often it ran.
        cpu_time_total: what ran inside included.
        self_cpu_time_total: without it.
        cpu_memory_usage: the bytes of the results.
    """

    key: str
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_memory_usage: int

    @property
    def cpu_time(self) -> float:
        """The mean time of a call."""
        return self.cpu_time_total / self.count

    @property
    def self_cpu_memory_usage(self) -> int:
        """The bytes of the results."""
        return self.cpu_memory_usage

    def __getattr__(self, name: str) -> float:
        """Return 0 for the times and memory of devices, which do not exist."""
        if not name.startswith("_") and any(each in name for each in ("device_", "cuda_", "xpu_")):
            return 0
        names = ", ".join(each.name for each in fields(self))
        raise AttributeError(f"an average has no attribute {name!r}; it has {names}")


class Averages(list[Average]):
    """The averages, those of the longest self time first."""

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
    ) -> str:
        """Return a table as text.

        Args:
            sort_by: an attribute of `Average`, largest first; self time by default.
            row_limit: the number of rows; -1 for all.
            max_src_column_width: accepted, as the other widths.
            max_name_column_width: accepted.
            max_shapes_column_width: accepted.
            header: the title.
            top_level_events_only: accepted.

        Raises:
            AttributeError: if there is no such attribute.
        """
        rows = list(self)
        if sort_by is not None:
            rows.sort(key=lambda row: -getattr(row, sort_by))
        whole = sum(row.self_cpu_time_total for row in self) or 1.0
        grid = Grid(
            ("operation", "self %", "self", "total %", "total", "mean", "memory", "calls"),
            [
                (
                    row.key,
                    f"{100 * row.self_cpu_time_total / whole:.1f}",
                    _time(row.self_cpu_time_total),
                    f"{100 * row.cpu_time_total / whole:.1f}",
                    _time(row.cpu_time_total),
                    _time(row.cpu_time),
                    format_nbytes(row.cpu_memory_usage),
                    str(row.count),
                )
                for row in (rows if row_limit < 0 else rows[:row_limit])
            ],
        )
        title = [] if header is None else [header]
        text = as_text(as_rich([*title, grid]))
        return f"{text}\n\nself CPU time total: {_time(whole)}\n"

    def total_average(self) -> Average:
        """Return the sum of all."""
        return Average(
            "Total",
            sum(row.count for row in self),
            sum(row.self_cpu_time_total for row in self),
            sum(row.self_cpu_time_total for row in self),
            sum(row.cpu_memory_usage for row in self),
        )


def averages(
    spans: Iterable[tuple[str, str, str, float, float, int]], began: float, ended: float
) -> Averages:
    """Return the averages of the operations, and marked blocks, between two times."""
    chosen = [each for each in spans if each[1] in _KINDS and began <= each[3] <= each[4] <= ended]
    # By thread; of those that begin together the longest first, which holds the others.
    chosen.sort(key=lambda span: (span[2], span[3], -span[4]))
    sums: dict[str, list[float]] = {}
    outer: list[tuple[str, str, float]] = []  # thread, name, end
    for name, kind, thread, start, end, nbytes in chosen:
        while outer and (outer[-1][0] != thread or outer[-1][2] < end):
            outer.pop()
        seconds = end - start
        if outer:
            sums[outer[-1][1]][2] -= seconds
        row = sums.setdefault(name, [0, 0.0, 0.0, 0])
        row[0] += 1
        row[1] += 0.0 if any(each[1] == name for each in outer) else seconds
        row[2] += seconds
        row[3] += nbytes if kind == "op" else 0
        outer.append((thread, name, end))
    found = [
        Average(name, int(count), total * _MICROSECONDS, max(0.0, own) * _MICROSECONDS, int(nbytes))
        for name, (count, total, own, nbytes) in sums.items()
    ]
    return Averages(sorted(found, key=lambda row: -row.self_cpu_time_total))


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3f} s"
    return f"{microseconds / 1e3:.3f} ms" if microseconds >= 1e3 else f"{microseconds:.1f} us"
