"""Residents: what is saved for backward and stays in memory as long as there is room for it.

What makes way is what backward uses last: what was saved first, until the plan of a pass tells
better. Memory makes way as a whole, with all that was saved of it; the room is there when it is
written. Until then the entries hold it: what cannot be written stays, and who needs its room is
told why. A change in place makes way as well, so that backward gets what was saved.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary, ref

from offgrad_storage import AbstractArrayStore

from offgrad.memory import Storage
from offgrad.policies.base import Spill
from offgrad.session.budgeted_storage import Lodger, Residence, Write
from offgrad.session.layout import Array
from offgrad.session.saved_array import Entry

_MOST_EAGER = 32 << 20


class _Leaving(NamedTuple):
    """Memory that is being written: for its entries, or else held by the store alone."""

    residence: ref[Residence]
    writes: Sequence[Write]
    nbytes: int


_Queue = OrderedDict[int, ref[Residence]]


class Residents:
    """Entries that share the room of one `Spill`. For use with the session's lock held.

    Args:
        spill: how much may be here, of bytes or of residences.
        open_store: returns where the rest goes: in a forked child another store.
        lock: the session's.
        ahead_nbytes: tells how much is read ahead: it takes of the same room.
    """

    def __init__(
        self,
        spill: Spill,
        open_store: Callable[[], AbstractArrayStore],
        lock: AbstractContextManager[Any],
        ahead_nbytes: Callable[[], int],
    ) -> None:
        self.lock = lock
        self._spill = spill
        self._open_store = open_store
        self._ahead_nbytes = ahead_nbytes
        self._by_storage: WeakValueDictionary[int, Residence] = WeakValueDictionary()
        # The first of a queue is used last; all of the first queue after all of the second.
        self._unplanned: _Queue = OrderedDict()
        self._planned: _Queue = OrderedDict()
        self._leaving: deque[_Leaving] = deque()
        self._held_nbytes = 0
        self._freed: deque[int] = deque()  # from finalizers, which cannot take a lock
        self._eager_nbytes = 0  # written before there is need for the room
        self._passes = 0
        self._evicting = False

    @property
    def store(self) -> AbstractArrayStore:
        """Where the rest goes."""
        return self._open_store()

    @property
    def held_nbytes(self) -> int:
        """Bytes of memory held, with what is being written."""
        self._settle_freed()
        return self._held_nbytes

    def add(self, entry: Entry, storage: Storage, data: Array, facts: Mapping[str, object]) -> bool:
        """Hold `data`, a part of `storage`, for `entry`; False if there cannot be room for it."""
        residence = self._by_storage.get(storage.uid)
        if residence is None:
            if not self.make_room(storage.root.nbytes):
                return False
            residence = Residence(storage, self, self._freed)
            self._held_nbytes += residence.nbytes
            self._by_storage[storage.uid] = residence
            self._forget(residence)  # one that is dead may have had the same number
            self._unplanned[id(residence)] = ref(residence)
        residence.lodgers.append(Lodger(ref(entry), data, facts))
        entry.residence = residence
        storage.add_pending_write(entry)
        last = self._spill.last
        while last is not None and len(self._by_storage) > last and self._evict_next():
            pass
        self.sweep()
        return True

    def make_room(self, nbytes: int) -> bool:
        """Have what is used last make way for so many bytes; False if there cannot be room.

        Raises:
            StoreError: what would have to make way cannot be written, and stays.
        """
        bound = self._spill.nbytes
        if bound is None:
            return True
        if nbytes > bound:
            return False
        self.sweep()
        while self._staying_nbytes() + nbytes + self._eager_nbytes > bound and self._evict_next(
            again=True
        ):
            pass
        while self.held_nbytes + self._ahead_nbytes() + nbytes > bound:
            if self._leaving:
                # From now on, writes begin before their room is needed.
                self._eager_nbytes = min(_MOST_EAGER, bound // 4)
                self._wait()
            elif not self._evict_next():
                return False
        return True

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes more may be read ahead."""
        bound = self._spill.nbytes
        self.sweep()
        return bound is None or self.held_nbytes + self._ahead_nbytes() + nbytes <= bound

    def plan(self, order: Sequence[Entry]) -> None:
        """Learn in which order entries will be wanted."""
        self._passes += 1
        self.sweep()
        for entry in reversed(order):  # so the first use of each counts
            residence = entry.residence
            if residence is not None:
                self._forget(residence)
                self._planned[id(residence)] = ref(residence)

    def finish(self) -> None:
        """A pass is over: what it left is as if it had not been planned."""
        self._passes -= 1
        if not self._passes:
            left = (*self._planned.items(), *self._unplanned.items())
            self._planned = OrderedDict()
            self._unplanned = OrderedDict((key, each) for key, each in left if each() is not None)
        self.sweep()

    def evict(self, residence: Residence) -> None:
        """Begin to write all entries of `residence`.

        Raises:
            StoreError: as the store says it; what is not written stays.
        """
        residence.failure = None
        self._evicting = True  # a store may ask for memory, and so for room here
        try:
            while residence.lodgers:
                lodger = residence.lodgers[-1]
                entry = lodger.entry()
                if entry is not None:
                    source = lodger.data.view()
                    entry.stored = self.store.put(source, attributes=lodger.facts)
                    entry.tally.wrote(id(entry), entry.stored)
                    entry.residence, entry.leaving = None, residence
                    residence.put.append(lodger)
                    if not self._spill.lossless:
                        entry.is_only_stored()
                    residence.writes.append(Write(ref(entry.stored), ref(source)))
                residence.lodgers.pop()
        finally:
            self._evicting = False
        if self._by_storage.get(residence.storage.uid) is residence:
            del self._by_storage[residence.storage.uid]
        self._forget(residence)
        self._leaving.append(_Leaving(ref(residence), residence.writes, residence.nbytes))
        residence.nbytes = 0  # counted there from now on

    def clear(self, residence: Residence) -> None:
        """Have all entries of `residence` written, and wait for that: see there."""
        if residence.lodgers:
            self.evict(residence)
        while any(each.residence() is residence for each in self._leaving):
            self._wait()
        self._raise_failure(residence)

    def touch(self, residence: Residence) -> None:
        """It was saved once more, so it will be used sooner."""
        if id(residence) in self._unplanned:
            self._unplanned.move_to_end(id(residence))

    def sweep(self) -> None:
        """Let go of memory that is written, and note what else is gone."""
        self._settle_freed()
        while self._leaving and not any(write.pending for write in self._leaving[0].writes):
            self._end_leaving()

    def reclaim(self) -> None:
        """Make all the room there can be.

        Raises:
            StoreError: as the store says it; what is not written stays.
        """
        try:
            while self._evict_next(again=True):
                pass
        finally:
            while self._leaving:
                self._wait()
        self._evict_next()  # of what is back

    def _forget(self, residence: Residence) -> None:
        self._unplanned.pop(id(residence), None)
        self._planned.pop(id(residence), None)

    def _settle_freed(self) -> None:
        while self._freed:
            self._held_nbytes -= self._freed.popleft()

    def _staying_nbytes(self) -> int:
        return self.held_nbytes - sum(each.nbytes for each in self._leaving)

    def _evict_next(self, again: bool = False) -> bool:
        """Begin to write what is used last, `again` if that failed before; False if nothing is."""
        if self._evicting:
            return False
        for queue in (self._unplanned, self._planned):
            while queue:
                key, reference = next(iter(queue.items()))
                residence = reference()
                if residence is not None:
                    if not again:
                        self._raise_failure(residence)
                    self.evict(residence)
                    return True
                del queue[key]
        return False

    def _wait(self) -> None:
        for write in self._leaving[0].writes:
            handle = write.handle()
            if handle is not None:
                handle.wait_captured()
            elif write.pending:
                self.store.flush()
        self._end_leaving()

    def _end_leaving(self) -> None:
        """All writes of what began to leave first are done."""
        leaving = self._leaving.popleft()
        residence = leaving.residence()
        if residence is not None:
            residence.end()
        if residence is None or not residence.lodgers:
            self._held_nbytes -= leaving.nbytes
            return
        residence.nbytes = leaving.nbytes
        self._by_storage.setdefault(residence.storage.uid, residence)
        self._unplanned[id(residence)] = ref(residence)
        self._unplanned.move_to_end(id(residence), last=False)

    def _raise_failure(self, residence: Residence) -> None:
        failure, residence.failure = residence.failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # or it would hold itself, by this frame
