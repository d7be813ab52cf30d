"""profile_memory: tensor memory around forward and backward, as figures, a table and a plot."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offgrad import memory
from offgrad.autograd import engine
from offgrad.nn.hooks.registry import track_calls, untrack_calls
from offgrad.profiler import report
from offgrad.profiler.recorder import Recorder, extremes

if TYPE_CHECKING:
    from rich.table import Table


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

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @property
    def timeline(self) -> Timeline:
        """All changes of tensor memory, downsampled to extremes if there are very many."""
        parts = [segment.points.arrays() for segment in self._recorder.segments]
        seconds = np.concatenate([part[0] for part in parts]) - self._recorder.began
        nbytes = np.concatenate([part[1] for part in parts])
        order = np.argsort(seconds, kind="stable")
        return Timeline(np.maximum(seconds[order], 0.0), nbytes[order])

    @property
    def phases(self) -> list[Phase]:
        """The backward passes and the phases before, between and after them, in order."""
        segments = self._recorder.segments
        phases = []
        for index, segment in enumerate(segments):
            seconds, nbytes = segment.points.arrays()
            last = index == len(segments) - 1
            name = "backward" if segment.is_backward else "after" if last and index else "forward"
            phases.append(
                Phase(
                    name=name,
                    start=max(0.0, float(seconds[0]) - self._recorder.began),
                    end=float(seconds[-1]) - self._recorder.began,
                    start_nbytes=int(nbytes[0]),
                    peak_nbytes=int(nbytes.max()),
                    end_nbytes=int(nbytes[-1]),
                )
            )
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
        return max(phase.peak_nbytes for phase in self.phases)

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
        return dict(self._recorder.saved_by_module)

    def as_dict(self, max_points: int | None = None) -> dict[str, Any]:
        """Return the whole profile as numbers, lists and dicts, ready for JSON.

        Args:
            max_points: downsample the timeline to about this number of points, extremes included.
        """
        timeline = self.timeline
        if max_points is not None:
            indices = extremes(timeline.nbytes, max(1, max_points // 2))
            timeline = Timeline(timeline.seconds[indices], timeline.nbytes[indices])
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
        return report.table(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw memory over time, forward and backward marked, into a PNG, SVG or PDF file."""
        # Here, because Matplotlib is slow to import.
        from offgrad.profiler.plot import save_plot

        save_plot(self, path)

    def __str__(self) -> str:
        return report.text(self)


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
    recorder = Recorder()
    with memory.observe(recorder.on_memory_change):
        engine.observers.append(recorder.on_backward)
        track_calls()
        try:
            yield MemoryProfile(recorder)
        finally:
            untrack_calls()
            engine.observers.remove(recorder.on_backward)
            recorder.end()
