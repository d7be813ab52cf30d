"""profile_memory: tensor memory around forward and backward, as figures, a table and a plot."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offgrad.memory import format_nbytes
from offgrad.profiler import memory_table
from offgrad.profiler.recording import Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

_MAX_POINTS = 8_000


class Timeline(NamedTuple):
    """Tensor memory over time: ``nbytes[i]`` from ``seconds[i]`` to the next change.

    Attributes:
        seconds: since the recording began, ascending; float64.
        nbytes: bytes allocated; int64, of the same length.
    """

    seconds: NDArray[np.float64]
    nbytes: NDArray[np.int64]


@dataclass(frozen=True)
class Phase:
    """A backward pass, or the time before, between or after backward passes.

    Attributes:
        name: ``"forward"`` before a backward pass, ``"backward"``, or ``"after"`` the last one.
        start: seconds since the recording began.
        end: the same, of its end.
        start_nbytes: allocated at its start.
        peak_nbytes: maximum allocated within it.
        end_nbytes: allocated at its end.
    """

    name: str
    start: float
    end: float
    start_nbytes: int
    peak_nbytes: int
    end_nbytes: int


class MemoryProfile:
    """The recording of `profile_memory`. It can be read inside the block, too."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @property
    def timeline(self) -> Timeline:
        """All changes of tensor memory, downsampled to extremes if there are very many."""
        return self._timeline(None)

    def _timeline(self, max_points: int | None) -> Timeline:
        table = self._recording.read().table(self._recording.now, max_points)
        return Timeline(table[:, 0], table[:, 1:].sum(axis=1).astype(np.int64))

    @property
    def phases(self) -> list[Phase]:
        """The backward passes and the phases before, between and after them, in order.

        Of very many, the latest.
        """
        account = self._recording.read()
        found = list(account.steps.phases(self._recording.now, account.total))
        phases = []
        for index, each in enumerate(found):
            name = each["name"]
            if name != "backward":
                name = "after" if index and index == len(found) - 1 else "forward"
            figures = {key: each[key] for key in each if key not in ("name", "step")}
            phases.append(Phase(name, **figures))
        return phases

    @property
    def start_nbytes(self) -> int:
        """Bytes allocated when the recording began."""
        return self.phases[0].start_nbytes

    @property
    def end_nbytes(self) -> int:
        """Bytes allocated when the recording ended."""
        return self.phases[-1].end_nbytes

    @property
    def peak_nbytes(self) -> int:
        """Maximum of the bytes allocated."""
        return self._recording.read().peak_nbytes

    def peak_in(self, name: str) -> int | None:
        """Return the maximum of the bytes allocated in phases called `name`; None without any."""
        return max((each.peak_nbytes for each in self.phases if each.name == name), default=None)

    @property
    def held_nbytes(self) -> int | None:
        """Maximum growth of memory over a forward phase; None if no backward pass followed."""
        phases = self.phases
        growth = [
            following.start_nbytes - phase.start_nbytes
            for phase, following in pairwise(phases)
            if following.name == "backward"
        ]
        return max(growth, default=None)

    @property
    def saved_by_module(self) -> dict[str, int]:
        """Bytes of large tensors kept in memory for backward, by the qualified name of the module
        that saved them, largest first.

        They are counted when a backward pass begins; the pass with the maximum sum is reported.
        Names count from the outermost called module, whose own name is ``""``.
        """
        return dict(self._recording.tape.saved_by_module)

    def as_dict(self, max_points: int | None = None) -> dict[str, Any]:
        """Return the whole profile as numbers, lists and dicts, ready for JSON.

        Args:
            max_points: downsample the timeline to about this number of points, extremes included.
        """
        timeline = self._timeline(max_points)
        return {
            "start_nbytes": self.start_nbytes,
            "peak_nbytes": self.peak_nbytes,
            "end_nbytes": self.end_nbytes,
            "held_nbytes": self.held_nbytes,
            "saved_by_module": self.saved_by_module,
            "phases": [asdict(phase) for phase in self.phases],
            "timeline": {
                "seconds": timeline.seconds.tolist(),
                "nbytes": timeline.nbytes.tolist(),
            },
        }

    def table(self) -> "Table":
        """Return the figures as a table for a rich console."""
        return memory_table.table(self)

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        title: str = "Tensor memory in forward and backward",
        axes: "Axes | None" = None,
    ) -> "Axes":
        """Draw memory over time, forward and backward marked; return the Matplotlib axes.

        Args:
            path: a PNG, SVG or PDF file to save the figure in.
            title: of the axes.
            axes: to draw on; None for those of a new figure.
        """
        # Here, because Matplotlib is slow to import.
        from offgrad.profiler.plot import plot

        return plot(self.as_dict(_MAX_POINTS), path, title=title, axes=axes)

    def __str__(self) -> str:
        return memory_table.text(self)

    def __repr__(self) -> str:
        peak = format_nbytes(self.peak_nbytes)
        return f"<MemoryProfile: peak of {peak} in {self.phases[-1].end:.3f} s>"

    def _repr_html_(self) -> str:
        return memory_table.html(self)


@contextmanager
def profile_memory() -> Iterator[MemoryProfile]:
    """Record tensor memory inside the block, around one forward and backward or several.

    ::

        with profile_memory() as profile:
            loss = model(x, y)
            loss.backward()
        print(profile)
        profile.plot("memory.png")

    Tensors of all threads count, and all backward passes of the process are marked. The time
    before the first pass and between two passes counts as forward, optimiser steps included.
    """
    recording = Recording(detailed=False)
    try:
        recording.open()
        yield MemoryProfile(recording)
    finally:
        try:
            recording.close()
        except KeyboardInterrupt:  # perhaps before it began
            recording.close()
            raise
