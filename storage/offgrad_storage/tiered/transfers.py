"""The operations of a TieredStore, as transfers between its tiers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.base import Allocate, Handle
from offgrad_storage.errors import StoreError
from offgrad_storage.interrupts import interruptible
from offgrad_storage.tiered.evictor import Evictor
from offgrad_storage.tiered.moves import Moves
from offgrad_storage.tiered.states import (
    Ending,
    Evicting,
    Lower,
    Prefetching,
    Starting,
    TierEntry,
)
from offgrad_storage.tiered.tiers import Tiers

Array = NDArray[Any]


@dataclass(slots=True)
class _Get:
    """A get under way.

    Attributes:
        target: the array to fill; None for a new one.
        held: the copy in RAM.
        lower: the handle below.
        ends_prefetch: whether it takes, or at least ends, a prefetch.
    """

    target: Array | None
    held: Array | None
    lower: Handle | None
    ends_prefetch: bool


class TierTransfers:
    """Puts, gets, prefetches, flushes and the close of a TieredStore.

    Call the methods in a masked block: see ``tiers``.

    Args:
        tiers: the tiers.
        allocate: allocates arrays that are read back.
        hold: allocates the arrays kept in RAM.
        timeout_seconds: ``close`` waits so long for other threads.
    """

    def __init__(
        self, tiers: Tiers, allocate: Allocate, hold: Allocate, timeout_seconds: float
    ) -> None:
        if not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be positive, got {timeout_seconds}")
        self.ram = tiers.ram
        self._tiers = tiers
        self._moves = Moves(tiers, allocate, hold)
        self._evictor = Evictor(tiers, self._moves)
        self._allocate = allocate
        self._timeout_seconds = timeout_seconds
        self._close_errors: list[StoreError] = []  # kept while close is interrupted
        self._given_up: set[int] = set()  # serials of arrays that close has not waited for

    # ---- put

    def put(self, entry: TierEntry, array: Array) -> None:
        """Store the new ``array`` in RAM, or lower if all arrays in RAM are used sooner."""
        began = time.perf_counter()
        has_room = self._evictor.make_room(entry)
        stall_seconds = time.perf_counter() - began
        if has_room:
            self._moves.copy_in(entry, array, stall_seconds)
            self._evictor.make_room_ahead(entry)
        else:
            self._moves.pass_down(entry, array, stall_seconds)

    def check_written(self, entry: TierEntry) -> None:
        """Raise the error of the write of ``entry``, if it has failed and RAM has no copy."""
        tiers = self._tiers
        tiers.check_process(entry)
        with tiers.lock:
            state = entry.tier_state
            lower = None if state.is_resident else state.lower
        if lower is None:
            return
        failure = None
        try:
            lower.check()
        except StoreError as error:
            failure = tiers.without_tracebacks(error)
        if failure is not None:
            raise tiers.as_own_error(failure, entry)

    # ---- get and prefetch

    def get(self, entry: TierEntry, out: Array | None) -> Array:
        """The array, in ``out``, or in the target of a prefetch, or in a new array."""
        tiers, began = self._tiers, time.perf_counter()
        get = self._begin_get(entry, out)
        filled, failure = False, None
        try:
            with interruptible:
                self._fill(entry, get)
            filled = True
        except StoreError as error:
            failure = tiers.without_tracebacks(error)
        finally:
            with tiers.lock:
                if get.ends_prefetch:
                    ended = filled or failure is not None
                    self.ram.on_ended(entry, ended, taken=filled and out is None)
                    tiers.notify_all()
                if filled:
                    self._count_get(entry, get, began)
        if failure is not None:
            raise tiers.as_own_error(failure, entry)
        assert get.target is not None
        return get.target

    def _begin_get(self, entry: TierEntry, out: Array | None) -> _Get:
        """Begin to end a prefetch, if there is one."""
        with self._tiers.lock:
            self._wait_for_move_of_read(entry)
            self.ram.order.record_use(entry.serial)
            target, entry.requested = entry.requested, None
            state = entry.tier_state
            ends_prefetch = isinstance(state, Prefetching)
            if isinstance(state, Prefetching):
                target = state.target
                self.ram.begin_end(entry)
            lower = None if state.is_resident else state.lower
            return _Get(target if out is None else out, state.array, lower, ends_prefetch)

    def _fill(self, entry: TierEntry, get: _Get) -> None:
        if get.target is None:
            get.target = self._allocate(entry.shape, entry.dtype)
        if get.lower is not None:
            get.lower.get(get.target)
        elif get.held is not None:
            np.copyto(get.target, get.held)

    def _count_get(self, entry: TierEntry, get: _Get, began: float) -> None:
        self._tiers.count(
            gets=1,
            prefetch_hits=get.ends_prefetch,
            read_nbytes=entry.nbytes,
            get_stall_seconds=time.perf_counter() - began,
        )

    def prefetch(self, entry: TierEntry, out: Array | None) -> None:
        """Begin to read into ``out``, or into RAM if it has space, unless that has begun."""
        with self._tiers.lock:
            self._wait_for_move_of_read(entry)
            state = entry.tier_state
            has_other_target = isinstance(state, Prefetching) and out is not state.target
        if has_other_target and out is not None:
            self.cancel_prefetch(entry)
        with self._tiers.lock:
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
        if out is not None or self._evictor.make_room_for_prefetch(entry):
            self._moves.begin_read(entry, out)

    def cancel_prefetch(self, entry: TierEntry) -> None:
        """Discard a prefetch, begun or requested."""
        with self._tiers.lock:
            if self._tiers.closed:
                return
            self._wait_for_move_of_read(entry)
            self.ram.order.cancel_request(entry.serial)
            entry.requested = None
            if not isinstance(entry.tier_state, Prefetching):
                return
            self.ram.begin_end(entry)
        self._moves.cancel_read(entry)

    def _wait_for_move_of_read(self, entry: TierEntry) -> None:
        """Wait while another thread starts or ends a read of ``entry``; with the lock held."""
        tiers = self._tiers
        tiers.check_open(entry)
        while isinstance(entry.tier_state, (Starting, Ending)):
            tiers.wait()
            tiers.check_open(entry)

    # ---- flush and close

    def flush(self) -> None:
        """Wait for evictions by other threads, and flush the lower tiers."""
        tiers = self._tiers
        tiers.check_open()
        with tiers.lock:
            moving = self.ram.moving.values()
            evicting = [entry for entry in moving if isinstance(entry.tier_state, Evicting)]
            while evicting:
                tiers.wait()
                tiers.check_open()
                evicting = [entry for entry in evicting if isinstance(entry.tier_state, Evicting)]
        for store in tiers.below:
            with interruptible:
                store.flush()

    def close(self) -> None:
        """Close the lower tiers and release RAM; raise the first error of a tier."""
        tiers = self._tiers
        if tiers.is_forked():
            return
        with tiers.lock:
            tiers.closed = True
            tiers.notify_all()
        for store in tiers.below:
            try:
                with interruptible:
                    store.close()
            except StoreError as error:
                self._close_errors.append(tiers.without_tracebacks(error))
        with tiers.lock:
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
        while unfinished := self.ram.moving.keys() - self._given_up:
            seconds = until - time.monotonic()
            if seconds <= 0:
                self._give_up(unfinished)
                return
            self._tiers.wait(seconds)

    def _give_up(self, unfinished: set[int]) -> None:
        moving = [self.ram.moving[serial] for serial in sorted(unfinished)]
        names = ", ".join(f"{entry} ({entry.tier_state.name})" for entry in moving)
        self._given_up |= unfinished
        self._close_errors.append(
            StoreError(
                f"close waited {self._timeout_seconds:g} s for other threads that still move "
                f"{names}; their memory is released when they have finished",
                store=self._tiers.name,
                fix="See whether a store below, or an allocator, does not respond",
            )
        )

    # ---- for tests

    @property
    def closed(self) -> bool:
        """Whether the store refuses new work."""
        return self._tiers.closed

    @property
    def used_nbytes(self) -> int:
        """Bytes of RAM in use."""
        return self._tiers.used_nbytes
