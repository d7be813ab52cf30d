"""Estimate: what a step will need, as figures and as a table."""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from offgrad._display import Grid, Part, as_html, as_rich, as_text
from offgrad.memory import format_nbytes

if TYPE_CHECKING:
    from rich.console import RenderableType

_MAX_LINES = 8


class StoreBytes(NamedTuple):
    """The bytes that one step moves to a store and back, encoded.

    Attributes:
        written_nbytes: put into the store.
        read_nbytes: got from it.
    """

    written_nbytes: int
    read_nbytes: int


@dataclass(frozen=True, repr=False)
class Estimate:
    """What one training step will need, from `offgrad.estimate`.

    Attributes:
        policy: of the step, as text.
        peak_nbytes: the most bytes of tensors at once, as `offgrad.memory.max_allocated` counts.
        phase: ``"forward"``, ``"backward"`` or ``"optimizer"``: when that is.
        categories: the bytes at that moment: parameters (and buffers), gradients, optimizer state,
            saved for backward, prefetched, in flight, inputs, temporary.
        phases: the peak of each phase.
        saved: bytes saved for backward at that moment, by the operation and slot that saved them.
        stores: bytes written and read by each store.
        bandwidth: of the drive, in bytes a second, that `stall_seconds` supposes.
        free_bandwidth: the least bandwidth at which waiting for the drive takes 1% of the step at
            most; None if nothing goes to a drive.
        compute_seconds: of the step, at the best rates that this machine showed.
        slow_compute_seconds: the same at the worst rates.
        stall_seconds: for which computing waits for the drive.
        products: multiplications and additions in products of matrices.
        notes: what the figures do not know.
        bandwidth_source: ``"given"``; ``"measured"``: remembered of this machine's drive; or
            ``"supposed"``, since it was never measured.
    """

    policy: str
    peak_nbytes: int
    phase: str
    categories: dict[str, int]
    phases: dict[str, int]
    saved: dict[str, int]
    stores: dict[str, StoreBytes]
    bandwidth: float
    free_bandwidth: float | None
    compute_seconds: float
    slow_compute_seconds: float
    stall_seconds: float
    products: int
    notes: list[str] = field(default_factory=list)
    bandwidth_source: str = "given"

    @property
    def seconds(self) -> float:
        """Of a step: computing and waiting."""
        return self.compute_seconds + self.stall_seconds

    @property
    def slow_seconds(self) -> float:
        """Of a step on a busy machine."""
        return self.slow_compute_seconds + self.stall_seconds

    def to_dict(self) -> dict[str, Any]:
        """Return all figures by name, for JSON."""
        figures = asdict(self)
        figures["stores"] = {name: each._asdict() for name, each in self.stores.items()}
        return figures | {"seconds": self.seconds, "slow_seconds": self.slow_seconds}

    def __repr__(self) -> str:
        return (
            f"<Estimate under {self.policy}: peak {format_nbytes(self.peak_nbytes)} in "
            f"{self.phase}, {_time(self.seconds)} to {_time(self.slow_seconds)} a step>"
        )

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def __rich__(self) -> "RenderableType":
        return as_rich(self._parts())

    def _repr_html_(self) -> str:
        return as_html(self._parts())

    def _parts(self) -> list[Part]:
        peak = format_nbytes(self.peak_nbytes)
        phases = ", ".join(f"{format_nbytes(n)} in {name}" for name, n in self.phases.items())
        parts: list[Part] = [
            f"A step under {self.policy} is expected to take {peak} of tensor memory at its peak, "
            f"in {self.phase} ({phases}).",
            Grid(
                ["at the peak", "bytes", "share"],
                [
                    [name, format_nbytes(n), f"{n / self.peak_nbytes:.0%}"]
                    for name, n in self.categories.items()
                    if n
                ],
            ),
        ]
        if self.saved:
            rows = sorted(self.saved.items(), key=lambda each: -each[1])
            rest = sum(n for _, n in rows[_MAX_LINES:])
            cells = [[name, format_nbytes(n)] for name, n in rows[:_MAX_LINES]]
            if rest:
                cells.append([f"({len(rows) - _MAX_LINES} more)", format_nbytes(rest)])
            parts.append(Grid(["saved for backward by", "bytes"], cells))
        if self.stores:
            parts.append(
                Grid(
                    ["store", "written", "read"],
                    [[name, *map(format_nbytes, each)] for name, each in self.stores.items()],
                )
            )
        parts.append(self._times())
        parts += self.notes
        return parts

    @property
    def _source(self) -> str:
        if self.bandwidth_source == "measured":
            return "as this drive was measured"
        if self.bandwidth_source == "supposed":
            return "supposed: no drive was measured here, as offgrad replay does"
        return self.bandwidth_source

    def _times(self) -> str:
        text = (
            f"Computing takes {_time(self.compute_seconds)} at this machine's best rates, "
            f"{_time(self.slow_compute_seconds)} at its worst"
        )
        if self.free_bandwidth is None:
            return f"{text}; nothing goes to a drive."
        return (
            f"{text}. From {_rate(self.free_bandwidth)} on, the drive delays it by 1% at most; at "
            f"{_rate(self.bandwidth)} ({self._source}), by {_time(self.stall_seconds)}."
        )


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _rate(bandwidth: float) -> str:
    if bandwidth >= 1e9:
        return f"{bandwidth / 1e9:.3g} GB/s"
    return f"{bandwidth / 1e6:.3g} MB/s"
