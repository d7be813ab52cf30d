"""Moves arrays between RAM and the lower tiers of a TieredStore.

``RamTier`` keeps the state of each array; this file does the transitions. The lock is released
while a lower tier or an allocator is called; the array is ``moving`` meanwhile. A thread waits at
the lock only for transitions of other threads, which always wake it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.base import (
    AbstractArrayStore,
    Allocate,
    Handle,
    StoreStats,
)
from offgrad_storage.errors import (
    ForkedStoreError,
    QuotaExceededError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    as_store_error,
    copy_for_raise,
)
from offgrad_storage.executor.finalizer_lock import FinalizerLock
from offgrad_storage.tiered.ram import RamTier, TierEntry, TierState

Array = NDArray[Any]

_FULL = (QuotaExceededError, StoreFullError)


class TierTransfers:
    """The RAM tier, the stores below it, and the transfers between them.

    Args:
        nbytes: bound of the bytes of RAM.
        below: the lower tiers, the fastest first.
        allocate: allocates prefetched arrays.
        hold: allocates the arrays kept in RAM.

    Attributes:
        lock: held for every use of ``ram`` and ``figures``.
    """

    name = "TieredStore"

    def __init__(
        self, nbytes: int, below: Sequence[AbstractArrayStore], allocate: Allocate, hold: Allocate
    ) -> None:
        self.below = below
        self.ram = RamTier(nbytes)
        self.figures: dict[str, Any] = dataclasses.asdict(StoreStats())
        self.closed = False
        self._allocate = allocate
        self._hold = hold
        self._pid = os.getpid()
        self._evicts_early = False
        # Weak, since in a cycle an unused store would wait for the garbage collector.
        handle_died = weakref.WeakMethod(self._on_handle_dead)
        self.lock = FinalizerLock[TierEntry](lambda entry: _call(handle_died(), entry))

    # ---- to lower tiers

    def add(self, entry: TierEntry, array: Array) -> None:
        """Store the new ``array`` in RAM, or lower if all arrays in RAM are used sooner."""
        began = time.perf_counter()
        kept = self._make_room(entry, TierState.COPYING_IN)
        with self.lock:
            self.count(put_stall_seconds=time.perf_counter() - began)
        if kept:
            self._copy_to_ram(entry, array)
            if self._evicts_early:
                self._evict_early(entry)
        else:
            lower = self._put_lower(entry, array)
            with self.lock:
                self.check_open(entry)
                self.ram.on_passed_down(entry, lower)
                self.count(puts=1, live_handles=1, logical_nbytes=entry.nbytes)

    def _make_room(self, entry: TierEntry, purpose: TierState) -> bool:
        """Claim memory for ``entry``; False if no array in RAM is used later.

        For a new array this waits until the evictions it needs are written; for a prefetch it does
        not.
        """
        ram = self.ram
        prefetching = purpose is TierState.PREFETCHING
        if entry.nbytes > ram.nbytes:
            return False
        while True:
            victim = evicting = None
            with self.lock:
                self.check_open(entry)
                if prefetching and entry.tier_state is not TierState.LOWER:
                    return False  # another thread prefetches it
                if ram.claim(entry, purpose):
                    return True
                if ram.needs_eviction(entry):
                    victim = ram.eviction_candidate(entry)
                    if victim is None or (prefetching and victim.failed_lower is not None):
                        return False
                    ram.begin_eviction(victim)
                elif prefetching:
                    return False
                else:
                    first = ram.first_evicting()
                    assert first is not None
                    if first.moving:
                        self.lock.wait()
                    else:
                        evicting = first.lower
            if evicting is not None:
                evicting.wait_captured()
            if victim is not None:
                try:
                    self._evict(victim)
                except StoreError as error:
                    if prefetching:
                        return False  # the next put that needs the memory raises it
                    error.add_note(f"while making room for {entry}")
                    raise

    def _evict_early(self, entry: TierEntry) -> None:
        """Evict until there is room for another array of the size of ``entry`` ahead of its put."""
        while True:
            with self.lock:
                if self.closed or not self.ram.needs_eviction(entry):
                    return
                victim = self.ram.eviction_candidate(entry)
                if victim is None or victim.failed_lower is not None:
                    return
                self.ram.begin_eviction(victim)
            try:
                self._evict(victim)
            except StoreError:
                return  # the next put that needs the memory raises it

    def _evict(self, victim: TierEntry) -> None:
        if victim.tier_state is TierState.PREFETCHING:
            self._cancel_read(victim)
            return
        lower = None
        try:
            assert victim.array is not None
            lower = self._put_lower(victim, victim.array)
            if not lower.captured:
                self._evicts_early = True
        finally:
            with self.lock:
                self.ram.on_evicted(victim, lower)
                self.lock.notify_all()

    def _put_lower(self, entry: TierEntry, array: Array) -> Handle:
        """Put ``array`` into the first lower tier with space, after the tier where it failed.

        Raises:
            StoreError: of the last tier, if all are full, or of a tier that fails otherwise.
        """
        failure = self._take_failure(entry)
        first = 0 if failure is None else entry.tier + 1
        if failure is None or isinstance(failure, _FULL):
            for tier, store in enumerate(self.below[first:], first):
                entry.tier = tier
                try:
                    return store.put(array, attributes=entry.attributes)
                except StoreError as error:
                    failure = self.without_tracebacks(error)
                if not isinstance(failure, _FULL):
                    break
        del array  # a stored error would keep it alive
        if failure is None:
            failure = QuotaExceededError(
                f"{entry.nbytes} bytes do not fit into the {self.ram.nbytes} bytes of RAM, of "
                f"which {self.ram.used_nbytes} are in use, and there is no tier below",
                fix="Raise nbytes, add a tier below, or drop handles first",
            )
        raise self.as_own_error(failure, entry)

    def _take_failure(self, entry: TierEntry) -> StoreError | None:
        """The error of the last write of ``entry``, if it failed; now reported to its tier."""
        failed, entry.failed_lower = entry.failed_lower, None
        if failed is not None:
            try:
                failed.get(entry.array)  # raises before it writes
            except StoreError as error:
                return self.without_tracebacks(error)
        return None

    def _copy_to_ram(self, entry: TierEntry, array: Array) -> None:
        held = None
        try:
            held = self._hold(entry.shape, entry.dtype)
            np.copyto(held, array)
            with self.lock:
                self.check_open(entry)
                self.ram.on_arrived(entry, held)
                self.count(
                    puts=1,
                    live_handles=1,
                    logical_nbytes=entry.nbytes,
                    written_nbytes=entry.nbytes,
                )
                self.lock.notify_all()
        except BaseException:
            held = None
            with self.lock:
                self.ram.release_claim(entry)
                self.lock.notify_all()
            raise

    # ---- from lower tiers

    def take(self, entry: TierEntry, out: Array | None) -> tuple[Array | None, bool]:
        """Begin a get: the array to fill, if known, and whether it is being prefetched."""
        self.wait_for_transition(entry)
        hit = entry.tier_state is TierState.PREFETCHING
        return self.ram.take(entry, out), hit

    def prefetch(self, entry: TierEntry, out: Array | None) -> None:
        """Begin to read into ``out``, or into RAM if it has space, unless that has begun."""
        with self.lock:
            self.wait_for_transition(entry)
            elsewhere = entry.tier_state is TierState.PREFETCHING and out is not entry.target
        if elsewhere and out is not None:
            self.cancel_prefetch(entry)
        with self.lock:
            self.wait_for_transition(entry)
            self.ram.order.request(entry.serial)
            if entry.tier_state is TierState.PREFETCHING:
                return
            if out is not None:
                entry.target = out
            if entry.tier_state is not TierState.LOWER:
                return
            assert entry.lower is not None
            if not entry.lower.store.reads_ahead:
                return
            out = entry.target
            if out is not None:
                self.ram.begin_prefetch(entry, counted=False)
        if out is not None or self._make_room(entry, TierState.PREFETCHING):
            self._begin_read(entry, out)

    def cancel_prefetch(self, entry: TierEntry) -> None:
        """Discard a prefetch, begun or requested."""
        with self.lock:
            if self.closed:
                return
            self.wait_for_transition(entry)
            self.ram.order.cancel_request(entry.serial)
            if entry.tier_state is not TierState.PREFETCHING:
                entry.target = None
                return
            self.ram.begin_eviction(entry)
        self._cancel_read(entry)

    def wait_for_transition(self, entry: TierEntry) -> None:
        """Wait while another thread starts or cancels a read of ``entry``; with the lock held."""
        self.check_open(entry)
        while entry.moving and entry.tier_state is TierState.PREFETCHING:
            self.lock.wait()
            self.check_open(entry)

    def _begin_read(self, entry: TierEntry, out: Array | None) -> None:
        lower = entry.lower
        assert lower is not None
        target, started, failure = out, False, None
        try:
            if target is None:
                target = self._allocate(entry.shape, entry.dtype)
            lower.prefetch(target)
            started = True
        except StoreError as error:
            failure = self.without_tracebacks(error)
        finally:
            with self.lock:
                self.ram.on_prefetched(entry, target, started)
                self.lock.notify_all()
        if failure is not None:
            raise self.as_own_error(failure, entry)

    def _cancel_read(self, entry: TierEntry) -> None:
        lower = entry.lower
        assert lower is not None
        try:
            with contextlib.suppress(StoreError):
                lower.store.cancel_prefetch(lower)
        finally:
            with self.lock:
                self.ram.on_prefetch_cancelled(entry)
                self.lock.notify_all()

    def check_written(self, entry: TierEntry) -> None:
        """Raise the error of the write of ``entry``, if it has failed and RAM has no copy."""
        with self.lock:
            lower = entry.lower if entry.array is None else None
        if lower is not None:
            failure = None
            try:
                lower.check()
            except StoreError as error:
                failure = self.without_tracebacks(error)
            if failure is not None:
                raise self.as_own_error(failure, entry)

    # ---- flush and close

    def flush(self) -> None:
        """Wait for transfers of other threads, and flush the lower tiers."""
        self.check_open()
        with self.lock:
            moving = [entry for entry in self.ram.live.values() if entry.moving]
            while any(entry.moving for entry in moving):
                self.lock.wait()
                self.check_open()
        for store in self.below:
            store.flush()

    def drop(self, entry: TierEntry) -> None:
        """The handle of ``entry`` has died. Never waits: the garbage collector may be calling."""
        if os.getpid() == self._pid:
            self.lock.defer(entry)

    def close(self) -> None:
        """Close the lower tiers and release RAM; raise the first error of a tier."""
        if os.getpid() != self._pid:
            return
        with self.lock:
            self.closed = True
            self.lock.notify_all()
        errors = []
        for store in self.below:
            try:
                store.close()
            except StoreError as error:
                errors.append(self.without_tracebacks(error))
        with self.lock:
            while any(entry.moving for entry in self.ram.live.values()):
                self.lock.wait()
            for entry in list(self.ram.live.values()):
                self.ram.on_dead(entry)
            self.figures.update(live_handles=0, logical_nbytes=0)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"also: {other}")
            raise errors[0]

    def _on_handle_dead(self, entry: TierEntry) -> None:
        if entry.serial in self.ram.live:
            self.ram.on_dead(entry)
            self.count(live_handles=-1, logical_nbytes=-entry.nbytes)
            self.lock.notify_all()

    # ---- figures and errors

    def count(self, **changes: float) -> None:
        """Add to the figures; with the lock held."""
        for name, change in changes.items():
            self.figures[name] += change

    def is_forked(self) -> bool:
        """Whether the store belongs to the parent of this process."""
        return os.getpid() != self._pid

    def check_open(self, entry: TierEntry | None = None) -> None:
        """Raise unless the store may be used, by this process."""
        self.check_process(entry)
        if self.closed:
            raise StoreClosedError(
                "the store is closed",
                store=self.name,
                handle=str(entry or ""),
                fix="Close a store after the last use of its handles",
            )

    def check_process(self, entry: TierEntry | None = None) -> None:
        """Raise if this process is a fork; call it before taking the lock."""
        if self.is_forked():
            raise ForkedStoreError(
                f"the store belongs to process {self._pid}, this is its fork {os.getpid()}",
                store=self.name,
                handle=str(entry or ""),
                fix="Make another store in the child, or use this one in the parent only",
            )

    def without_tracebacks(self, error: StoreError) -> StoreError:
        """``error`` without tracebacks, which would keep arrays alive."""
        return as_store_error(error, "moving an array", store=self.name)

    def as_own_error(self, error: StoreError, entry: TierEntry) -> StoreError:
        """``error`` of a tier below as one of this store, naming its array; of the same kind."""
        result = copy_for_raise(error)
        result.args = (f"{self.name}, {entry}: {error}",)
        result.store, result.handle = self.name, str(entry)
        return result


def _call(method: Callable[[TierEntry], object] | None, entry: TierEntry) -> None:
    if method is not None:
        method(entry)
