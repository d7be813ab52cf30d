"""The RAM tier of a TieredStore: the state of each array, its transitions, and the budget.

A new array is copied to RAM or passed down to a lower tier. To evict an array, it is put into the
lower tier; its memory is released when the write is done and the memory is needed. A prefetch reads
it back into memory of the store, and the next get returns that memory.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from offgrad_storage.base import Handle
from offgrad_storage.entry import Entry
from offgrad_storage.memory.buffer_pool import lease_of
from offgrad_storage.tiered.eviction_order import EvictionOrder

Array = NDArray[Any]


class TierState(enum.Enum):
    """Where an array is."""

    NOT_STORED = "not stored"
    """Not stored yet, or dead."""
    COPYING_IN = "copying in"
    """Memory is claimed in RAM, and the array is being copied there."""
    RAM = "ram"
    EVICTING = "evicting"
    """In RAM, and put into the lower tier: perhaps written already."""
    LOWER = "lower"
    PREFETCHING = "prefetching"
    """In the lower tier, and being read into ``target``."""


class TierEntry(Entry):
    """One array of a TieredStore.

    Attributes:
        tier_state: the array's state.
        moving: whether a thread is changing ``tier_state`` with the lock released; until it is
            done it alone may change the entry, and it wakes the waiting threads.
        array: the copy in RAM.
        lower: the handle in the lower tier.
        failed_lower: a handle in ``tier`` whose write failed.
        tier: index of the lower tier that has, or last had, the array.
        target: the array that the next get without ``out`` returns.
        counted: whether ``target`` belongs to the store and counts in its budget.
    """

    __slots__ = (
        "array",
        "counted",
        "failed_lower",
        "lower",
        "moving",
        "target",
        "tier",
        "tier_state",
    )

    def __init__(self, serial: int, array: Array, attributes: Mapping[str, object]) -> None:
        super().__init__(serial, array, attributes)
        self.tier_state = TierState.NOT_STORED
        self.moving = False
        self.array: Array | None = None
        self.lower: Handle | None = None
        self.failed_lower: Handle | None = None
        self.tier = -1
        self.target: Array | None = None
        self.counted = False


class RamTier:
    """All arrays of a TieredStore, and the bytes of RAM they take. Needs the store's lock.

    Released memory counts until its last reference is gone: a lower tier may still read or write
    it for a dead array, and a get may be copying it.

    Args:
        nbytes: bound of ``used_nbytes``.

    Attributes:
        used_nbytes: bytes of RAM in use.
        resident_nbytes: of these, bytes of arrays that a get can copy.
        live: arrays with a live handle, by serial.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.used_nbytes = self.resident_nbytes = 0
        self.order = EvictionOrder()
        self.live: dict[int, TierEntry] = {}
        self._evicting: dict[TierEntry, None] = {}
        self._evicting_nbytes = 0
        self._released: list[tuple[weakref.ref[Any], int]] = []

    # ---- the budget

    def claim(self, entry: TierEntry, purpose: TierState) -> bool:
        """Count the bytes of ``entry`` if they fit, after finishing evictions; whether they do.

        ``purpose`` is its next state: COPYING_IN or PREFETCHING.
        """
        while self.used_nbytes + entry.nbytes > self.nbytes:
            if not (self._reap() or self._finish_eviction()):
                return False
        self.used_nbytes += entry.nbytes
        if purpose is TierState.PREFETCHING:
            self.begin_prefetch(entry, counted=True)
        else:
            entry.tier_state = purpose
        return True

    def release_claim(self, entry: TierEntry) -> None:
        """Uncount the bytes of ``entry``: it was not allocated, or a get returns it."""
        self.used_nbytes -= entry.nbytes

    def needs_eviction(self, entry: TierEntry) -> bool:
        """Whether ``entry`` would not fit even after all evictions under way."""
        return self.used_nbytes - self._evicting_nbytes + entry.nbytes > self.nbytes

    def eviction_candidate(self, beyond: TierEntry) -> TierEntry | None:
        """The array, in RAM or prefetched, to evict for ``beyond``; None if none is used later."""
        serial = self.order.furthest(beyond.serial)
        return None if serial is None else self.live[serial]

    def first_evicting(self) -> TierEntry | None:
        """The array whose eviction began first."""
        return next(iter(self._evicting), None)

    # ---- changes of state

    def on_arrived(self, entry: TierEntry, array: Array) -> None:
        """A new array was copied to claimed memory."""
        self.live[entry.serial] = entry
        entry.array = array
        entry.captured = True
        self.resident_nbytes += entry.nbytes
        self._keep_in_ram(entry)

    def on_passed_down(self, entry: TierEntry, lower: Handle) -> None:
        """A new array was put directly into a lower tier."""
        self.live[entry.serial] = entry
        entry.lower = lower
        entry.tier_state = TierState.LOWER

    def begin_eviction(self, entry: TierEntry) -> None:
        """A thread is about to put the array into a lower tier, or to cancel its prefetch."""
        self.order.discard(entry.serial)
        entry.moving = True
        if entry.tier_state is TierState.RAM:
            entry.tier_state = TierState.EVICTING
            self._evicting[entry] = None
            self._evicting_nbytes += entry.nbytes

    def on_evicted(self, entry: TierEntry, lower: Handle | None) -> None:
        """EVICTING: the array was put into a lower tier, or stays because that failed."""
        entry.moving = False
        entry.lower = lower
        if lower is None:
            self._remove_eviction(entry)
            self._keep_in_ram(entry)
        if entry.dropped:
            self.release_all(entry)

    def begin_prefetch(self, entry: TierEntry, counted: bool) -> None:
        """A thread is about to start a read, into claimed memory if ``counted``."""
        entry.tier_state, entry.moving, entry.counted = TierState.PREFETCHING, True, counted

    def on_prefetched(self, entry: TierEntry, target: Array | None, started: bool) -> None:
        """PREFETCHING: the read into ``target`` was started, or failed to start."""
        entry.moving = False
        entry.target = target
        if not started:
            if target is None:
                self.release_claim(entry)
            self._release_target(entry)
            entry.tier_state = TierState.LOWER
        elif entry.counted:
            self.order.add(entry.serial)

    def on_prefetch_cancelled(self, entry: TierEntry) -> None:
        """PREFETCHING: the read was cancelled."""
        entry.moving = False
        self._release_target(entry)
        entry.tier_state = TierState.LOWER
        if entry.dropped:
            self.release_all(entry)

    def take(self, entry: TierEntry, out: Array | None) -> Array | None:
        """A get takes the array, and ends its prefetch: the array to fill, if known."""
        self.order.record_use(entry.serial)
        if out is None:
            out, entry.target = entry.target, None
            if entry.counted:
                self.release_claim(entry)
                entry.counted = False
        else:
            self._release_target(entry)
        if entry.tier_state is TierState.PREFETCHING:
            self.order.discard(entry.serial)
            entry.tier_state = TierState.LOWER
        return out

    def on_dead(self, entry: TierEntry) -> None:
        """The handle is dead, or the store closed; a thread that moves the array finishes first.

        The garbage collector may be calling: neither waits nor raises.
        """
        del self.live[entry.serial]
        self.order.forget(entry.serial)
        entry.dropped = True
        if not entry.moving:
            self.release_all(entry)

    def release_all(self, entry: TierEntry) -> None:
        """Release everything of a dead entry."""
        self.order.forget(entry.serial)
        self._remove_eviction(entry)
        entry.tier_state = TierState.NOT_STORED
        entry.lower = entry.failed_lower = None  # first: it releases the memory
        self._release_array(entry)
        self._release_target(entry)
        entry.captured = True

    def _keep_in_ram(self, entry: TierEntry) -> None:
        entry.tier_state = TierState.RAM
        self.order.add(entry.serial)

    def _finish_eviction(self) -> bool:
        """Release the memory of the first eviction if its write is done; undo it if it failed."""
        entry = self.first_evicting()
        if entry is None or entry.moving or entry.lower is None or not entry.lower.captured:
            return False
        self._remove_eviction(entry)
        if _has_failed(entry.lower):
            entry.failed_lower, entry.lower = entry.lower, None
            self._keep_in_ram(entry)
        else:
            entry.tier_state = TierState.LOWER
            self._release_array(entry)
        return True

    def _remove_eviction(self, entry: TierEntry) -> None:
        if entry in self._evicting:
            del self._evicting[entry]
            self._evicting_nbytes -= entry.nbytes

    # ---- released memory

    def _release_array(self, entry: TierEntry) -> None:
        if entry.array is not None:
            self.resident_nbytes -= entry.nbytes
            self._released.append((_memory_ref(entry.array), entry.nbytes))
            entry.array = None
            self._reap()

    def _release_target(self, entry: TierEntry) -> None:
        if entry.counted and entry.target is not None:
            self._released.append((_memory_ref(entry.target), entry.nbytes))
        entry.target, entry.counted = None, False
        self._reap()

    def _reap(self) -> bool:
        """Uncount released memory without references; return whether there was any."""
        before = len(self._released)
        if before:
            alive = [(memory, nbytes) for memory, nbytes in self._released if memory() is not None]
            freed = sum(nbytes for _, nbytes in self._released) - sum(n for _, n in alive)
            self.used_nbytes -= freed
            self._released = alive
        return len(self._released) < before


def _memory_ref(array: Array) -> weakref.ref[Any]:
    """A weak reference that dies with the memory of ``array``.

    Memory of a BufferPool dies with its lease, the base of all views. Other memory is watched by
    the array itself, because its base may be shared.
    """
    lease = lease_of(array)
    return weakref.ref(array if lease is None else lease)


def _has_failed(lower: Handle) -> bool:
    """Whether the write of a captured array failed."""
    entry = lower._entry
    if isinstance(entry, TierEntry):
        return entry.array is None and entry.lower is not None and _has_failed(entry.lower)
    return entry.error is not None
