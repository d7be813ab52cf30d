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


class Where(enum.Enum):
    """Where an array is."""

    NOWHERE = "nowhere"
    """Not stored: not yet, not any more, or not at all."""
    ARRIVING = "arriving"
    """Room is claimed in RAM, and the array is being copied there."""
    RAM = "ram"
    LEAVING = "leaving"
    """In RAM, and put below: perhaps written already."""
    BELOW = "below"
    RISING = "rising"
    """Below, and being read ahead into ``target``."""


class TierEntry(Entry):
    """One array of a TieredStore.

    Attributes:
        where: the array's state.
        moving: whether a thread is at a change of ``where`` with the lock released; it alone may
            change the entry then, and wakes those who wait.
        array: the copy in RAM.
        lower: the handle of the tier below.
        failed: a handle whose write failed after the array was put below; ``tier`` is where.
        tier: the tier below that has, or last had, the array.
        target: what the next get without ``out`` returns.
        counted: whether ``target`` is of the store and counts in its budget.
    """

    __slots__ = ("array", "counted", "failed", "lower", "moving", "target", "tier", "where")

    def __init__(self, serial: int, array: Array, attributes: Mapping[str, object]) -> None:
        super().__init__(serial, array, attributes)
        self.where = Where.NOWHERE
        self.moving = False
        self.array: Array | None = None
        self.lower: Handle | None = None
        self.failed: Handle | None = None
        self.tier = -1
        self.target: Array | None = None
        self.counted = False


class Ram:
    """All arrays of a TieredStore, and the bytes of RAM they take; the store's lock is held.

    Memory that is given up counts until nobody refers to it: a tier below may still be reading it
    into, or from, for an array that is dead, and a get may be copying it.

    Args:
        nbytes: most bytes at any time.

    Attributes:
        used_nbytes: bytes that count now.
        kept_nbytes: of these, bytes of arrays that can be got from RAM.
        live: arrays whose handle lives, by serial.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.used_nbytes = self.kept_nbytes = 0
        self.order = EvictionOrder()
        self.live: dict[int, TierEntry] = {}
        self._leaving: dict[TierEntry, None] = {}
        self._leaving_nbytes = 0
        self._given_up: list[tuple[weakref.ref[Any], int]] = []

    # ---- room

    def claim(self, entry: TierEntry, purpose: Where) -> bool:
        """Count the bytes of ``entry`` if they fit, once all is given up that need not stay.

        Then a thread is about to copy it here, or to start a read: ``purpose`` says which.
        """
        while self.used_nbytes + entry.nbytes > self.nbytes:
            if not (self._sweep() or self._end_leaving()):
                return False
        self.used_nbytes += entry.nbytes
        if purpose is Where.RISING:
            self.begin_rising(entry, counted=True)
        else:
            entry.where = purpose
        return True

    def unclaim(self, entry: TierEntry) -> None:
        """Do not count the bytes of ``entry``: there is no memory behind them, or not ours."""
        self.used_nbytes -= entry.nbytes

    def lacks(self, entry: TierEntry) -> bool:
        """Whether ``entry`` would not fit even if all that is leaving had left."""
        return self.used_nbytes - self._leaving_nbytes + entry.nbytes > self.nbytes

    def furthest(self, beyond: TierEntry) -> TierEntry | None:
        """What to evict for ``beyond``: in RAM or rising, and used later than that."""
        serial = self.order.furthest(beyond.serial)
        return None if serial is None else self.live[serial]

    def first_leaving(self) -> TierEntry | None:
        """The array that began to leave first, of those still in RAM."""
        return next(iter(self._leaving), None)

    # ---- changes of state

    def arrived(self, entry: TierEntry, array: Array) -> None:
        """A new array is in RAM, in memory claimed before."""
        self.live[entry.serial] = entry
        entry.array = array
        entry.captured = True
        self.kept_nbytes += entry.nbytes
        self._stay(entry)

    def passed(self, entry: TierEntry, lower: Handle) -> None:
        """A new array went below without a stay in RAM."""
        self.live[entry.serial] = entry
        entry.lower = lower
        entry.where = Where.BELOW

    def begin_eviction(self, entry: TierEntry) -> None:
        """From RAM to leaving: a thread is about to put the array below. Rising: to cancel that."""
        self.order.discard(entry.serial)
        entry.moving = True
        if entry.where is Where.RAM:
            entry.where = Where.LEAVING
            self._leaving[entry] = None
            self._leaving_nbytes += entry.nbytes

    def left(self, entry: TierEntry, lower: Handle | None) -> None:
        """Leaving: the array was put below, or could not be and stays."""
        entry.moving = False
        entry.lower = lower
        if lower is None:
            self._forget_leaving(entry)
            self._stay(entry)
        if entry.dropped:
            self.bury(entry)

    def begin_rising(self, entry: TierEntry, counted: bool) -> None:
        """From below: a thread is about to start a read, into claimed memory if ``counted``."""
        entry.where, entry.moving, entry.counted = Where.RISING, True, counted

    def risen(self, entry: TierEntry, target: Array | None, started: bool) -> None:
        """Rising: the read into ``target`` has been started; or could not be: back to below."""
        entry.moving = False
        entry.target = target
        if not started:
            if target is None:
                self.unclaim(entry)
            self._give_up_target(entry)
            entry.where = Where.BELOW
        elif entry.counted:
            self.order.add(entry.serial)

    def sunk(self, entry: TierEntry) -> None:
        """From rising: the read is cancelled."""
        entry.moving = False
        self._give_up_target(entry)
        entry.where = Where.BELOW
        if entry.dropped:
            self.bury(entry)

    def take(self, entry: TierEntry, out: Array | None) -> Array | None:
        """The array is got, and no longer rising: what to fill, if that is known."""
        self.order.use(entry.serial)
        if out is None:
            out, entry.target = entry.target, None
            if entry.counted:
                self.unclaim(entry)
                entry.counted = False
        else:
            self._give_up_target(entry)
        if entry.where is Where.RISING:
            self.order.discard(entry.serial)
            entry.where = Where.BELOW
        return out

    def died(self, entry: TierEntry) -> None:
        """The handle is dead, or the store closed; a thread at a change of state ends that first.

        Called by the garbage collector, too: neither waits nor raises.
        """
        del self.live[entry.serial]
        self.order.forget(entry.serial)
        entry.dropped = True
        if not entry.moving:
            self.bury(entry)

    def bury(self, entry: TierEntry) -> None:
        """From anywhere: give up all that a dead entry has."""
        self.order.forget(entry.serial)
        self._forget_leaving(entry)
        entry.where = Where.NOWHERE
        entry.lower = entry.failed = None  # first, so that the tier below gives up the memory
        self._give_up_array(entry)
        self._give_up_target(entry)
        entry.captured = True

    def _stay(self, entry: TierEntry) -> None:
        entry.where = Where.RAM
        self.order.add(entry.serial)

    def _end_leaving(self) -> bool:
        """From leaving to below, if the write that began first is done; to RAM if it failed."""
        entry = self.first_leaving()
        if entry is None or entry.moving or entry.lower is None or not entry.lower.captured:
            return False
        self._forget_leaving(entry)
        if _has_failed(entry.lower):
            entry.failed, entry.lower = entry.lower, None
            self._stay(entry)
        else:
            entry.where = Where.BELOW
            self._give_up_array(entry)
        return True

    def _forget_leaving(self, entry: TierEntry) -> None:
        if entry in self._leaving:
            del self._leaving[entry]
            self._leaving_nbytes -= entry.nbytes

    # ---- memory given up

    def _give_up_array(self, entry: TierEntry) -> None:
        if entry.array is not None:
            self.kept_nbytes -= entry.nbytes
            self._given_up.append((_watch(entry.array), entry.nbytes))
            entry.array = None
            self._sweep()

    def _give_up_target(self, entry: TierEntry) -> None:
        if entry.counted and entry.target is not None:
            self._given_up.append((_watch(entry.target), entry.nbytes))
        entry.target, entry.counted = None, False
        self._sweep()

    def _sweep(self) -> bool:
        """Stop to count the memory given up that is gone; return whether there was any."""
        before = len(self._given_up)
        if before:
            still = [(memory, nbytes) for memory, nbytes in self._given_up if memory() is not None]
            freed = sum(nbytes for _, nbytes in self._given_up) - sum(n for _, n in still)
            self.used_nbytes -= freed
            self._given_up = still
        return len(self._given_up) < before


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
