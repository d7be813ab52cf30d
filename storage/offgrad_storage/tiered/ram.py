"""The RAM tier of a TieredStore: where each array is, every change of that, and the budget.

A new array arrives in RAM or goes below. From RAM it leaves for the tier below: it is put there,
and its memory given up only when the room is needed and the write is done. From below it may rise:
a prefetch reads it into memory of the store, which the next get takes along.
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
    """Not stored: not yet, not any more, or not at all."""
    COPYING_IN = "copying in"
    """Room is claimed in RAM, and the array is being copied there."""
    RAM = "ram"
    EVICTING = "evicting"
    """In RAM, and put below: perhaps written already."""
    LOWER = "lower"
    PREFETCHING = "prefetching"
    """Below, and being read ahead into ``target``."""


class TierEntry(Entry):
    """One array of a TieredStore.

    Attributes:
        tier_state: the array's state.
        moving: whether a thread is changing ``tier_state`` with the lock released; until it is
            done it alone may change the entry, and it wakes the waiting threads.
        array: the copy in RAM.
        lower: the handle of the tier below.
        failed_lower: a handle whose write failed after the array was put below; ``tier`` is where.
        tier: the tier below that has, or last had, the array.
        target: what the next get without ``out`` returns.
        counted: whether ``target`` is of the store and counts in its budget.
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
    """All arrays of a TieredStore, and the bytes of RAM they take; the store's lock is held.

    Memory that is given up counts until nobody refers to it: a tier below may still be reading it
    into, or from, for an array that is dead, and a get may be copying it.

    Args:
        nbytes: most bytes at any time.

    Attributes:
        used_nbytes: bytes that count now.
        resident_nbytes: of these, bytes of arrays that can be got from RAM.
        live: arrays whose handle lives, by serial.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.used_nbytes = self.resident_nbytes = 0
        self.order = EvictionOrder()
        self.live: dict[int, TierEntry] = {}
        self._evicting: dict[TierEntry, None] = {}
        self._evicting_nbytes = 0
        self._released: list[tuple[weakref.ref[Any], int]] = []

    # ---- room

    def claim(self, entry: TierEntry, purpose: TierState) -> bool:
        """Count the bytes of ``entry`` if they fit, once all is given up that need not stay.

        Then a thread is about to copy it here, or to start a read: ``purpose`` says which.
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
        """Do not count the bytes of ``entry``: there is no memory behind them, or not ours."""
        self.used_nbytes -= entry.nbytes

    def needs_eviction(self, entry: TierEntry) -> bool:
        """Whether ``entry`` would not fit even if all that is evicting had left."""
        return self.used_nbytes - self._evicting_nbytes + entry.nbytes > self.nbytes

    def eviction_candidate(self, beyond: TierEntry) -> TierEntry | None:
        """What to evict for ``beyond``: in RAM or rising, and used later than that."""
        serial = self.order.furthest(beyond.serial)
        return None if serial is None else self.live[serial]

    def first_evicting(self) -> TierEntry | None:
        """The array that began to leave first, of those still in RAM."""
        return next(iter(self._evicting), None)

    # ---- changes of state

    def on_arrived(self, entry: TierEntry, array: Array) -> None:
        """A new array is in RAM, in memory claimed before."""
        self.live[entry.serial] = entry
        entry.array = array
        entry.captured = True
        self.resident_nbytes += entry.nbytes
        self._keep_in_ram(entry)

    def on_passed_down(self, entry: TierEntry, lower: Handle) -> None:
        """A new array went below without a stay in RAM."""
        self.live[entry.serial] = entry
        entry.lower = lower
        entry.tier_state = TierState.LOWER

    def begin_eviction(self, entry: TierEntry) -> None:
        """A thread is about to put an array of RAM below, or to cancel the prefetch of one."""
        self.order.discard(entry.serial)
        entry.moving = True
        if entry.tier_state is TierState.RAM:
            entry.tier_state = TierState.EVICTING
            self._evicting[entry] = None
            self._evicting_nbytes += entry.nbytes

    def on_evicted(self, entry: TierEntry, lower: Handle | None) -> None:
        """Leaving: the array was put below, or could not be and stays."""
        entry.moving = False
        entry.lower = lower
        if lower is None:
            self._remove_eviction(entry)
            self._keep_in_ram(entry)
        if entry.dropped:
            self.release_all(entry)

    def begin_prefetch(self, entry: TierEntry, counted: bool) -> None:
        """From below: a thread is about to start a read, into claimed memory if ``counted``."""
        entry.tier_state, entry.moving, entry.counted = TierState.PREFETCHING, True, counted

    def on_prefetched(self, entry: TierEntry, target: Array | None, started: bool) -> None:
        """Rising: the read into ``target`` has been started; or could not be: back to below."""
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
        """From rising: the read is cancelled."""
        entry.moving = False
        self._release_target(entry)
        entry.tier_state = TierState.LOWER
        if entry.dropped:
            self.release_all(entry)

    def take(self, entry: TierEntry, out: Array | None) -> Array | None:
        """The array is got, and no longer rising: what to fill, if that is known."""
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
        """The handle is dead, or the store closed; a thread at a change of state ends that first.

        Called by the garbage collector, too: neither waits nor raises.
        """
        del self.live[entry.serial]
        self.order.forget(entry.serial)
        entry.dropped = True
        if not entry.moving:
            self.release_all(entry)

    def release_all(self, entry: TierEntry) -> None:
        """From anywhere: give up all that a dead entry has."""
        self.order.forget(entry.serial)
        self._remove_eviction(entry)
        entry.tier_state = TierState.NOT_STORED
        entry.lower = entry.failed_lower = None  # first, so that the tier below gives up the memory
        self._release_array(entry)
        self._release_target(entry)
        entry.captured = True

    def _keep_in_ram(self, entry: TierEntry) -> None:
        entry.tier_state = TierState.RAM
        self.order.add(entry.serial)

    def _finish_eviction(self) -> bool:
        """From evicting to below, if the write that began first is done; to RAM if it failed."""
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

    # ---- memory given up

    def _release_array(self, entry: TierEntry) -> None:
        if entry.array is not None:
            self.resident_nbytes -= entry.nbytes
            self._released.append((_watch(entry.array), entry.nbytes))
            entry.array = None
            self._reap()

    def _release_target(self, entry: TierEntry) -> None:
        if entry.counted and entry.target is not None:
            self._released.append((_watch(entry.target), entry.nbytes))
        entry.target, entry.counted = None, False
        self._reap()

    def _reap(self) -> bool:
        """Stop to count the memory given up that is gone; return whether there was any."""
        before = len(self._released)
        if before:
            still = [(memory, nbytes) for memory, nbytes in self._released if memory() is not None]
            freed = sum(nbytes for _, nbytes in self._released) - sum(n for _, n in still)
            self.used_nbytes -= freed
            self._released = still
        return len(self._released) < before


def _watch(array: Array) -> weakref.ref[Any]:
    """A reference that is dead once the memory of ``array`` is.

    That of a BufferPool goes with its lease, under all views. Of other memory only the array itself
    is known to be one's own: its base may be shared.
    """
    lease = lease_of(array)
    return weakref.ref(array if lease is None else lease)


def _has_failed(lower: Handle) -> bool:
    """Whether the write of a captured array failed."""
    entry = lower._entry
    if isinstance(entry, TierEntry):
        return entry.array is None and entry.lower is not None and _has_failed(entry.lower)
    return entry.error is not None
