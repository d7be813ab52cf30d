"""TieredStore: arrays in RAM up to a budget, and in slower stores from there on."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .base import AbstractArrayStore, Allocate, Handle, StoreStats
from .buffers import BufferPool
from .entry import Entry
from .errors import (
    ForkedStoreError,
    QuotaExceededError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    as_store_error,
    fresh,
)
from .letterbox import Letterbox
from .ram import Ram, TierEntry, Where

Array = NDArray[Any]

_FULL = (QuotaExceededError, StoreFullError)


class TieredStore(AbstractArrayStore):
    """Keeps arrays in RAM up to ``nbytes``, and moves them to the stores below when that is spent.

        with TieredStore(512 << 20, DiskStore(), ZarrStore("activations.zarr")) as store:
            handles = [store.put(array) for array in arrays]
            store.plan(handles[::-1])

    What moves is the array whose next use is furthest away once ``plan`` has told the order, and
    the oldest until then; the new array itself, if its use is. ``put`` waits for the write of what
    has to move only if RAM has no room before. An array larger than ``nbytes`` goes below at once.

    A tier that is full is passed over for the next; when all are, ``put`` raises the error of the
    last. An array stays in RAM until its write is done, so a failed write below loses nothing but
    arrays that went below at once; ``put`` raises it when it needs the room.

    A prefetch reads an array ahead into memory of the store, for the next ``get`` to take, if there
    is room or something used later can make way; else ``get`` reads it.

    Args:
        nbytes: most bytes of RAM: arrays kept, on their way down, and read ahead and not yet got.
        below: the tiers below, the fastest first. They belong to this store, which closes them.
        allocate: where arrays that are read back come from; None for a BufferPool of its own.
        hold: where the arrays kept in RAM live; None for a BufferPool of its own.

    Raises, besides StoreErrors, the MemoryError of ``hold`` and ``allocate``.
    """

    def __init__(
        self,
        nbytes: int,
        *below: AbstractArrayStore,
        allocate: Allocate | None = None,
        hold: Allocate | None = None,
    ) -> None:
        if nbytes < 0:
            raise ValueError(f"nbytes must be at least 0, got {nbytes}")
        self.below = below
        self._allocate = BufferPool().empty if allocate is None else allocate
        self._hold = BufferPool().empty if hold is None else hold
        self._pid = os.getpid()
        self._serial = itertools.count()
        self._ram = Ram(nbytes)
        self._figures: dict[str, Any] = dataclasses.asdict(StoreStats())
        self._closed = False
        self._moves_ahead = False
        # Threads wait at this lock only for what another thread is doing: that one wakes them.
        handle_died = weakref.WeakMethod(
            self._handle_died
        )  # no cycle: an unused store dies at once
        self._lock = Letterbox[TierEntry](lambda entry: _call(handle_died(), entry))

    # ---- the contract

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Store ``array``: see ``AbstractArrayStore.put``.

        Raises:
            QuotaExceededError, StoreFullError: neither RAM nor any tier below has room.
        """
        array = np.asarray(array)
        if array.dtype.hasobject:
            raise TypeError(
                f"{self._name}: a store holds plain bytes, but dtype {array.dtype} holds Python "
                "objects. Convert it to numbers or fixed-size text"
            )
        entry = TierEntry(next(self._serial), array, dict(attributes or {}))
        handle = _TieredHandle(self, entry)
        self._check_open(entry)
        began = time.perf_counter()
        kept = self._make_room(entry, Where.ARRIVING)
        stalled = time.perf_counter() - began
        if kept:
            self._copy_to_ram(entry, array)
        else:
            lower = self._put_below(entry, array)
            with self._lock:
                self._check_open(entry)
                self._ram.passed(entry, lower)
                self._count(puts=1, live_handles=1, logical_nbytes=entry.nbytes)
        with self._lock:
            self._count(put_stall_seconds=stalled)
        if kept and self._moves_ahead:
            self._move_ahead(entry)
        return handle

    def get(self, handle: Handle, out: Array | None = None) -> Array:
        """The stored array: see ``AbstractArrayStore.get``."""
        entry = self._entry_of(handle)
        if out is not None:
            _check_out(entry, out)
        began = time.perf_counter()
        self._check_process(entry)
        with self._lock:
            self._settle(entry)
            hit = entry.where is Where.RISING
            target = self._ram.take(entry, out)
            held, lower = entry.array, entry.lower
        if target is None:
            target = self._allocate(entry.shape, entry.dtype)
        if held is not None:
            np.copyto(target, held)
        else:
            assert lower is not None
            failure = None
            try:
                lower.get(target)
            except StoreError as error:
                failure = as_store_error(error, "reading", store=self._name)
            if failure is not None:
                raise self._named(failure, entry)
        with self._lock:
            self._count(
                gets=1,
                prefetch_hits=hit,
                read_nbytes=entry.nbytes,
                get_stall_seconds=time.perf_counter() - began,
            )
        return target

    def prefetch(self, handle: Handle, out: Array | None = None) -> None:
        """Start reading: see ``AbstractArrayStore.prefetch``.

        An array in RAM is read by ``get``, and moves down after those not prefetched nor planned.
        """
        entry = self._entry_of(handle)
        if out is not None:
            _check_out(entry, out)
            if not out.flags.c_contiguous:
                raise ValueError("prefetch needs a C-contiguous out; get takes any")
        self._check_process(entry)
        with self._lock:
            self._settle(entry)
            elsewhere = entry.where is Where.RISING and out is not entry.target
        if elsewhere and out is not None:
            self.cancel_prefetch(handle)
        with self._lock:
            self._settle(entry)
            self._ram.order.want(entry.serial)
            if entry.where is Where.RISING:
                return
            if out is not None:
                entry.target = out
            if entry.lower is None or not entry.lower.store.reads_ahead or entry.array is not None:
                return
            out = entry.target
            if out is not None:
                self._ram.begin_rising(entry, counted=False)
        if out is not None or self._make_room(entry, Where.RISING):
            self._raise_up(entry, out)

    def cancel_prefetch(self, handle: Handle) -> None:
        """Forget a prefetch: see ``AbstractArrayStore.cancel_prefetch``."""
        entry = self._entry_of(handle)
        self._check_process(entry)
        with self._lock:
            if self._closed:
                return
            self._settle(entry)
            self._ram.order.unwant(entry.serial)
            sinks = entry.where is Where.RISING
            if sinks:
                self._ram.begin_sinking(entry)
            else:
                entry.target = None
        if sinks:
            self._sink(entry)

    @property
    def reads_ahead(self) -> bool:
        """Whether any tier below reads ahead."""
        return any(store.reads_ahead for store in self.below)

    def plan(self, order: Sequence[Handle]) -> None:
        """Learn the order in which handles will be wanted next: see ``AbstractArrayStore.plan``.

        A handle may occur several times; each ``get`` of it uses up one. Takes time in proportion
        to the length of ``order`` and the number of arrays in RAM.

        Raises:
            ValueError: a handle is of another store.
        """
        serials = [self._entry_of(handle).serial for handle in order]
        self._check_process(None)
        with self._lock:
            self._check_open()
            self._ram.order.plan(serials)

    def stats(self) -> StoreStats:
        """The figures so far; those of stored and pending bytes are over all tiers."""
        self._check_process(None)
        tiers = [store.stats() for store in self.below]
        with self._lock:
            figures = dict(self._figures)
            figures["stored_nbytes"] = self._ram.kept_nbytes
        for tier in tiers:
            for name in ("stored_nbytes", "written_nbytes", "inflight_nbytes"):
                figures[name] += getattr(tier, name)
        return StoreStats(**figures)

    def close(self) -> None:
        """Free everything, and close the tiers below: see ``AbstractArrayStore.close``."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        errors = []
        for store in self.below:
            try:
                store.close()
            except StoreError as error:
                errors.append(as_store_error(error, "closing", store=self._name))
        with self._lock:
            while any(entry.moving for entry in self._ram.live.values()):
                self._lock.wait()
            for entry in list(self._ram.live.values()):
                self._ram.died(entry)
            self._figures.update(live_handles=0, logical_nbytes=0)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"also: {other}")
            raise errors[0]

    def _wait_captured(self, entry: Entry) -> None:
        assert isinstance(entry, TierEntry)
        lower = entry.lower
        if os.getpid() == self._pid and not entry.captured and lower is not None:
            lower.wait_captured()

    def _drop(self, entry: Entry) -> None:
        assert isinstance(entry, TierEntry)
        if os.getpid() == self._pid:
            self._lock.post(entry)

    # ---- moving arrays; the lock is released while a tier below, or an allocator, is called

    def _make_room(self, entry: TierEntry, purpose: Where) -> bool:
        """Claim room in RAM for ``entry``; False if nothing there is used later than it.

        For a new array this waits until it has its room, for one to be read ahead it does not.
        """
        ram = self._ram
        if entry.nbytes > ram.nbytes:
            return False
        while True:
            victim = leaving = None
            with self._lock:
                self._check_open(entry)
                if purpose is Where.RISING and entry.where is not Where.BELOW:
                    return False  # another thread reads it ahead
                if ram.claim(entry):
                    if purpose is Where.RISING:
                        ram.begin_rising(entry, counted=True)
                    else:
                        entry.where = purpose
                    return True
                if ram.lacks(entry):
                    victim = ram.furthest(entry)
                    if victim is None:
                        return False
                    self._begin_eviction(victim)
                else:
                    if purpose is Where.RISING:
                        return False
                    first = ram.first_leaving()
                    assert first is not None
                    if first.moving:
                        self._lock.wait()
                    else:
                        leaving = first.lower
            if victim is not None:
                try:
                    self._evict(victim)
                except StoreError as error:
                    error.add_note(f"while making room for {entry}")
                    raise
            elif leaving is not None:
                leaving.wait_captured()

    def _move_ahead(self, entry: TierEntry) -> None:
        """Begin to move what an array like ``entry`` would push out, so that it need not wait."""
        while True:
            with self._lock:
                if self._closed or not self._ram.lacks(entry):
                    return
                victim = self._ram.furthest(entry)
                if victim is None or victim.failed is not None:
                    return
                self._begin_eviction(victim)
            try:
                self._evict(victim)
            except StoreError:
                return  # the put that needs the room meets it again

    def _begin_eviction(self, victim: TierEntry) -> None:
        if victim.where is Where.RISING:
            self._ram.begin_sinking(victim)
        else:
            self._ram.begin_leaving(victim)

    def _evict(self, victim: TierEntry) -> None:
        if victim.where is Where.RISING:
            self._sink(victim)
            return
        lower = None
        try:
            assert victim.array is not None
            lower = self._put_below(victim, victim.array)
            if not lower.captured:
                self._moves_ahead = True
        finally:
            with self._lock:
                self._ram.left(victim, lower)
                self._lock.notify_all()

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
                    failure = as_store_error(error, "writing", store=self._name)
                if not isinstance(failure, _FULL):
                    break
        del array  # an error that somebody keeps would keep it, too
        if failure is None:
            failure = QuotaExceededError(
                f"{entry.nbytes} bytes do not fit into the {self._ram.nbytes} bytes of RAM, of "
                f"which {self._ram.used_nbytes} are in use, and there is no tier below",
                fix="Raise nbytes, add a tier below, or let handles die first",
            )
        raise self._named(failure, entry)

    def _failure_of(self, entry: TierEntry) -> StoreError | None:
        """The error of the last write of ``entry``, if it failed; its tier counts it as told."""
        failed, entry.failed = entry.failed, None
        if failed is not None:
            try:
                failed.get(entry.array)  # raises before it writes: there is nothing to be read
            except StoreError as error:
                return as_store_error(error, "writing", store=self._name)
        return None

    def _copy_to_ram(self, entry: TierEntry, array: Array) -> None:
        held = None
        try:
            held = self._hold(entry.shape, entry.dtype)
            np.copyto(held, array)
            with self._lock:
                self._check_open(entry)
                self._ram.arrived(entry, held)
                self._count(
                    puts=1,
                    live_handles=1,
                    logical_nbytes=entry.nbytes,
                    written_nbytes=entry.nbytes,
                )
                self._lock.notify_all()
        except BaseException:
            held = None
            with self._lock:
                self._ram.unclaim(entry)
                self._lock.notify_all()
            raise

    def _raise_up(self, entry: TierEntry, out: Array | None) -> None:
        lower = entry.lower
        assert lower is not None
        target = failure = None
        try:
            target = self._allocate(entry.shape, entry.dtype) if out is None else out
            lower.prefetch(target)
        except BaseException as error:
            target = None
            if not isinstance(error, StoreError):
                raise
            failure = as_store_error(error, "reading ahead", store=self._name)
        finally:
            with self._lock:
                self._ram.risen(entry, target)
                self._lock.notify_all()
        if failure is not None:
            raise self._named(failure, entry)

    def _sink(self, entry: TierEntry) -> None:
        lower = entry.lower
        assert lower is not None
        try:
            with contextlib.suppress(StoreError):
                lower.store.cancel_prefetch(lower)
        finally:
            with self._lock:
                self._ram.sunk(entry)
                self._lock.notify_all()

    def _settle(self, entry: TierEntry) -> None:
        """Wait while another thread starts or cancels a read of ``entry``; with the lock held."""
        self._check_open(entry)
        while entry.moving and entry.where is Where.RISING:
            self._lock.wait()
            self._check_open(entry)

    # ---- figures and errors

    def _count(self, **changes: float) -> None:
        for name, change in changes.items():  # with the lock held
            self._figures[name] += change

    def _handle_died(self, entry: TierEntry) -> None:
        if entry.serial in self._ram.live:
            self._ram.died(entry)
            self._count(live_handles=-1, logical_nbytes=-entry.nbytes)
            self._lock.notify_all()

    @property
    def _name(self) -> str:
        return "TieredStore"

    def _entry_of(self, handle: Handle) -> TierEntry:
        if handle.store is not self:
            raise ValueError(f"{handle} belongs to another store than {self}")
        assert isinstance(handle._entry, TierEntry)
        return handle._entry

    def _named(self, error: StoreError, entry: TierEntry) -> StoreError:
        """``error`` of a tier below as one of this store, naming its array; of the same kind."""
        result = fresh(error)
        result.args = (f"{self._name}, {entry}: {error}",)
        result.store, result.handle = self._name, str(entry)
        return result

    def _check_open(self, entry: TierEntry | None = None) -> None:
        self._check_process(entry)
        if self._closed:
            raise StoreClosedError(
                "the store is closed",
                store=self._name,
                handle=str(entry or ""),
                fix="Close a store after the last use of its handles",
            )

    def _check_process(self, entry: TierEntry | None) -> None:
        if os.getpid() != self._pid:
            raise ForkedStoreError(
                f"the store belongs to process {self._pid}, this is its fork {os.getpid()}",
                store=self._name,
                handle=str(entry or ""),
                fix="Make a store of its own in the child, or use it in the parent only",
            )

    def __repr__(self) -> str:
        return f"<{self._name} of {self._ram.nbytes} bytes over {list(self.below)}>"


class _TieredHandle(Handle):
    """Takes from the tier below what only that knows."""

    __slots__ = ()

    @property
    def stored_nbytes(self) -> int:
        """Bytes it takes in all tiers; an upper estimate until it is written."""
        entry = self._entry
        assert isinstance(entry, TierEntry)
        lower = entry.lower
        kept_nbytes = 0 if entry.array is None else entry.nbytes
        return kept_nbytes + (0 if lower is None else lower.stored_nbytes)

    @property
    def captured(self) -> bool:
        """Whether the store is done with the array given to put, so that it may change."""
        entry = self._entry
        assert isinstance(entry, TierEntry)
        lower = entry.lower
        return entry.captured or (lower is not None and lower.captured)


def _call(method: Callable[[TierEntry], object] | None, entry: TierEntry) -> None:
    if method is not None:
        method(entry)


def _check_out(entry: Entry, out: Array) -> None:
    if out.shape != entry.shape or out.dtype != entry.dtype:
        raise ValueError(
            f"out must have the shape and dtype of the stored array, {entry.shape} and "
            f"{entry.dtype}; got {out.shape} and {out.dtype}"
        )
    if not out.flags.writeable:
        raise ValueError("out is read-only; give an array that may be written to")
