"""Moves arrays between RAM and the stores below, on behalf of a TieredStore.

``Ram`` knows where each array is; here is what has to be done for that to change. The lock is
released while a tier below or an allocator is called: the array is ``moving`` meanwhile. A thread
waits at the lock for what another thread is doing, and for nothing else: so it is always woken.
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
    fresh,
)
from offgrad_storage.executor.finalizer_lock import Letterbox
from offgrad_storage.tiered.ram import Ram, TierEntry, Where

Array = NDArray[Any]

_FULL = (QuotaExceededError, StoreFullError)


class Tiers:
    """RAM, and the stores below it.

    Args:
        nbytes: most bytes of RAM.
        below: the stores below, the fastest first.
        allocate: where arrays that are read ahead come from.
        hold: where the arrays kept in RAM live.

    Attributes:
        lock: held for every use of ``ram`` and ``figures``.
    """

    name = "TieredStore"

    def __init__(
        self, nbytes: int, below: Sequence[AbstractArrayStore], allocate: Allocate, hold: Allocate
    ) -> None:
        self.below = below
        self.ram = Ram(nbytes)
        self.figures: dict[str, Any] = dataclasses.asdict(StoreStats())
        self.closed = False
        self._allocate = allocate
        self._hold = hold
        self._pid = os.getpid()
        self._writes_behind = False
        # Weakly: without a cycle, a store that nobody uses any more dies at once.
        handle_died = weakref.WeakMethod(self._handle_died)
        self.lock = Letterbox[TierEntry](lambda entry: _call(handle_died(), entry))

    # ---- down

    def add(self, entry: TierEntry, array: Array) -> None:
        """Store the new ``array``: in RAM, or below if all that is there is used sooner."""
        began = time.perf_counter()
        kept = self._make_room(entry, Where.ARRIVING)
        with self.lock:
            self.count(put_stall_seconds=time.perf_counter() - began)
        if kept:
            self._copy_to_ram(entry, array)
            if self._writes_behind:
                self._move_ahead(entry)
        else:
            lower = self._put_below(entry, array)
            with self.lock:
                self.check_open(entry)
                self.ram.passed(entry, lower)
                self.count(puts=1, live_handles=1, logical_nbytes=entry.nbytes)

    def _make_room(self, entry: TierEntry, purpose: Where) -> bool:
        """Claim room in RAM for ``entry``; False if nothing there is used later than it.

        For a new array this waits until the writes that make its room are done; for one to be read
        ahead it does not.
        """
        ram = self.ram
        rises = purpose is Where.RISING
        if entry.nbytes > ram.nbytes:
            return False
        while True:
            victim = leaving = None
            with self.lock:
                self.check_open(entry)
                if rises and entry.where is not Where.BELOW:
                    return False  # another thread reads it ahead
                if ram.claim(entry, purpose):
                    return True
                if ram.lacks(entry):
                    victim = ram.furthest(entry)
                    if victim is None or (rises and victim.failed is not None):
                        return False
                    ram.begin_eviction(victim)
                elif rises:
                    return False
                else:
                    first = ram.first_leaving()
                    assert first is not None
                    if first.moving:
                        self.lock.wait()
                    else:
                        leaving = first.lower
            if leaving is not None:
                leaving.wait_captured()
            if victim is not None:
                try:
                    self._evict(victim)
                except StoreError as error:
                    if rises:
                        return False  # the put that needs the room meets it again
                    error.add_note(f"while making room for {entry}")
                    raise

    def _move_ahead(self, entry: TierEntry) -> None:
        """Begin to move what an array like ``entry`` would push out, so that it need not wait."""
        while True:
            with self.lock:
                if self.closed or not self.ram.lacks(entry):
                    return
                victim = self.ram.furthest(entry)
                if victim is None or victim.failed is not None:
                    return
                self.ram.begin_eviction(victim)
            try:
                self._evict(victim)
            except StoreError:
                return  # as above

    def _evict(self, victim: TierEntry) -> None:
        if victim.where is Where.RISING:
            self._sink(victim)
            return
        lower = None
        try:
            assert victim.array is not None
            lower = self._put_below(victim, victim.array)
            if not lower.captured:
                self._writes_behind = True
        finally:
            with self.lock:
                self.ram.left(victim, lower)
                self.lock.notify_all()

    def _put_below(self, entry: TierEntry, array: Array) -> Handle:
        """Put ``array`` into the first tier below that takes it, after any it failed in.

        Raises:
            StoreError: of the last tier, if all are full, or of any that cannot for other reasons.
        """
        failure = self._failure_of(entry)
        first = 0 if failure is None else entry.tier + 1
        if failure is None or isinstance(failure, _FULL):
            for tier, store in enumerate(self.below[first:], first):
                entry.tier = tier
                try:
                    return store.put(array, attributes=entry.attributes)
                except StoreError as error:
                    failure = self.stripped(error)
                if not isinstance(failure, _FULL):
                    break
        del array  # an error that somebody keeps would keep it, too
        if failure is None:
            failure = QuotaExceededError(
                f"{entry.nbytes} bytes do not fit into the {self.ram.nbytes} bytes of RAM, of "
                f"which {self.ram.used_nbytes} are in use, and there is no tier below",
                fix="Raise nbytes, add a tier below, or let handles die first",
            )
        raise self.named(failure, entry)

    def _failure_of(self, entry: TierEntry) -> StoreError | None:
        """The error of the last write of ``entry``, if it failed; its tier counts it as told."""
        failed, entry.failed = entry.failed, None
        if failed is not None:
            try:
                failed.get(entry.array)  # raises before it writes: there is nothing to be read
            except StoreError as error:
                return self.stripped(error)
        return None

    def _copy_to_ram(self, entry: TierEntry, array: Array) -> None:
        held = None
        try:
            held = self._hold(entry.shape, entry.dtype)
            np.copyto(held, array)
            with self.lock:
                self.check_open(entry)
                self.ram.arrived(entry, held)
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
                self.ram.unclaim(entry)
                self.lock.notify_all()
            raise

    # ---- up

    def take(self, entry: TierEntry, out: Array | None) -> tuple[Array | None, bool]:
        """Begin a get: the array to fill, if that is known, and whether it is being read ahead."""
        self.settle(entry)
        hit = entry.where is Where.RISING
        return self.ram.take(entry, out), hit

    def read_ahead(self, entry: TierEntry, out: Array | None) -> None:
        """Begin to read into ``out``, or into RAM if it has room, unless that has begun."""
        with self.lock:
            self.settle(entry)
            elsewhere = entry.where is Where.RISING and out is not entry.target
        if elsewhere and out is not None:
            self.cancel(entry)
        with self.lock:
            self.settle(entry)
            self.ram.order.want(entry.serial)
            if entry.where is Where.RISING:
                return
            if out is not None:
                entry.target = out
            if entry.where is not Where.BELOW:
                return
            assert entry.lower is not None
            if not entry.lower.store.reads_ahead:
                return
            out = entry.target
            if out is not None:
                self.ram.begin_rising(entry, counted=False)
        if out is not None or self._make_room(entry, Where.RISING):
            self._begin_read(entry, out)

    def cancel(self, entry: TierEntry) -> None:
        """Forget what was read ahead, or was to be."""
        with self.lock:
            if self.closed:
                return
            self.settle(entry)
            self.ram.order.unwant(entry.serial)
            if entry.where is not Where.RISING:
                entry.target = None
                return
            self.ram.begin_eviction(entry)
        self._sink(entry)

    def settle(self, entry: TierEntry) -> None:
        """Wait while another thread starts or cancels a read of ``entry``; with the lock held."""
        self.check_open(entry)
        while entry.moving and entry.where is Where.RISING:
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
            failure = self.stripped(error)
        finally:
            with self.lock:
                self.ram.risen(entry, target, started)
                self.lock.notify_all()
        if failure is not None:
            raise self.named(failure, entry)

    def _sink(self, entry: TierEntry) -> None:
        lower = entry.lower
        assert lower is not None
        try:
            with contextlib.suppress(StoreError):
                lower.store.cancel_prefetch(lower)
        finally:
            with self.lock:
                self.ram.sunk(entry)
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
                failure = self.stripped(error)
            if failure is not None:
                raise self.named(failure, entry)

    # ---- the end

    def flush(self) -> None:
        """Wait for what other threads are moving down now, and have the tiers below write it."""
        self.check_open()
        with self.lock:
            moving = [entry for entry in self.ram.live.values() if entry.moving]
            while any(entry.moving for entry in moving):
                self.lock.wait()
                self.check_open()
        for store in self.below:
            store.flush()

    def drop(self, entry: TierEntry) -> None:
        """The handle of ``entry`` has died. Never waits: the garbage collector calls it."""
        if os.getpid() == self._pid:
            self.lock.post(entry)

    def close(self) -> None:
        """Close the tiers below and give up RAM; raise the first error of a tier."""
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
                errors.append(self.stripped(error))
        with self.lock:
            while any(entry.moving for entry in self.ram.live.values()):
                self.lock.wait()
            for entry in list(self.ram.live.values()):
                self.ram.died(entry)
            self.figures.update(live_handles=0, logical_nbytes=0)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"also: {other}")
            raise errors[0]

    def _handle_died(self, entry: TierEntry) -> None:
        if entry.serial in self.ram.live:
            self.ram.died(entry)
            self.count(live_handles=-1, logical_nbytes=-entry.nbytes)
            self.lock.notify_all()

    # ---- figures and errors

    def count(self, **changes: float) -> None:
        """Add to the figures; with the lock held."""
        for name, change in changes.items():
            self.figures[name] += change

    def is_forked(self) -> bool:
        """Whether this process is a fork of the one whose store this is."""
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
        """Raise if this process is a fork; to be called before the lock is taken."""
        if self.is_forked():
            raise ForkedStoreError(
                f"the store belongs to process {self._pid}, this is its fork {os.getpid()}",
                store=self.name,
                handle=str(entry or ""),
                fix="Make a store of its own in the child, or use it in the parent only",
            )

    def stripped(self, error: StoreError) -> StoreError:
        """``error`` without tracebacks, which would keep arrays alive."""
        return as_store_error(error, "moving an array", store=self.name)

    def named(self, error: StoreError, entry: TierEntry) -> StoreError:
        """``error`` of a tier below as one of this store, naming its array; of the same kind."""
        result = fresh(error)
        result.args = (f"{self.name}, {entry}: {error}",)
        result.store, result.handle = self.name, str(entry)
        return result


def _call(method: Callable[[TierEntry], object] | None, entry: TierEntry) -> None:
    if method is not None:
        method(entry)
