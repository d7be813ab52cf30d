"""Steps, and the phases within them."""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from offgrad.profiler.events import PHASE, Event
from offgrad.profiler.modules import Spans

MAX_PHASES = 4_000
MAX_STEPS = 1_000


@dataclass(slots=True)
class StepFigures:
    """One step, or several older ones.

    Attributes:
        index: of the first step.
        count: how many steps.
        start: seconds since the recording began.
        end: the same.
        peak_nbytes: the maximum allocated.
        ended: whether the program marked its end; the last one may not have ended.
    """

    index: int
    count: int
    start: float
    end: float
    peak_nbytes: int
    ended: bool = False


@dataclass(slots=True)
class PhaseFigures:
    """A part of a step.

    Attributes:
        name: ``"forward"``, ``"backward"``, ``"optimizer"`` or ``"other"``.
        step: the index of the step.
        start: seconds since the recording began.
        end: the same.
        start_nbytes: allocated at its start.
        peak_nbytes: the maximum allocated within it.
        end_nbytes: allocated at its end.
    """

    name: str
    step: int
    start: float
    end: float
    start_nbytes: int
    peak_nbytes: int
    end_nbytes: int


class Steps:
    """All steps and phases; of older steps pairs become one, and older phases are counted only.

    Args:
        spans: gets the spans of phases.
        began: when the recording began.
        min_seconds: a time between phases that is briefer, and changes no memory, is left out.
    """

    def __init__(self, spans: Spans, began: float, min_seconds: float) -> None:
        self._spans = spans
        self._began = began
        self._steps: list[StepFigures] = []
        self._phases: deque[PhaseFigures] = deque(maxlen=MAX_PHASES)
        self._step = StepFigures(0, 1, 0.0, 0.0, 0)
        self._phase = PhaseFigures("other", 0, 0.0, 0.0, 0, 0, 0)
        self._has_work = False  # in this step
        self._totals: dict[str, dict[str, Any]] = {}
        self._min_seconds = min_seconds

    def start(self, nbytes: int) -> None:
        """Set the bytes that were allocated when the recording began."""
        self._step.peak_nbytes = nbytes
        self._phase.start_nbytes = self._phase.peak_nbytes = nbytes

    def note(self, nbytes: int) -> None:
        """Note that so many bytes are allocated."""
        if nbytes > self._phase.peak_nbytes:
            self._phase.peak_nbytes = nbytes

    def read(self, event: Event, nbytes: int) -> None:
        """Account for the begin of a phase, or the end of a step."""
        now = event[1] - self._began
        name = event[2] if event[0] == PHASE else self._phase.name
        self._end_phase(now, nbytes)
        if event[0] != PHASE:
            self._step.end, self._step.ended = now, True
            self._steps.append(self._step)
            self._step = StepFigures(self._step.index + 1, 1, now, now, nbytes)
            self._has_work = False
            if len(self._steps) > MAX_STEPS:
                self._merge_older()
        self._phase = PhaseFigures(name, self._step.index, now, now, nbytes, nbytes, nbytes)

    def _end_phase(self, now: float, nbytes: int) -> None:
        phase = self._phase
        phase.end, phase.end_nbytes = now, nbytes
        self._step.peak_nbytes = max(self._step.peak_nbytes, phase.peak_nbytes)
        if self._is_negligible(phase):
            return
        self._has_work = self._has_work or phase.name != "other"
        self._phases.append(phase)
        _count(self._totals, phase)
        begin, end = phase.start + self._began, phase.end + self._began
        self._spans.append((phase.name, "phase", "", begin, end, phase.peak_nbytes))

    def _merge_older(self) -> None:
        half = MAX_STEPS // 2
        older = self._steps[:half]
        merged = [
            StepFigures(
                first.index, first.count + second.count, first.start, second.end,
                max(first.peak_nbytes, second.peak_nbytes), ended=True,
            )
            for first, second in zip(older[::2], older[1::2], strict=True)
        ]  # fmt: skip
        self._steps[:half] = merged

    def steps(self, now: float) -> list[dict[str, Any]]:
        """Return all steps; the last one may not have ended."""
        last = StepFigures(*_values(self._step))
        last.end = now - self._began
        last.peak_nbytes = max(last.peak_nbytes, self._phase.peak_nbytes)
        has_begun = self._has_work or self._phase.name != "other" or not self._steps
        return [asdict(each) for each in (*self._steps, *([last] if has_begun else []))]

    def totals(self, now: float) -> dict[str, dict[str, Any]]:
        """Return number, time and peak of the phases by name, those that are not kept included."""
        totals = {name: dict(total) for name, total in self._totals.items()}
        last = self._last_phase(now, self._phase.end_nbytes)
        if last is not None:
            _count(totals, last)
        return totals

    def _last_phase(self, now: float, nbytes: int) -> PhaseFigures | None:
        """Return the phase that has not ended, unless it is negligible."""
        last = PhaseFigures(*_values(self._phase))
        last.end, last.end_nbytes = now - self._began, nbytes
        return None if self._is_negligible(last) and self._phases else last

    def phases(self, now: float, nbytes: int) -> Iterator[dict[str, Any]]:
        """Yield the phases of the latest steps; the last one may not have ended."""
        for each in tuple(self._phases):
            yield asdict(each)
        last = self._last_phase(now, nbytes)
        if last is not None:
            yield asdict(last)

    def _is_negligible(self, phase: PhaseFigures) -> bool:
        is_flat = phase.start_nbytes == phase.peak_nbytes == phase.end_nbytes
        is_brief = phase.end - phase.start < self._min_seconds
        return phase.name == "other" and is_flat and is_brief


def _values(figures: StepFigures | PhaseFigures) -> list[Any]:
    return [getattr(figures, name) for name in figures.__slots__]


def _count(totals: dict[str, dict[str, Any]], phase: PhaseFigures) -> None:
    total = totals.setdefault(phase.name, {"count": 0, "seconds": 0.0, "peak_nbytes": 0})
    total["count"] += 1
    total["seconds"] += phase.end - phase.start
    total["peak_nbytes"] = max(total["peak_nbytes"], phase.peak_nbytes)
