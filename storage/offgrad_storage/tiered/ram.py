"""The RAM tier of a TieredStore: the transitions of its arrays, and the budget.

A new array is copied to RAM or passed down to a lower tier. To evict an array, it is put into the
lower tier; its memory is released when the write is done and the memory is needed. A prefetch reads
it back into memory of the store, and the next get returns that memory.
"""

from __future__ import annotations

import queue
import weakref
from typing import Any

from numpy.typing import NDArray

from offgrad_storage.base import Handle
from offgrad_storage.errors import StoreError, as_store_error
from offgrad_storage.memory.buffer_pool import lease_of
from offgrad_storage.tiered.eviction_order import EvictionOrder
from offgrad_storage.tiered.states import (
    COPYING_IN,
    DEAD,
    CopyingIn,
    Dead,
    Ending,
    Evicting,
    InRam,
    Lower,
    New,
    Prefetching,
    Starting,
    TierEntry,
    TierState,
    Watch,
    Writing,
)

Array = NDArray[Any]

_NEXT: dict[type[TierState], tuple[type[TierState], ...]] = {
    New: (CopyingIn, Lower),
    CopyingIn: (InRam, Dead),
    InRam: (Evicting, Dead),
    Evicting: (Writing, InRam),
    Writing: (Lower, InRam, Dead),
    Lower: (Starting, Dead),
    Starting: (Prefetching, Lower),
    Prefetching: (Ending, Dead),
    Ending: (Lower, Prefetching),
    Dead: (),
}


class RamTier:
    """All arrays of a TieredStore, and the bytes of RAM they take. Needs the store's lock.

    Released memory counts until its last reference is gone: a lower tier may still read or write
    it for a dead array, and a get may be copying it.

    Args:
        nbytes: bound of ``used_nbytes``.

    Attributes:
        resident_nbytes: bytes of arrays in RAM that a get can copy.
        logical_nbytes: bytes of the arrays in ``live``.
        live: stored arrays, by serial. They may have died: see ``handle_deaths``.
        moving: arrays in a moving state, by serial.
        unraised: failures of writes that no put has raised.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.resident_nbytes = self.logical_nbytes = 0
        self.order = EvictionOrder()
        self.live: dict[int, Watch] = {}
        self.moving: dict[int, TierEntry] = {}
        self.unraised: list[StoreError] = []
        self._counted_nbytes = 0
        self._leaving: dict[int, Watch] = {}  # the first eviction first
        self._leaving_nbytes = 0
        self._released: list[tuple[weakref.ref[Any], int]] = []
        self._deaths: queue.SimpleQueue[Watch] = queue.SimpleQueue()

    # ---- the budget

    @property
    def used_nbytes(self) -> int:
        """Bytes of RAM in use."""
        self.handle_deaths()
        if not self._released:
            return self._counted_nbytes
        return self._counted_nbytes + sum(n for memory, n in self._released if memory() is not None)

    def has_room(self, entry: TierEntry) -> bool:
        """Whether the bytes of ``entry`` fit, after finishing evictions as far as needed."""
        while self.used_nbytes + entry.nbytes > self.nbytes:
            if not self._finish_eviction():
                return False
        return True

    def needs_eviction(self, entry: TierEntry) -> bool:
        """Whether ``entry`` would not fit even after all evictions under way."""
        return self.used_nbytes - self._leaving_nbytes + entry.nbytes > self.nbytes

    def eviction_candidate(self, beyond: TierEntry) -> TierEntry | None:
        """The array, in RAM or prefetched, to evict for ``beyond``; None if none is used later."""
        while (serial := self.order.furthest(beyond.serial)) is not None:
            watch = self.live[serial]
            entry = watch()
            if entry is not None:
                return entry
            self.on_dead(watch)
        return None

    def first_leaving(self) -> tuple[Handle | None, bool]:
        """Of the first eviction: the handle below, and whether a thread is still putting it there;
        None and False if there is no eviction.
        """
        entry = self._first_leaving()
        if entry is None:
            return None, False
        return entry.tier_state.lower, entry.tier_state.is_moving

    def _first_leaving(self) -> TierEntry | None:
        while self._leaving:
            watch = next(iter(self._leaving.values()))
            entry = watch()
            if entry is not None:
                return entry
            self.on_dead(watch)
        return None

    # ---- puts and evictions

    def begin_copy(self, entry: TierEntry) -> None:
        """Claim memory, for which there is room, for a new array."""
        self._change(entry, COPYING_IN)

    def on_copied(self, entry: TierEntry, array: Array) -> None:
        """A new array was copied to claimed memory."""
        self._change(entry, InRam(array))
        self._add_live(entry)

    def on_copy_failed(self, entry: TierEntry) -> None:
        """A new array was not copied to the memory claimed for it."""
        self._change(entry, DEAD)

    def on_passed_down(self, entry: TierEntry, lower: Handle) -> None:
        """A new array was put directly into a lower tier."""
        self._change(entry, Lower(lower))
        self._add_live(entry)

    def begin_eviction(self, entry: TierEntry) -> None:
        """A thread is about to put the array below, or to cancel its prefetch."""
        state = entry.tier_state
        if isinstance(state, InRam):
            self._change(entry, Evicting(state.array, state.failure, state.tier))
        else:
            self.begin_end(entry)

    def on_evicted(self, entry: TierEntry, placed: tuple[Handle, int] | None) -> None:
        """The array was put into a lower tier (handle, index), or stays because that failed."""
        state = entry.tier_state
        assert isinstance(state, Evicting)
        if state.failure is not None:  # it was raised, or the array put elsewhere
            self.unraised.remove(state.failure)
        self._change(entry, InRam(state.array) if placed is None else Writing(state.array, *placed))
        self._end_move(entry)

    def _finish_eviction(self) -> bool:
        """Release the memory of the first eviction if its write is done; undo it if it failed."""
        entry = self._first_leaving()
        if entry is None or not isinstance(state := entry.tier_state, Writing):
            return False
        captured = state.lower.captured  # looked at first: a failed write may become captured
        failure = None
        try:
            state.lower.check()
        except StoreError as error:
            failure = as_store_error(error, "evicting an array", store="TieredStore")
        if failure is not None:
            self.unraised.append(failure)
            self._change(entry, InRam(state.array, failure, state.tier))
        elif captured:
            self._change(entry, Lower(state.lower))
        return captured or failure is not None

    # ---- prefetches and gets

    def begin_prefetch(self, entry: TierEntry, counted: bool) -> None:
        """A thread is about to start a read, into memory that counts and for which there is room,
        or into an array of the user.
        """
        lower = entry.tier_state.lower
        assert lower is not None
        self._change(entry, Starting(lower, counted))

    def on_prefetched(self, entry: TierEntry, target: Array | None, begun: bool) -> None:
        """The read into ``target`` has begun, or failed to."""
        state = entry.tier_state
        assert isinstance(state, Starting)
        if begun:
            assert target is not None
            self._change(entry, Prefetching(state.lower, target, state.is_counted))
        else:
            self._change(entry, Lower(state.lower))
            if target is not None and state.is_counted:
                self._release(_memory_ref(target), entry.nbytes)
        self._end_move(entry)

    def begin_end(self, entry: TierEntry) -> None:
        """A thread is about to end a prefetch."""
        state = entry.tier_state
        assert isinstance(state, Prefetching)
        self._change(entry, Ending(state.lower, state.target, state.is_counted))

    def on_ended(self, entry: TierEntry, ended: bool, taken: bool = False) -> None:
        """The prefetch has ended, or perhaps not: then a get or cancelling it ends it again.

        With ``taken`` its array belongs to the caller of a get now.
        """
        state = entry.tier_state
        assert isinstance(state, Ending)
        if ended:
            self._change(entry, Lower(state.lower), taken=taken)
        else:
            self._change(entry, Prefetching(state.lower, state.target, state.is_counted))
        self._end_move(entry)

    # ---- the end

    def handle_deaths(self) -> None:
        """Uncount the arrays that have died. Cheap if there are none."""
        for _ in range(self._deaths.qsize()):
            self.on_dead(self._deaths.get_nowait())

    def on_dead(self, watch: Watch) -> None:
        """An array has died with its handle. Neither waits nor raises, nor minds a second call."""
        if self.live.pop(watch.serial, None) is not None:
            self.logical_nbytes -= watch.nbytes
            self.order.forget(watch.serial)
            self._count(watch, DEAD, None)

    def on_closed(self) -> None:
        """The store was closed; threads that move arrays finish first."""
        for watch in list(self.live.values()):
            entry = watch()
            if entry is None:
                self.on_dead(watch)
            else:
                del self.live[entry.serial]
                self.logical_nbytes -= entry.nbytes
                self.order.forget(entry.serial)
                entry.requested = None
                if not entry.tier_state.is_moving:
                    self._change(entry, DEAD)

    def _end_move(self, entry: TierEntry) -> None:
        if entry.serial not in self.live:  # the store was closed
            self._change(entry, DEAD)

    # ---- the states, and the figures that follow from them

    def _watch(self, entry: TierEntry) -> Watch:
        entry.watch = watch = Watch(entry, self._deaths.put)
        watch.serial, watch.nbytes = entry.serial, entry.nbytes
        watch.kind, watch.is_counted, watch.memory = New, False, None
        return watch

    def _add_live(self, entry: TierEntry) -> None:
        assert entry.watch is not None
        self.handle_deaths()
        self.live[entry.serial] = entry.watch
        self.logical_nbytes += entry.nbytes

    def _change(self, entry: TierEntry, state: TierState, *, taken: bool = False) -> None:
        """Change the state; with ``taken`` the memory that leaves it does not count any more."""
        before = entry.tier_state
        if type(state) not in _NEXT[type(before)]:
            raise RuntimeError(
                f"TieredStore, {entry}: it is {before.name}, so it cannot become {state.name}; "
                "this is an error of the store"
            )
        entry.tier_state = state
        watch = entry.watch or self._watch(entry)
        memory = state.memory
        if memory is None:
            self._count(watch, state, None, taken)
        elif memory is before.memory:
            self._count(watch, state, watch.memory)
        else:
            self._count(watch, state, _memory_ref(memory))
        if state.is_moving:
            self.moving[entry.serial] = entry
        elif before.is_moving:
            del self.moving[entry.serial]

    def _count(
        self,
        watch: Watch,
        state: TierState,
        memory: weakref.ref[Any] | None,
        taken: bool = False,
    ) -> None:
        """Count an array as in ``state``; its memory that leaves, too, unless it was ``taken``."""
        before, serial, nbytes = watch.kind, watch.serial, watch.nbytes
        self._counted_nbytes += nbytes * (state.is_counted - watch.is_counted)
        self.resident_nbytes += nbytes * (state.is_resident - before.is_resident)
        if state.is_leaving != before.is_leaving:
            if state.is_leaving:
                self._leaving[serial] = watch
                self._leaving_nbytes += nbytes
            else:
                del self._leaving[serial]
                self._leaving_nbytes -= nbytes
        if state.is_evictable and state.is_counted:
            self.order.add(serial)
        elif before.is_evictable:
            self.order.discard(serial)
        if watch.memory is not None and watch.memory is not memory and not taken:
            self._release(watch.memory, nbytes)
        watch.kind, watch.is_counted, watch.memory = type(state), state.is_counted, memory

    def _release(self, memory: weakref.ref[Any], nbytes: int) -> None:
        """Count ``memory``, which no state holds any more, until it is gone."""
        alive = [each for each in self._released if each[0]() is not None]
        alive.append((memory, nbytes))
        self._released = alive

    def _check(self) -> None:
        """Raise AssertionError unless the figures and tables agree with the states."""
        entries = {entry: entry.tier_state for entry in self.moving.values()}
        for watch in list(self.live.values()):
            entry = watch()
            if entry is None:
                self.on_dead(watch)
            else:
                assert not isinstance(entry.tier_state, New | Dead)
                entries[entry] = entry.tier_state
        for entry, state in entries.items():
            known = entry.watch
            assert known is not None
            assert (known.kind, known.is_counted) == (type(state), state.is_counted)
            assert (known.memory is None) == (state.memory is None)

        def having(attribute: str) -> set[TierEntry]:
            return {entry for entry, state in entries.items() if getattr(state, attribute)}

        def nbytes(some: set[TierEntry]) -> int:
            return sum(entry.nbytes for entry in some)

        counted, leaving = having("is_counted"), having("is_leaving")
        assert self._counted_nbytes == nbytes(counted)
        assert self.resident_nbytes == nbytes(having("is_resident"))
        assert self._leaving_nbytes == nbytes(leaving)
        assert self._leaving.keys() == {entry.serial for entry in leaving}
        assert set(self.moving.values()) == having("is_moving")
        assert self.logical_nbytes == sum(watch.nbytes for watch in self.live.values())
        assert 0 <= self._counted_nbytes <= self.used_nbytes <= self.nbytes
        members = {entry.serial for entry in having("is_evictable") & counted}
        assert members <= self.live.keys()
        self.order._check(members, self.live.keys())


def _memory_ref(array: Array) -> weakref.ref[Any]:
    """A weak reference that dies with the memory of ``array``.

    Memory of a BufferPool dies with its lease, the base of all views. Other memory is watched by
    the array itself, because its base may be shared.
    """
    lease = lease_of(array)
    return weakref.ref(array if lease is None else lease)
