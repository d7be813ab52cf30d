"""Moves arrays between RAM and the lower tiers of a TieredStore.

``RamTier`` keeps the state of each array; this file does the work between two states. The lock is
released while a lower tier or an allocator is called; the array is in a moving state meanwhile. A
thread waits at the lock only for moves of other threads, which always wake it.

Call the methods in a masked block. Then KeyboardInterrupt is raised only in the interruptible
blocks and in waits, and a move that it interrupts ends as one that fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Sequence
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
from offgrad_storage.executor.waiting import Waiters
from offgrad_storage.interrupts import interruptible, masked
from offgrad_storage.tiered.ram import RamTier
from offgrad_storage.tiered.states import (
    Ending,
    Evicting,
    InRam,
    Lower,
    Prefetching,
    Starting,
    TierEntry,
)

Array = NDArray[Any]

_FULL = (QuotaExceededError, StoreFullError)


class TierTransfers:
    """The RAM tier, the stores below it, and the transfers between them.

    Args:
        nbytes: bound of the bytes of RAM.
        below: the lower tiers, the fastest first.
        allocate: allocates prefetched arrays.
        hold: allocates the arrays kept in RAM.
        timeout_seconds: ``close`` waits so long for other threads.

    Attributes:
        lock: held for every use of ``ram`` and ``figures``.
    """

    name = "TieredStore"

    def __init__(
        self,
        nbytes: int,
        below: Sequence[AbstractArrayStore],
        allocate: Allocate,
        hold: Allocate,
        timeout_seconds: float,
    ) -> None:
        if not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be positive, got {timeout_seconds}")
        self.below = below
        self.figures: dict[str, Any] = dataclasses.asdict(StoreStats())
        self.closed = False
        self._allocate = allocate
        self._hold = hold
        self._timeout_seconds = timeout_seconds
        self._pid = os.getpid()
        self._evicts_early = False
        self._close_errors: list[StoreError] = []  # kept while close is interrupted
        self._given_up: set[int] = set()  # serials of arrays that close has not waited for
        self.lock = threading.Lock()
        waiters = Waiters(self.lock.release, self.lock.acquire)
        self._wait, self._notify_all = waiters.wait, waiters.notify_all
        self.ram = RamTier(nbytes)

    # ---- to lower tiers

    def add(self, entry: TierEntry, array: Array) -> None:
        """Store the new ``array`` in RAM, or lower if all arrays in RAM are used sooner."""
        began = time.perf_counter()
        kept = self._make_room(entry, prefetching=False)
        seconds = time.perf_counter() - began
        if kept:
            self._copy_to_ram(entry, array, seconds)
            if self._evicts_early:
                self._evict_early(entry)
        else:
            placed, failure = self._put_lower(entry, array)
            if placed is None:
                assert failure is not None
                raise failure
            with self.lock:
                self.check_open(entry)
                self.ram.on_passed_down(entry, placed[0])
                self._count_put(seconds)

    def _make_room(self, entry: TierEntry, prefetching: bool) -> bool:
        """Claim memory for ``entry``; False if no array in RAM is used later.

        For a new array this waits until the evictions it needs are written; for a prefetch it does
        not.
        """
        ram = self.ram
        if entry.nbytes > ram.nbytes:
            return False
        while True:
            victim = written = None
            with self.lock:
                self.check_open(entry)
                if prefetching and type(entry.tier_state) is not Lower:
                    return False  # another thread prefetches it
                if ram.has_room(entry):
                    if prefetching:
                        ram.begin_prefetch(entry, counted=True)
                    else:
                        ram.begin_copy(entry)
                    return True
                if ram.needs_eviction(entry):
                    victim = ram.eviction_candidate(entry)
                    if victim is None or (prefetching and _last_failure(victim)[0]):
                        return False
                    ram.begin_eviction(victim)
                elif prefetching:
                    return False
                else:
                    written, is_moving = ram.first_leaving()
                    if is_moving:
                        self._wait()
            if written is not None:
                with interruptible:
                    written.wait_captured()
            if victim is not None:
                failure = self._evict(victim)
                victim = None  # a traceback would keep it alive
                if failure is not None and prefetching:
                    return False  # the next put that needs the memory raises it
                if failure is not None:
                    failure.add_note(f"while making room for {entry}")
                    raise failure

    def _evict_early(self, entry: TierEntry) -> None:
        """Evict until there is room for another array of the size of ``entry`` ahead of its put."""
        while True:
            with self.lock:
                if self.closed or not self.ram.needs_eviction(entry):
                    return
                victim = self.ram.eviction_candidate(entry)
                if victim is None or _last_failure(victim)[0]:
                    return
                self.ram.begin_eviction(victim)
            if self._evict(victim) is not None:
                return  # the next put that needs the memory raises it

    def _evict(self, victim: TierEntry) -> StoreError | MemoryError | None:
        """Put ``victim`` into a lower tier, or cancel its prefetch; return the error."""
        if isinstance(victim.tier_state, Ending):
            self._cancel_read(victim)
            return None
        placed = failure = None
        try:
            assert victim.tier_state.array is not None
            placed, failure = self._put_lower(victim, victim.tier_state.array)
            if placed is not None and not placed[0].captured:
                self._evicts_early = True
        except MemoryError as error:
            failure = error.with_traceback(None)
        finally:
            with self.lock:
                self.ram.on_evicted(victim, placed)
                self._notify_all()
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
        failure, first = _last_failure(entry)
        if failure is None or isinstance(failure, _FULL):
            for index, store in enumerate(self.below[first:], first):
                try:
                    with interruptible:
                        return (store.put(array, attributes=entry.attributes), index), None
                except StoreError as error:
                    failure = self.without_tracebacks(error)
                if not isinstance(failure, _FULL):
                    break
        if failure is None:
            failure = QuotaExceededError(
                f"{entry.nbytes} bytes do not fit into the {self.ram.nbytes} bytes of RAM, of "
                f"which {self.used_nbytes} are in use, and there is no tier below",
                fix="Raise nbytes, add a tier below, or drop handles first",
            )
        return None, self.as_own_error(failure, entry)

    def _copy_to_ram(self, entry: TierEntry, array: Array, seconds: float) -> None:
        held = None
        try:
            with interruptible:
                held = self._hold(entry.shape, entry.dtype)
                np.copyto(held, array)
            with self.lock:
                self.check_open(entry)
                self.ram.on_copied(entry, held)
                self._count_put(seconds)
                self.count(written_nbytes=entry.nbytes)
                self._notify_all()
        except BaseException:
            held = None
            with self.lock:
                self.ram.on_copy_failed(entry)
                self._notify_all()
            raise

    # ---- from lower tiers

    def get(self, entry: TierEntry, out: Array | None) -> Array:
        """The array, in ``out``, or in the target of a prefetch, or in a new array."""
        began = time.perf_counter()
        array, held, lower, hit = self._begin_get(entry, out)
        filled, failure = False, None
        try:
            with interruptible:
                if array is None:
                    array = self._allocate(entry.shape, entry.dtype)
                if lower is not None:
                    lower.get(array)
                elif held is not None:
                    np.copyto(array, held)
            filled = True
        except StoreError as error:
            failure = self.without_tracebacks(error)
        finally:
            with self.lock:
                if hit:
                    ended = filled or failure is not None
                    self.ram.on_ended(entry, ended, taken=filled and out is None)
                    self._notify_all()
                if filled:
                    seconds = time.perf_counter() - began
                    self.count(
                        gets=1,
                        prefetch_hits=hit,
                        read_nbytes=entry.nbytes,
                        get_stall_seconds=seconds,
                    )
        if failure is not None:
            raise self.as_own_error(failure, entry)
        assert array is not None
        return array

    def _begin_get(
        self, entry: TierEntry, out: Array | None
    ) -> tuple[Array | None, Array | None, Handle | None, bool]:
        """Begin to end a prefetch.

        Returns:
            The array to fill, if known; the copy in RAM, or the handle below; and whether the array
            is being prefetched.
        """
        with self.lock:
            self._wait_for_move_of_read(entry)
            self.ram.order.record_use(entry.serial)
            target, entry.requested = entry.requested, None
            state = entry.tier_state
            hit = isinstance(state, Prefetching)
            if hit:
                target = state.target
                self.ram.begin_end(entry)
            lower = None if state.is_resident else state.lower
            return target if out is None else out, state.array, lower, hit

    def prefetch(self, entry: TierEntry, out: Array | None) -> None:
        """Begin to read into ``out``, or into RAM if it has space, unless that has begun."""
        with self.lock:
            self._wait_for_move_of_read(entry)
            state = entry.tier_state
            elsewhere = isinstance(state, Prefetching) and out is not state.target
        if elsewhere and out is not None:
            self.cancel_prefetch(entry)
        with self.lock:
            self._wait_for_move_of_read(entry)
            self.ram.order.request(entry.serial)
            if isinstance(entry.tier_state, Prefetching):
                return
            if out is not None:
                entry.requested = out
            state = entry.tier_state
            if type(state) is not Lower or not state.lower.store.reads_ahead:
                return
            out, entry.requested = entry.requested, None
            if out is not None:
                self.ram.begin_prefetch(entry, counted=False)
        if out is not None or self._make_room(entry, prefetching=True):
            self._begin_read(entry, out)

    def cancel_prefetch(self, entry: TierEntry) -> None:
        """Discard a prefetch, begun or requested."""
        with self.lock:
            if self.closed:
                return
            self._wait_for_move_of_read(entry)
            self.ram.order.cancel_request(entry.serial)
            entry.requested = None
            if not isinstance(entry.tier_state, Prefetching):
                return
            self.ram.begin_end(entry)
        self._cancel_read(entry)

    def _wait_for_move_of_read(self, entry: TierEntry) -> None:
        """Wait while another thread starts or ends a read of ``entry``; with the lock held."""
        self.check_open(entry)
        while isinstance(entry.tier_state, Starting | Ending):
            self._wait()
            self.check_open(entry)

    def _begin_read(self, entry: TierEntry, out: Array | None) -> None:
        lower = entry.tier_state.lower
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
            failure = self.without_tracebacks(error)
        finally:
            with self.lock:
                self.ram.on_prefetched(entry, target, begun)
                self._notify_all()
        if failure is not None:
            raise self.as_own_error(failure, entry)

    def _cancel_read(self, entry: TierEntry) -> None:
        lower = entry.tier_state.lower
        assert lower is not None
        ended = False
        try:
            with interruptible, contextlib.suppress(StoreError):
                lower.store.cancel_prefetch(lower)
            ended = True
        finally:
            with self.lock:
                self.ram.on_ended(entry, ended)
                self._notify_all()

    def check_written(self, entry: TierEntry) -> None:
        """Raise the error of the write of ``entry``, if it has failed and RAM has no copy."""
        self.check_process(entry)
        with self.lock:
            state = entry.tier_state
            lower = None if state.is_resident else state.lower
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
        """Wait for evictions by other threads, and flush the lower tiers."""
        self.check_open()
        with self.lock:
            moving = self.ram.moving.values()
            evicting = [entry for entry in moving if isinstance(entry.tier_state, Evicting)]
            while evicting:
                self._wait()
                self.check_open()
                evicting = [entry for entry in evicting if isinstance(entry.tier_state, Evicting)]
        for store in self.below:
            with interruptible:
                store.flush()

    def close(self) -> None:
        """Close the lower tiers and release RAM; raise the first error of a tier."""
        if os.getpid() != self._pid:
            return
        with self.lock:
            self.closed = True
            self._notify_all()
        for store in self.below:
            try:
                with interruptible:
                    store.close()
            except StoreError as error:
                self._close_errors.append(self.without_tracebacks(error))
        with self.lock:
            self._wait_for_moves()
            self.ram.on_closed()
            errors = self._close_errors + self.ram.unraised
            self._close_errors, self.ram.unraised = [], []
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"also: {other}")
            raise errors[0]

    def _wait_for_moves(self) -> None:
        """Wait a bounded time for the moves of other threads, which free their arrays then."""
        until = time.monotonic() + self._timeout_seconds
        while moving := self.ram.moving.keys() - self._given_up:
            seconds = until - time.monotonic()
            if seconds <= 0:
                self._given_up |= moving
                names = [
                    f"{entry} ({entry.tier_state.name})"
                    for serial, entry in sorted(self.ram.moving.items())
                    if serial in moving
                ]
                error = StoreError(
                    f"close waited {self._timeout_seconds:g} s for other threads that still move "
                    f"{', '.join(names)}; their memory is released when they have finished",
                    store=self.name,
                    fix="See whether a store below, or an allocator, does not respond",
                )
                self._close_errors.append(error)
                return
            self._wait(seconds)

    def _check(self) -> None:
        """Raise AssertionError unless the figures agree with the states of the arrays."""
        with masked, self.lock:
            self.ram._check()

    # ---- figures and errors

    @property
    def used_nbytes(self) -> int:
        """Bytes of RAM in use."""
        with masked, self.lock:
            return self.ram.used_nbytes

    def count(self, **changes: float) -> None:
        """Add to the figures; with the lock held."""
        for name, change in changes.items():
            self.figures[name] += change

    def _count_put(self, seconds: float) -> None:
        self.count(puts=1, put_stall_seconds=seconds)

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


def _last_failure(entry: TierEntry) -> tuple[StoreError | None, int]:
    """The failure of the last write of ``entry``, if any, and the tier to try next."""
    state = entry.tier_state
    if isinstance(state, InRam) and state.failure is not None:
        return state.failure, state.tier + 1
    return None, 0
