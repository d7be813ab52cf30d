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
from offgrad.profiler.recorder import Recorder, extremes

if TYPE_CHECKING:
    from rich.table import Table


class Timeline(NamedTuple):
    """Tensor memory over time: it is ``nbytes[i]`` from ``seconds[i]`` on.

    Attributes:
        seconds: since the recording began, ascending; float64.
        nbytes: bytes allocated; int64, of the same length.
    """

    seconds: NDArray[np.float64]
    nbytes: NDArray[np.int64]


@dataclass(frozen=True)
class Phase:
    """A part of the recording.

    Attributes:
        name: ``"forward"`` before a backward pass, ``"backward"``, or ``"after"`` the last one.
        start: seconds since the recording began.
        end: the same, of its end.
        start_nbytes: allocated at its start.
        peak_nbytes: the most allocated within it.
        end_nbytes: allocated at its end.
    """

    name: str
    start: float
    end: float
    start_nbytes: int
    peak_nbytes: int
    end_nbytes: int


class MemoryProfile:
    """What `profile_memory` recorded. Complete after its block; inside it, what there is so far."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @property
    def timeline(self) -> Timeline:
        """Every change of tensor memory; of very many, the extremes."""
        parts = [stretch.points.arrays() for stretch in self._recorder.stretches]
        seconds = np.concatenate([part[0] for part in parts]) - self._recorder.began
        nbytes = np.concatenate([part[1] for part in parts])
        order = np.argsort(seconds, kind="stable")
        return Timeline(np.maximum(seconds[order], 0.0), nbytes[order])

    @property
    def phases(self) -> list[Phase]:
        """The backward passes and what lies before, between and after them, in order."""
        stretches = self._recorder.stretches
        phases = []
        for index, stretch in enumerate(stretches):
            seconds, nbytes = stretch.points.arrays()
            last = index == len(stretches) - 1
            name = "backward" if stretch.backward else "after" if last and index else "forward"
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
        """Bytes allocated at its end."""
        return self.phases[-1].end_nbytes

    @property
    def peak_nbytes(self) -> int:
        """The most bytes allocated at any one time."""
        return max(phase.peak_nbytes for phase in self.phases)

    def peak_in(self, name: str) -> int | None:
        """Return the most bytes allocated in phases of this name; None if there were none."""
        return max((each.peak_nbytes for each in self.phases if each.name == name), default=None)

    @property
    def held_nbytes(self) -> int | None:
        """By how much forward grew memory, at most; None if no backward followed."""
        phases = self.phases
        grown = [
            following.start_nbytes - phase.start_nbytes
            for phase, following in pairwise(phases)
            if following.name == "backward"
        ]
        return max(grown, default=None)

    @property
    def saved_by_module(self) -> dict[str, int]:
        """Bytes that large tensors kept in memory for backward when a pass began, by the qualified
        name of the module that saved them, most first; of the pass for which they were most.

        Names begin at the outermost module called, which itself is ``""``.
        """
        return dict(self._recorder.saved_by_module)

    def as_dict(self, most_points: int | None = None) -> dict[str, Any]:
        """Return all of it as numbers, lists and dicts, ready for JSON.

        Args:
            most_points: thin the timeline to about so many points, the extremes among them.
        """
        timeline = self.timeline
        if most_points is not None:
            kept = extremes(timeline.nbytes, max(1, most_points // 2))
            timeline = Timeline(timeline.seconds[kept], timeline.nbytes[kept])
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
        from offgrad.profiler.report import table

        return table(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw memory over time, forward and backward marked, into a PNG, SVG or PDF file."""
        from offgrad.profiler.plot import save_plot

        save_plot(self, path)

    def __str__(self) -> str:
        from offgrad.profiler.report import text

        return text(self)


@contextmanager
def profile_memory() -> Iterator[MemoryProfile]:
    """Record tensor memory inside the block, around one forward and backward or several.

    ::

        with profile_memory() as profile:
            loss = model(x, y)
            loss.backward()
        print(profile)
        profile.plot("memory.png")

    All threads' tensors count, and all backward passes of the process are marked. What is before
    the first pass and between two counts as forward, the optimiser's step included.
    """
    recorder = Recorder()
    with memory.observe(recorder.changed):
        engine.observers.append(recorder.passed)
        track_calls()
        try:
            yield MemoryProfile(recorder)
        finally:
            untrack_calls()
            engine.observers.remove(recorder.passed)
            recorder.end()
