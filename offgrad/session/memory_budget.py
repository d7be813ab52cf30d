"""Memory budget: saved arrays stay in memory as long as there is room, then go to a store.

The array with the furthest next use is evicted first: until the plan of a backward pass gives the
order of use, the array that was saved first. A storage is evicted as a whole, with all arrays in
it; its room is free once they are written. Until then the arrays hold it: an array that cannot be
written stays, and the operation that needs the room raises the error. An in-place change evicts as
well, so that backward gets the saved values.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary, ref

from offgrad_storage import AbstractArrayStore

from offgrad.memory import Storage
from offgrad.policies import Spill
from offgrad.session.cached_storage import CachedArray, CachedStorage, StoreWrite
from offgrad.session.saved_array import Array, SavedArray

_MAX_EAGER_NBYTES = 32 << 20


class _Eviction(NamedTuple):
    """Memory that is being written, still held by its arrays or by the store alone."""

    cached: ref[CachedStorage]
    writes: Sequence[StoreWrite]
    nbytes: int


_Queue: TypeAlias = OrderedDict[int, ref[CachedStorage]]


class MemoryBudget:
    """The saved arrays that share the room of one `Spill`. For use with the session's lock held.

    Args:
        spill: the bound, in bytes or in storages.
        open_store: returns the store to evict to: in a forked child another one.
        lock: the session's.
        prefetched_nbytes: returns the bytes that prefetches take of the same room.
    """

    def __init__(
        self,
        spill: Spill,
        open_store: Callable[[], AbstractArrayStore],
        lock: AbstractContextManager[Any],
        prefetched_nbytes: Callable[[], int],
    ) -> None:
        self.lock = lock
        self._spill = spill
        self._open_store = open_store
        self._prefetched_nbytes = prefetched_nbytes
        self._by_storage: WeakValueDictionary[int, CachedStorage] = WeakValueDictionary()
        # Furthest next use first; all of `_unplanned` is used after all of `_planned`.
        self._unplanned: _Queue = OrderedDict()
        self._planned: _Queue = OrderedDict()
        self._evictions: deque[_Eviction] = deque()
        self._held_nbytes = 0
        self._freed: deque[int] = deque()  # from finalizers, which cannot take a lock
        self._eager_nbytes = 0  # written before their room is needed
        self._passes = 0
        self._evicting = False

    @property
    def store(self) -> AbstractArrayStore:
        """The store to evict to."""
        return self._open_store()

    @property
    def held_nbytes(self) -> int:
        """Bytes of memory held, including memory that is being written."""
        self._count_freed()
        return self._held_nbytes

    def add(
        self, saved: SavedArray, storage: Storage, data: Array, attributes: Mapping[str, object]
    ) -> bool:
        """Hold `data`, a part of `storage`, for `saved`; return False if there cannot be room."""
        cached = self._by_storage.get(storage.uid)
        if cached is None:
            if not self.make_room(storage.root.nbytes):
                return False
            cached = CachedStorage(storage, self, self._freed)
            self._held_nbytes += cached.nbytes
            self._by_storage[storage.uid] = cached
            self._dequeue(cached)  # a dead one may have had the same id
            self._unplanned[id(cached)] = ref(cached)
        cached.arrays.append(CachedArray(ref(saved), data, attributes))
        saved.cached_in = cached
        storage.add_pending_write(saved)
        last = self._spill.last
        while last is not None and len(self._by_storage) > last and self._evict_next():
            pass
        self.reap()
        return True

    def make_room(self, nbytes: int) -> bool:
        """Evict until there is room for `nbytes`; return False if there cannot be.

        Raises:
            StoreError: an array to be evicted cannot be written, and stays.
        """
        bound = self._spill.nbytes
        if bound is None:
            return True
        if nbytes > bound:
            return False
        self.reap()
        while self._staying_nbytes() + nbytes + self._eager_nbytes > bound and self._evict_next(
            retry=True
        ):
            pass
        while self.held_nbytes + self._prefetched_nbytes() + nbytes > bound:
            if self._evictions:
                # From now on, writes begin before their room is needed.
                self._eager_nbytes = min(_MAX_EAGER_NBYTES, bound // 4)
                self._wait_for_eviction()
            elif not self._evict_next():
                return False
        return True

    def fits(self, nbytes: int) -> bool:
        """Return whether there is room to prefetch `nbytes` more."""
        bound = self._spill.nbytes
        self.reap()
        return bound is None or self.held_nbytes + self._prefetched_nbytes() + nbytes <= bound

    def plan(self, order: Sequence[SavedArray]) -> None:
        """Learn the order in which a backward pass will use the arrays."""
        self._passes += 1
        self.reap()
        for saved in reversed(order):  # so the first use of each counts
            cached = saved.cached_in
            if cached is not None:
                self._dequeue(cached)
                self._planned[id(cached)] = ref(cached)

    def finish(self) -> None:
        """End a pass: arrays that it did not use are no longer planned."""
        self._passes -= 1
        if not self._passes:
            left = (*self._planned.items(), *self._unplanned.items())
            self._planned = OrderedDict()
            self._unplanned = OrderedDict((key, each) for key, each in left if each() is not None)
        self.reap()

    def evict(self, cached: CachedStorage) -> None:
        """Begin to write all arrays of `cached`.

        Raises:
            StoreError: of the store; arrays that are not written stay.
        """
        cached.failure = None
        self._evicting = True  # a store that needs memory may call back for room here
        try:
            while cached.arrays:
                array = cached.arrays[-1]
                saved = array.saved()
                if saved is not None:
                    source = array.data.view()
                    saved.stored = self.store.put(source, attributes=array.attributes)
                    saved.cached_in, saved.evicting_from = None, cached
                    saved.ledger.wrote(saved)
                    cached.evicted.append(array)
                    if not self._spill.lossless:
                        saved.forget_copies()
                    cached.writes.append(StoreWrite(ref(saved.stored), ref(source)))
                cached.arrays.pop()
        finally:
            self._evicting = False
        if self._by_storage.get(cached.storage.uid) is cached:
            del self._by_storage[cached.storage.uid]
        self._dequeue(cached)
        self._evictions.append(_Eviction(ref(cached), cached.writes, cached.nbytes))
        cached.nbytes = 0  # the eviction counts it from now on

    def clear(self, cached: CachedStorage) -> None:
        """Evict `cached` and wait for its writes: see `CachedStorage.clear`."""
        if cached.arrays:
            self.evict(cached)
        while any(each.cached() is cached for each in self._evictions):
            self._wait_for_eviction()
        self._raise_failure(cached)

    def touch(self, cached: CachedStorage) -> None:
        """Saved again: move it to the most-recently-used end."""
        if id(cached) in self._unplanned:
            self._unplanned.move_to_end(id(cached))

    def reap(self) -> None:
        """Free memory whose writes are done, and count memory that was freed."""
        self._count_freed()
        while self._evictions and not any(each.is_pending for each in self._evictions[0].writes):
            self._end_eviction()

    def reclaim(self) -> None:
        """Evict everything.

        Raises:
            StoreError: of the store; arrays that are not written stay.
        """
        try:
            while self._evict_next(retry=True):
                pass
        finally:
            while self._evictions:
                self._wait_for_eviction()
        self._evict_next()  # raises the failure of arrays that came back

    def _dequeue(self, cached: CachedStorage) -> None:
        self._unplanned.pop(id(cached), None)
        self._planned.pop(id(cached), None)

    def _count_freed(self) -> None:
        while self._freed:
            self._held_nbytes -= self._freed.popleft()

    def _staying_nbytes(self) -> int:
        return self.held_nbytes - sum(each.nbytes for each in self._evictions)

    def _evict_next(self, retry: bool = False) -> bool:
        """Begin to evict the storage with the furthest next use; return False if there is none.

        With `retry`, also one whose write failed before; else that failure is raised.
        """
        if self._evicting:
            return False
        for queue in (self._unplanned, self._planned):
            while queue:
                key, reference = next(iter(queue.items()))
                cached = reference()
                if cached is not None:
                    if not retry:
                        self._raise_failure(cached)
                    self.evict(cached)
                    return True
                del queue[key]
        return False

    def _wait_for_eviction(self) -> None:
        for write in self._evictions[0].writes:
            handle = write.handle()
            if handle is not None:
                handle.wait_captured()
            elif write.is_pending:
                self.store.flush()
        self._end_eviction()

    def _end_eviction(self) -> None:
        """End the first eviction, whose writes are all done."""
        eviction = self._evictions.popleft()
        cached = eviction.cached()
        if cached is not None:
            cached.end_writes()
        if cached is None or not cached.arrays:
            self._held_nbytes -= eviction.nbytes
            return
        cached.nbytes = eviction.nbytes
        self._by_storage.setdefault(cached.storage.uid, cached)
        self._unplanned[id(cached)] = ref(cached)
        self._unplanned.move_to_end(id(cached), last=False)

    def _raise_failure(self, cached: CachedStorage) -> None:
        failure, cached.failure = cached.failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # this frame would hold the exception that holds it
