"""Memory budget: saved arrays stay in memory as long as there is room, then go to a store.

The array with the furthest next use is evicted first: until the plan of a backward pass gives the
order of use, the array that was saved first. A storage is evicted as a whole, with all arrays in
it; its room is free once they are written. Until then the arrays hold it: an array that cannot be
written stays, and the operation that needs the room raises the error. An in-place change evicts as
well, so that backward gets the saved values.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import TypeVar
from weakref import ref

from offgrad_storage import AbstractArrayStore, StoreError
from offgrad_storage.interrupts import MaskedLock, interruptible

from offgrad import memory
from offgrad.memory import Storage
from offgrad.policies import Spill
from offgrad.session.cached_storage import CachedArray, CachedStorage, Eviction, Room, StoreWrite
from offgrad.session.eviction_order import EvictionOrder
from offgrad.session.saved_array import Array, SavedArray
from offgrad.session.states import Evicting, InMemory, Stored

R = TypeVar("R")

_MAX_EAGER_NBYTES = 32 << 20


class _Putting(threading.local):
    """The budgets for which this thread is putting arrays in stores."""

    budgets: "tuple[MemoryBudget, ...]" = ()


_putting = _Putting()


def _trim(store: AbstractArrayStore) -> None:
    with suppress(StoreError):
        store.trim()


class MemoryBudget:
    """The saved arrays that share the room of one `Spill`. For use with the session's lock held.

    Puts and waits give up the lock: another thread may change the budget meanwhile.

    Args:
        spill: the bound, in bytes or in storages.
        open_store: returns the store to evict to: in a forked child another one.
        lock: the session's.
        prefetched_nbytes: returns the bytes that prefetches take of the same room.
        max_pack_nbytes: the size of a pack of small arrays in the store. There is room for two:
            one that is being filled, one that is being written.
    """

    def __init__(
        self,
        spill: Spill,
        open_store: Callable[[], AbstractArrayStore],
        lock: MaskedLock,
        prefetched_nbytes: Callable[[], int],
        max_pack_nbytes: int,
    ) -> None:
        self.lock = lock
        self._spill = spill
        self._open_store = open_store
        self._prefetched_nbytes = prefetched_nbytes
        self._max_pack_nbytes = max_pack_nbytes
        self._packs_room_nbytes = 2 * max_pack_nbytes
        self._used_store: AbstractArrayStore | None = None
        self._by_storage: dict[int, Room] = {}
        self._rooms: dict[int, Room] = {}
        self._order = EvictionOrder()
        self._evictions: OrderedDict[int, Eviction] = OrderedDict()
        self._held_nbytes = 0
        self._evicting_nbytes = 0
        self._freed: deque[Room] = deque()  # from weak references, whose callbacks take no lock
        self._eager_nbytes = 0  # written before their room is needed
        # Since the last pass ended: the bytes that were written and freed, and the most that these
        # and the bytes held came to together.
        self._written_nbytes = self._most_nbytes = 0
        self._passes = 0

    @property
    def store(self) -> AbstractArrayStore:
        """The store to evict to."""
        store = self._used_store = self._open_store()
        return store

    @property
    def held_nbytes(self) -> int:
        """Bytes of memory held, including memory that is being written, and packs of the store."""
        self._count_freed()
        return self._held_nbytes + self.packs_nbytes

    @property
    def packs_nbytes(self) -> int:
        """Bytes of memory that packs of small arrays hold in the store."""
        return 0 if self._used_store is None else self._used_store.packs_nbytes

    def trim_packs(self) -> None:
        """Have the store write packs, and drop those cached, if they take more than their room.

        For use without the lock.
        """
        store = self._used_store
        bounded = self._spill.nbytes is not None
        if bounded and store is not None and store.packs_nbytes > self._max_pack_nbytes:
            _trim(store)

    @property
    def is_evicting(self) -> bool:
        """Whether memory is being written that does not wait for this thread to put it."""
        thread = get_ident()
        return any(each.putting.owner != thread for each in self._evictions.values())

    def add(
        self, saved: SavedArray, storage: Storage, data: Array, attributes: Mapping[str, object]
    ) -> bool:
        """Hold `data`, a part of `storage`, for `saved`; return False if there cannot be room."""
        cached = self._find(storage)
        if cached is None:
            if not self.make_room(storage.root.nbytes):
                return False
            cached = self._find(storage)  # another thread may have added it meanwhile
        if cached is None:
            cached = CachedStorage(storage, self, self._freed)
            self._held_nbytes += cached.room.nbytes
            self._most_nbytes = max(self._most_nbytes, self._held_nbytes + self._written_nbytes)
            self._rooms[id(cached.room)] = cached.room
            self._by_storage[storage.uid] = cached.room
            self._order.add(cached.room)
        cached.arrays.append(CachedArray(ref(saved), data, attributes))
        saved.enter(InMemory(cached))
        storage.add_pending_write(saved)
        if self._evictions:  # the next put would raise the error of a failed write
            next(iter(self._evictions.values())).look()
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
        if nbytes > bound - self._packs_room_nbytes:
            return False
        self.reap()
        is_trimmed = False
        while self._staying_nbytes() + nbytes + self._eager_nbytes > bound and self._evict_next(
            retry=True
        ):
            pass
        while self._used_nbytes() + nbytes > bound:
            if self._evictions:
                # From now on, writes begin before their room is needed.
                self._eager_nbytes = min(_MAX_EAGER_NBYTES, bound // 4)
                self._wait_for(next(iter(self._evictions.values())))
            elif self.packs_nbytes > self._packs_room_nbytes and not is_trimmed:
                is_trimmed = True
                self._without_lock(self.trim_packs)
            elif not self._evict_next():
                return False
        return True

    def copy(self, data: Array) -> Array | None:
        """Return a copy of `data` that has room; None if there cannot be."""
        if not self.make_room(data.nbytes):
            return None
        self._held_nbytes += data.nbytes  # other threads must not take the room meanwhile
        try:
            return self._without_lock(partial(memory.copy, data))
        finally:
            self._held_nbytes -= data.nbytes

    def fits(self, saved: SavedArray, nbytes: int) -> bool:
        """Return whether there is room to prefetch `saved`, of which memory has `nbytes`.

        A pack is read as a whole, and then serves several arrays, without prefetches.
        """
        bound = self._spill.nbytes
        self.reap()
        if saved.stored is not None and saved.nbytes < self._max_pack_nbytes:
            return False
        return bound is None or self._used_nbytes() + nbytes <= bound

    def plan(self, order: Sequence[SavedArray]) -> None:
        """Learn the order in which a backward pass will use the arrays."""
        self._passes += 1
        self.reap()
        states = [saved.state for saved in reversed(order)]  # so the first use of each counts
        self._order.plan(each.cached.room for each in states if isinstance(each, InMemory))

    def finish(self) -> None:
        """End a pass: arrays that it did not use are no longer planned.

        If there was room for all that was saved since the pass before, writes do not begin early.
        """
        self._passes -= 1
        self.reap()
        if not self._passes:
            self._order.forget_plan()
            bound = self._spill.nbytes
            most_nbytes = self._most_nbytes  # 0 if a further pass went through the same graph
            if bound is not None and 0 < most_nbytes <= bound - self._packs_room_nbytes:
                self._eager_nbytes = 0
            self._written_nbytes = self._most_nbytes = 0

    def evict(self, cached: CachedStorage) -> None:
        """Begin to write all arrays of `cached`, which no eviction counts.

        Raises:
            StoreError: of the store; arrays that are not written stay.
        """
        cached.failure = None
        self._order.remove(cached.room)
        eviction = cached.eviction = Eviction(cached)
        eviction.putting.acquire()
        self._evictions[id(eviction)] = eviction
        self._evicting_nbytes += eviction.nbytes
        cached.room.nbytes = 0  # the eviction counts it from now on
        try:
            while cached.arrays:
                index = len(cached.arrays) - 1
                array = cached.arrays[index]
                saved = array.saved()
                if saved is not None:
                    self._put(cached, array, saved)
                del cached.arrays[index]  # another thread may have added arrays behind it
        finally:
            eviction.is_put = True
            eviction.putting.release()
            if cached.arrays:
                self._forget(eviction)
                self._return(eviction, cached)
            elif self._find(cached.storage) is cached:
                del self._by_storage[cached.storage.uid]

    def clear(self, cached: CachedStorage) -> None:
        """Evict `cached` and wait for its writes: see `CachedStorage.clear`."""
        # Another thread may meanwhile see a write fail, and evict the arrays again.
        while cached.eviction is not None or cached.arrays:
            if cached.eviction is None:
                self.evict(cached)
            else:
                self._wait_for(cached.eviction)
                cached.raise_failure()

    def touch(self, cached: CachedStorage) -> None:
        """Saved again: move it to the most-recently-used end."""
        self._order.touch(cached.room)

    def reap(self) -> None:
        """Free memory whose writes are done, and count memory that was freed."""
        self._count_freed()
        while self._evictions:
            eviction = next(iter(self._evictions.values()))
            eviction.look()
            if eviction.writes or not eviction.is_put:
                return
            self._end(eviction)

    def reclaim(self) -> None:
        """Evict everything.

        Raises:
            StoreError: of the store; arrays that are not written stay.
        """
        try:
            while self._evict_next(retry=True):
                pass
        finally:
            for eviction in list(self._evictions.values()):
                # Another thread's put may need memory, too: these threads must not wait for it.
                if eviction.is_put:
                    self._wait_for(eviction)
        self._evict_next()  # raises the failure of arrays that came back

    def forget_other_threads(self) -> None:
        """In a forked child: take back the arrays that another thread was putting in the store."""
        self._used_store = None
        for eviction in list(self._evictions.values()):
            if eviction.is_put or self in _putting.budgets:
                continue
            eviction.is_put = True
            cached = eviction.cached()
            if cached is not None:
                for array in cached.arrays:
                    saved = array.saved()
                    if saved is not None and isinstance(saved.state, Evicting):
                        saved.enter(InMemory(cached))
                self._forget(eviction)
                self._return(eviction, cached)

    def _find(self, storage: Storage) -> CachedStorage | None:
        """Return the cached storage that takes further arrays of `storage`."""
        room = self._by_storage.get(storage.uid)
        return None if room is None else room.cached()

    def _count_freed(self) -> None:
        while self._freed:
            room = self._freed.popleft()
            self._held_nbytes -= room.nbytes
            self._order.remove(room)
            del self._rooms[id(room)]
            if self._by_storage.get(room.uid) is room:
                del self._by_storage[room.uid]

    def _used_nbytes(self) -> int:
        """Return the bytes taken of the bound, with the room for packs."""
        packs_nbytes = self.packs_nbytes
        held_nbytes = self.held_nbytes - packs_nbytes + max(packs_nbytes, self._packs_room_nbytes)
        return held_nbytes + self._prefetched_nbytes()

    def _staying_nbytes(self) -> int:
        self._count_freed()
        return self._held_nbytes - self._evicting_nbytes + self._packs_room_nbytes

    def _without_lock(self, action: Callable[[], R]) -> R:
        self.lock.release()
        try:
            return action()
        finally:
            self.lock.reacquire()

    def _evict_next(self, retry: bool = False) -> bool:
        """Begin to evict the storage with the furthest next use; return False if there is none.

        With `retry`, also one whose write failed before; else that failure is raised.
        """
        if self in _putting.budgets:  # the store needs memory, and calls back for room
            return False
        cached = self._order.next()
        if cached is None:
            return False
        if not retry:
            cached.raise_failure()
        self.evict(cached)
        return True

    def _put(self, cached: CachedStorage, array: CachedArray, saved: SavedArray) -> None:
        """Put one dirty array in the store, without the lock; on an error it stays dirty."""
        store, write, budgets = self.store, StoreWrite(), _putting.budgets
        if self._max_pack_nbytes and self.packs_nbytes > self._max_pack_nbytes:
            self._without_lock(partial(_trim, store))  # this put may begin a third pack
        source = write.source(array.data)
        saved.enter(Evicting(cached, None))
        _putting.budgets = (*budgets, self)
        self.lock.release()
        try:
            handle = store.put(source, attributes=array.attributes)
        except BaseException:
            self.lock.reacquire()
            saved.enter(InMemory(cached))
            raise
        else:
            self.lock.reacquire()
        finally:
            _putting.budgets = budgets
        write.handle = ref(handle)
        saved.enter(Evicting(cached, Stored(handle)))
        saved.ledger.wrote(saved)
        cached.evicted.append(array)
        cached.writes.append(write)
        if not self._spill.lossless:
            saved.forget_copies()

    def _wait_for(self, eviction: Eviction) -> None:
        """Wait without the lock until the writes of `eviction` are done, and end it."""
        store = self.store
        self.lock.release()
        try:
            if not eviction.is_put:
                with interruptible, eviction.putting:
                    pass
            for write in tuple(eviction.writes):
                write.wait(store)
        finally:
            self.lock.reacquire()
        if id(eviction) in self._evictions:
            self._end(eviction)

    def _end(self, eviction: Eviction) -> None:
        """End an eviction whose writes are all done."""
        cached = eviction.cached()
        if cached is not None:
            cached.end_writes()
        self._forget(eviction)
        if cached is None or not cached.arrays:
            self._held_nbytes -= eviction.nbytes
            self._written_nbytes += eviction.nbytes
        else:
            self._return(eviction, cached)

    def _forget(self, eviction: Eviction) -> None:
        """Remove `eviction`."""
        del self._evictions[id(eviction)]
        self._evicting_nbytes -= eviction.nbytes
        cached = eviction.cached()
        if cached is not None:
            cached.eviction = None

    def _return(self, eviction: Eviction, cached: CachedStorage) -> None:
        """Hold the memory of `eviction` again: arrays in it could not be written."""
        cached.room.nbytes = eviction.nbytes
        if self._find(cached.storage) is None:
            self._by_storage[cached.storage.uid] = cached.room
        self._order.add(cached.room, first=True)
