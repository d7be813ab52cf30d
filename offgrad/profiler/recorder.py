"""The recorder: every change of tensor memory with its time, and when backward passes ran."""

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad import memory

_MOST_POINTS = 100_000
"""Of one stretch; all stretches together keep at most four times as many."""


class Points:
    """Pairs of time and bytes; thinned, when there are very many, to each stretch's extremes.

    `add` is called at every change of memory, from any thread and from inside garbage collections:
    it takes no lock. A pair is one complex number, so that appending it is one atomic step, and
    gives the collector nothing to track.
    """

    def __init__(self, most: int = _MOST_POINTS) -> None:
        self._pairs: list[complex] = []
        self._most = most
        self._thinning = threading.Lock()

    def add(self, nbytes: int) -> None:
        """Record `nbytes` at this moment."""
        self._pairs.append(complex(time.perf_counter(), nbytes))
        if len(self._pairs) >= self._most:
            self.thin(self._most // 2)

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the times, ascending, and the bytes."""
        pairs = np.array(list(self._pairs), np.complex128)
        # Threads may come a little late with what they saw.
        pairs = pairs[np.argsort(pairs.real, kind="stable")]
        return pairs.real.copy(), pairs.imag.astype(np.int64)

    def __len__(self) -> int:
        return len(self._pairs)

    def thin(self, most: int) -> None:
        """Keep about `most` of the pairs, the extremes among them."""
        # Whoever comes meanwhile, perhaps from a collection right here, just adds.
        if not self._thinning.acquire(blocking=False):
            return
        try:
            count = len(self._pairs)
            pairs = np.array(self._pairs[:count], np.complex128)
            # One assignment: what was added since stays behind it.
            self._pairs[:count] = pairs[extremes(pairs.imag, max(1, most // 2))].tolist()
        finally:
            self._thinning.release()


def extremes(values: NDArray[Any], stretches: int) -> NDArray[np.intp]:
    """Return the indices, ascending, of the smallest and largest of each of so many stretches.

    The first and the last index are always among them.
    """
    size = values.size
    if size <= 2 * stretches + 2:
        return np.arange(size)
    length = -(-size // stretches)
    whole = size // length * length
    table = values[:whole].reshape(-1, length)
    starts = np.arange(0, whole, length)
    chosen = [[0, size - 1], starts + table.argmin(axis=1), starts + table.argmax(axis=1)]
    if whole < size:
        rest = values[whole:]
        chosen.append(whole + np.array([rest.argmin(), rest.argmax()]))
    return np.unique(np.concatenate(chosen))


class Stretch:
    """A part of the recording: a backward pass, or what lies between two."""

    def __init__(self, backward: bool) -> None:
        self.backward = backward
        self.points = Points()
        self.points.add(memory.allocated())


class Recorder:
    """Takes memory changes and the engine's marks; each stretch apart, so that peaks are exact."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self.began = time.perf_counter()
        self.stretches = [Stretch(backward=False)]
        self._current = self.stretches[-1].points
        self.ended: float | None = None
        # What was kept for the backward pass that had most to keep.
        self.saved_by_module: dict[str, int] = {}

    def changed(self, nbytes: int) -> None:
        """Take a change: this many bytes are allocated now."""
        self._current.add(nbytes)

    def passed(self, begins: bool) -> None:
        """Take the engine's mark: a backward pass begins, or has ended."""
        saved = memory.saved_by_module() if begins else {}
        with self._lock:
            if sum(saved.values()) > sum(self.saved_by_module.values()):
                self.saved_by_module = saved
            # Passes may be nested, and run in several threads.
            self._running = max(0, self._running + (1 if begins else -1))
            if (self._running > 0) != self.stretches[-1].backward:
                self._turn(self._running > 0)

    def end(self) -> None:
        """Take the last point."""
        self._current.add(memory.allocated())
        self.ended = time.perf_counter()

    def _turn(self, backward: bool) -> None:
        self._current.add(memory.allocated())
        total = sum(len(stretch.points) for stretch in self.stretches)
        if total > 4 * _MOST_POINTS:
            for stretch in self.stretches:
                stretch.points.thin(len(stretch.points) // 2)
        self.stretches.append(Stretch(backward))
        self._current = self.stretches[-1].points
