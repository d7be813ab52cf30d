"""The RAM tier of a TieredStore: its arrays, their transitions, and the choice of evicted ones.

A new array is copied to RAM or passed down to a lower tier. To evict an array, it is put into the
lower tier; its memory is reclaimed when the write is done and the memory is needed. A prefetch
reads it back into memory of the store, and the next get returns that memory.
"""

from __future__ import annotations

import queue
import weakref
from typing import Any

from numpy.typing import NDArray

from offgrad_storage.base import Handle
from offgrad_storage.errors import StoreError, as_store_error
from offgrad_storage.tiered.budget import RamBudget, memory_ref
from offgrad_storage.tiered.eviction_order import EvictionOrder
from offgrad_storage.tiered.states import (
    COPYING_IN,
    DEAD,
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


class RamTier:
    """All arrays of a TieredStore. Its methods need the store's lock, and never wait.

    Args:
        nbytes: bound of the bytes of RAM.

    Attributes:
        budget: counts the bytes of RAM.
        order: sorts the arrays that may be evicted.
        logical_nbytes: bytes of the arrays in ``live``.
        live: stored arrays, by serial. They may have died: see ``handle_deaths``.
        moving: arrays in a moving state, by serial.
        evictions: arrays on their way to a lower tier, by serial, the first one first.
        unraised: failures of writes that no put has raised.
    """

    def __init__(self, nbytes: int) -> None:
        self.budget = RamBudget(nbytes)
        self.order = EvictionOrder()
        self.logical_nbytes = 0
        self.live: dict[int, Watch] = {}
        self.moving: dict[int, TierEntry] = {}
        self.evictions: dict[int, Watch] = {}
        self.unraised: list[StoreError] = []
        self._deaths: queue.SimpleQueue[Watch] = queue.SimpleQueue()

    # ---- room

    def has_room(self, entry: TierEntry) -> bool:
        """Whether the bytes of ``entry`` fit, after reclaiming memory as far as needed."""
        self.handle_deaths()
        while not self.budget.fits(entry.nbytes):
            if not self._reclaim():
                return False
        return True

    def needs_eviction(self, entry: TierEntry) -> bool:
        """Whether ``entry`` would not fit even after all evictions under way."""
        self.handle_deaths()
        return not self.budget.fits_after_evictions(entry.nbytes)

    def begin_eviction(self, beyond: TierEntry, *, retry: bool) -> TierEntry | None:
        """Begin to evict the array, in RAM or prefetched, with the furthest next use.

        None if that is not further than the next use of ``beyond``; without ``retry`` also if its
        last write has failed.
        """
        victim = self._furthest(beyond)
        if victim is None:
            return None
        state = victim.tier_state
        if not isinstance(state, InRam):
            self.begin_end(victim)
        elif state.failure is None or retry:
            self._change(victim, Evicting(state.array, state.failure, state.next_tier))
        else:
            return None
        return victim

    def first_eviction(self) -> tuple[Handle | None, bool]:
        """Of the first eviction: the handle below, and whether a thread is still putting it there;
        None and False if there is no eviction.
        """
        entry = self._first_evicted()
        if entry is None:
            return None, False
        return entry.tier_state.lower, entry.tier_state.is_moving

    def _first_evicted(self) -> TierEntry | None:
        while self.evictions:
            watch = next(iter(self.evictions.values()))
            entry = watch()
            if entry is not None:
                return entry
            self.on_dead(watch)
        return None

    def _furthest(self, beyond: TierEntry) -> TierEntry | None:
        while (serial := self.order.furthest(beyond.serial)) is not None:
            watch = self.live[serial]
            entry = watch()
            if entry is not None:
                return entry
            self.on_dead(watch)
        return None

    def _reclaim(self) -> bool:
        """Release the memory of the first eviction if its write is done; undo it if it failed."""
        entry = self._first_evicted()
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
            self._change(entry, InRam(state.array, failure, state.tier + 1))
        elif captured:
            self._change(entry, Lower(state.lower))
        return captured or failure is not None

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

    def on_evicted(self, entry: TierEntry, placed: tuple[Handle, int] | None) -> None:
        """The array was put into a lower tier (handle, index), or stays because that failed."""
        state = entry.tier_state
        assert isinstance(state, Evicting)
        if state.failure is not None:  # it was raised, or the array put elsewhere
            self.unraised.remove(state.failure)
        self._change(entry, InRam(state.array) if placed is None else Writing(state.array, *placed))
        self._end_move(entry)

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
                self.budget.release(memory_ref(target), entry.nbytes)
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
        """An array has died with its handle. A second call does nothing."""
        if self._forget(watch):
            self._record(watch, DEAD, None)

    def on_closed(self) -> None:
        """The store was closed; threads that move arrays finish first."""
        for watch in list(self.live.values()):
            entry = watch()
            if entry is None:
                self.on_dead(watch)
            else:
                self._forget(watch)
                entry.requested = None
                if not entry.tier_state.is_moving:
                    self._change(entry, DEAD)

    def _forget(self, watch: Watch) -> bool:
        if self.live.pop(watch.serial, None) is None:
            return False
        self.logical_nbytes -= watch.nbytes
        self.order.forget(watch.serial)
        return True

    def _end_move(self, entry: TierEntry) -> None:
        if entry.serial not in self.live:  # the store was closed
            self._change(entry, DEAD)

    # ---- the states, and the tables and figures that follow from them

    def _add_live(self, entry: TierEntry) -> None:
        assert entry.watch is not None
        self.handle_deaths()
        self.live[entry.serial] = entry.watch
        self.logical_nbytes += entry.nbytes

    def _watch(self, entry: TierEntry) -> Watch:
        entry.watch = watch = Watch(entry, self._deaths.put)
        watch.serial, watch.nbytes = entry.serial, entry.nbytes
        watch.kind, watch.is_counted, watch.memory = New, False, None
        return watch

    def _change(self, entry: TierEntry, state: TierState, *, taken: bool = False) -> None:
        """Change the state; with ``taken`` the memory that leaves it does not count any more."""
        before = entry.tier_state
        entry.change(state)
        watch = entry.watch or self._watch(entry)
        memory = None
        if state.memory is not None:
            same = state.memory is before.memory
            memory = watch.memory if same else memory_ref(state.memory)
        self._record(watch, state, memory, taken)
        if state.is_moving:
            self.moving[entry.serial] = entry
        elif before.is_moving:
            del self.moving[entry.serial]

    def _record(
        self,
        watch: Watch,
        state: TierState,
        memory: weakref.ref[Any] | None,
        taken: bool = False,
    ) -> None:
        before, serial = watch.kind, watch.serial
        self.budget.count(watch, state, memory, taken)
        if state.is_leaving and not before.is_leaving:
            self.evictions[serial] = watch
        elif before.is_leaving and not state.is_leaving:
            del self.evictions[serial]
        if state.is_evictable and state.is_counted:
            self.order.add(serial)
        elif before.is_evictable:
            self.order.discard(serial)
