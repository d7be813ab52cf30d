"""The memory of paged parameters, gradients and optimizer state in an estimate."""

from typing import Any
from weakref import WeakSet

from offgrad_storage import MemoryCounter

from offgrad.memory import POOL_THRESHOLD, Storage
from offgrad.memory.meta import memory_of
from offgrad.memory.meter import ArrayMeter


class EstimatedPages:
    """Counts paged memory: what a cache of pages holds, at most its bound.

    Attributes:
        peak_nbytes: the most of this and all other memory since `reset_peak`.

    Args:
        meter: that counts all other memory.
    """

    def __init__(self, meter: ArrayMeter) -> None:
        self._meter = meter
        self._counters: dict[Any, MemoryCounter] = {}
        self._taken: WeakSet[Storage] = WeakSet()
        self.peak_nbytes = self._other_nbytes = 0
        meter.counter.observers[self] = self._note_other

    def take(self, storage: Storage, cache: Any) -> None:
        """Count the memory of `storage` among the pages of a cache, until it dies."""
        if storage in self._taken:
            return
        self._taken.add(storage)
        owner = memory_of(storage.root)
        is_by_memory = owner is not None and owner.is_counted
        forgotten = _Forgotten()
        self._meter.counter.move(owner if is_by_memory else storage, forgotten)
        del forgotten
        self._meter.counter.settle()
        if cache not in self._counters:
            counter = self._counters[cache] = MemoryCounter()
            counter.observers[self] = lambda *_: self._note()
        self._counters[cache].add(storage, storage.nbytes)

    def take_alike(self, storage: Storage, cache: Any) -> None:
        """Take a parameter; from now on its gradient and optimizer state as well."""

        def take(tensor: Any, role: str) -> None:
            if tensor._storage.nbytes >= POOL_THRESHOLD:
                tensor._storage.role = role
                self.take(tensor._storage, cache)

        storage.placer = take
        self.take(storage, cache)

    def reset_peak(self) -> None:
        """Forget the peak."""
        self._other_nbytes, self.peak_nbytes = self._meter.counter.allocated, 0
        self._note()

    def _note_other(self, nbytes: int, *_: Any) -> None:
        self._other_nbytes = nbytes
        self._note()

    def _note(self) -> None:
        held = [
            min(each.allocated, int(cache.bound_nbytes)) for cache, each in self._counters.items()
        ]
        self.peak_nbytes = max(self.peak_nbytes, self._other_nbytes + sum(held))

    def by_role(self) -> dict[str, int]:
        """Return what the caches hold now, by the role of the memory: of each its share."""
        found: dict[str, int] = {}
        for cache, counter in self._counters.items():
            part = min(1.0, cache.bound_nbytes / max(counter.allocated, 1))
            for reference, nbytes in counter.living():
                storage = reference()
                if storage is not None:
                    role = storage.role
                    found[role] = found.get(role, 0) + int(nbytes * part)
        return found


class _Forgotten:
    """Takes the bytes of memory that is counted elsewhere from now on."""
