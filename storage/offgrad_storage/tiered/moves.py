"""The work between two states of an array: copies, and calls of the lower tiers.

Each method is called by the thread that has put the array into a moving state, or has a new one,
and ends the move. It takes the lock only for that; see ``tiers`` for its rules.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.base import Allocate, Handle
from offgrad_storage.errors import QuotaExceededError, StoreError, StoreFullError
from offgrad_storage.interrupts import interruptible
from offgrad_storage.tiered.states import Ending, TierEntry
from offgrad_storage.tiered.tiers import Tiers

Array = NDArray[Any]

_FULL = (QuotaExceededError, StoreFullError)


class Moves:
    """Moves arrays between RAM and the lower tiers.

    Args:
        tiers: the tiers.
        allocate: allocates prefetched arrays.
        hold: allocates the arrays kept in RAM.

    Attributes:
        is_write_behind: whether a lower tier has returned from an eviction before its write.
    """

    def __init__(self, tiers: Tiers, allocate: Allocate, hold: Allocate) -> None:
        self._tiers = tiers
        self._ram = tiers.ram
        self._allocate = allocate
        self._hold = hold
        self.is_write_behind = False

    # ---- puts and evictions

    def copy_in(self, entry: TierEntry, array: Array, stall_seconds: float) -> None:
        """Copy a new array to memory claimed for it; its put has waited for ``stall_seconds``."""
        tiers, held = self._tiers, None
        try:
            with interruptible:
                held = self._hold(entry.shape, entry.dtype)
                np.copyto(held, array)
            with tiers.lock:
                tiers.check_open(entry)
                self._ram.on_copied(entry, held)
                tiers.count(puts=1, put_stall_seconds=stall_seconds, written_nbytes=entry.nbytes)
                tiers.notify_all()
        except BaseException:
            held = None
            with tiers.lock:
                self._ram.on_copy_failed(entry)
                tiers.notify_all()
            raise

    def pass_down(self, entry: TierEntry, array: Array, stall_seconds: float) -> None:
        """Put a new array directly into a lower tier."""
        tiers = self._tiers
        placed, failure = self._put_lower(entry, array)
        if placed is None:
            assert failure is not None
            raise failure
        with tiers.lock:
            tiers.check_open(entry)
            self._ram.on_passed_down(entry, placed[0])
            tiers.count(puts=1, put_stall_seconds=stall_seconds)

    def evict(self, victim: TierEntry) -> StoreError | MemoryError | None:
        """Put ``victim`` into a lower tier, or cancel its prefetch; return the error."""
        if isinstance(victim.tier_state, Ending):
            self.cancel_read(victim)
            return None
        placed = failure = None
        try:
            assert victim.tier_state.array is not None
            placed, failure = self._put_lower(victim, victim.tier_state.array)
            if placed is not None and not placed[0].captured:
                self.is_write_behind = True
        except MemoryError as error:
            failure = error.with_traceback(None)
        finally:
            with self._tiers.lock:
                self._ram.on_evicted(victim, placed)
                self._tiers.notify_all()
        return failure

    def _put_lower(
        self, entry: TierEntry, array: Array
    ) -> tuple[tuple[Handle, int] | None, StoreError | MemoryError | None]:
        """Put ``array`` into a lower tier: the first one with space, after that of its last write
        if that has failed for lack of space.

        Returns:
            Its handle there, and the index of the tier; or None and the error: of the last tier, if
            all are full, or of a tier, or the last write, that has failed otherwise.
        """
        tiers = self._tiers
        failure, first = entry.tier_state.failure, entry.tier_state.next_tier
        if failure is None or isinstance(failure, _FULL):
            for index, store in enumerate(tiers.below[first:], first):
                try:
                    with interruptible:
                        return (store.put(array, attributes=entry.attributes), index), None
                except StoreError as error:
                    failure = tiers.without_tracebacks(error)
                if not isinstance(failure, _FULL):
                    break
        if failure is None:
            failure = QuotaExceededError(
                f"{entry.nbytes} bytes do not fit into the {self._ram.budget.nbytes} bytes of RAM, "
                f"of which {tiers.used_nbytes} are in use, and there is no tier below",
                fix="Raise nbytes, add a tier below, or drop handles first",
            )
        return None, tiers.as_own_error(failure, entry)

    # ---- prefetches

    def begin_read(self, entry: TierEntry, out: Array | None) -> None:
        """Have the lower tier read an array that starts a prefetch, into ``out`` or a new array."""
        tiers, lower = self._tiers, entry.tier_state.lower
        assert lower is not None
        target, begun, failure = out, False, None
        try:
            with interruptible:
                if target is None:
                    target = self._allocate(entry.shape, entry.dtype)
                begun = True  # an interrupt may arrive after it has begun: a get will end it
                lower.prefetch(target)
        except Exception as error:
            begun = False
            if not isinstance(error, StoreError):
                raise
            failure = tiers.without_tracebacks(error)
        finally:
            with tiers.lock:
                self._ram.on_prefetched(entry, target, begun)
                tiers.notify_all()
        if failure is not None:
            raise tiers.as_own_error(failure, entry)

    def cancel_read(self, entry: TierEntry) -> None:
        """Have the lower tier cancel the read of a prefetch that ends."""
        lower = entry.tier_state.lower
        assert lower is not None
        ended = False
        try:
            with interruptible, contextlib.suppress(StoreError):
                lower.store.cancel_prefetch(lower)
            ended = True
        finally:
            with self._tiers.lock:
                self._ram.on_ended(entry, ended)
                self._tiers.notify_all()
