"""Records changes of tensor memory and backward passes, with their times."""

import time
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray
from offgrad_storage.interrupts import MaskedLock, masked

from offgrad import memory
from offgrad.memory.forks import forkables

_MAX_POINTS = 100_000
"""For one segment; all segments together keep at most four times as many."""


class Points:
    """Pairs of time and bytes, downsampled to extremes if there are more than `max_points`.

    `add` takes no lock, because it is called at each change of memory, from any thread and from
    inside garbage collections. A pair is one complex number, so that appending it is one atomic
    step and creates no object for the collector to track.
    """

    def __init__(self, max_points: int = _MAX_POINTS) -> None:
        self._pairs: list[complex] = []
        self._max_points = max_points
        self._downsampling = MaskedLock()

    def add(self, nbytes: int) -> None:
        """Record that `nbytes` are allocated now."""
        self._pairs.append(complex(time.perf_counter(), nbytes))
        if len(self._pairs) >= self._max_points:
            self.downsample(self._max_points // 2)

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the times, ascending, and the bytes."""
        pairs = np.array(list(self._pairs), np.complex128)
        # A thread may be interrupted between taking the time and appending.
        pairs = pairs[np.argsort(pairs.real, kind="stable")]
        return pairs.real.copy(), pairs.imag.astype(np.int64)

    def __len__(self) -> int:
        return len(self._pairs)

    def downsample(self, max_points: int) -> None:
        """Keep about `max_points` pairs, extremes included."""
        # Other callers, perhaps from a garbage collection in this very call, only append meanwhile.
        with masked:
            if not self._downsampling.acquire(blocking=False):
                return
            try:
                count = len(self._pairs)
                pairs = np.array(self._pairs[:count], np.complex128)
                # One atomic assignment; pairs appended meanwhile stay behind it.
                self._pairs[:count] = pairs[extremes(pairs.imag, max(1, max_points // 2))].tolist()
            finally:
                self._downsampling.release()


def extremes(values: NDArray[Any], bins: int) -> NDArray[np.intp]:
    """Return the indices, ascending, of the minimum and maximum in each of `bins` equal parts.

    The first and the last index are always included.
    """
    size = values.size
    if size <= 2 * bins + 2:
        return np.arange(size)
    length = -(-size // bins)
    whole = size // length * length
    table = values[:whole].reshape(-1, length)
    starts = np.arange(0, whole, length)
    # Not np.unique, which imports a module: in a child forked meanwhile it would hang.
    is_chosen = np.zeros(size, np.bool_)
    is_chosen[[0, size - 1]] = True
    is_chosen[starts + table.argmin(axis=1)] = True
    is_chosen[starts + table.argmax(axis=1)] = True
    if whole < size:
        rest = values[whole:]
        is_chosen[[whole + rest.argmin(), whole + rest.argmax()]] = True
    return np.flatnonzero(is_chosen)


class Segment:
    """A part of the recording: a backward pass, or the time before, between or after passes."""

    def __init__(self, is_backward: bool) -> None:
        self.is_backward = is_backward
        self.points = Points()
        self.points.add(memory.allocated())


class Recorder:
    """Records memory changes by segment, so that the peak of each one is exact.

    A forked child goes on with its copy.
    """

    lock = None  # a fork does not wait for passes to begin or end

    def __init__(self) -> None:
        self._lock = MaskedLock()
        self._passes: list[int] = []  # the threads that run one
        self.began = time.perf_counter()
        self.segments = [Segment(is_backward=False)]
        self._current = self.segments[-1].points
        self._num_points = 0  # of the segments before the current one
        self.ended: float | None = None
        # Of the backward pass for which the sum was largest.
        self.saved_by_module: dict[str, int] = {}
        forkables.add(self)

    def on_memory_change(self, nbytes: int) -> None:
        """Record that `nbytes` are allocated now."""
        self._current.add(nbytes)

    def on_backward(self, begins: bool) -> None:
        """Record that a backward pass begins or has ended."""
        saved = memory.saved_by_module() if begins else {}
        thread = get_ident()
        with self._lock:
            if sum(saved.values()) > sum(self.saved_by_module.values()):
                self.saved_by_module = saved
            # Passes may be nested and run in several threads. One that began before the recording
            # is seen only to end.
            if begins:
                self._passes.append(thread)
            elif thread in self._passes:
                self._passes.remove(thread)
            self._note_passes()

    def forget_other_threads(self) -> None:
        """In a forked child: their passes do not run, and may have begun a segment by half."""
        self._current = self.segments[-1].points
        self._num_points = sum(len(segment.points) for segment in self.segments[:-1])
        self._passes = [each for each in self._passes if each == get_ident()]
        self._note_passes()

    def end(self) -> None:
        """Record the last point."""
        self._current.add(memory.allocated())
        self.ended = time.perf_counter()

    def _note_passes(self) -> None:
        """Begin a segment if the first pass began, or the last one ended."""
        is_backward = bool(self._passes)
        if is_backward == self.segments[-1].is_backward:
            return
        self._current.add(memory.allocated())
        # Not a sum over all segments: other passes wait for the lock.
        self._num_points += len(self._current)
        if self._num_points > 4 * _MAX_POINTS:
            for segment in self.segments:
                segment.points.downsample(len(segment.points) // 2)
            self._num_points = sum(len(segment.points) for segment in self.segments)
        self.segments.append(Segment(is_backward))
        self._current = self.segments[-1].points
