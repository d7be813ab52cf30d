"""TieredStore: arrays in RAM up to a budget, and the others in slower stores."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offgrad_storage._checks import check_count
from offgrad_storage.base import (
    AbstractArrayStore,
    Allocate,
    Handle,
    StoreStats,
)
from offgrad_storage.entry import Entry, check_out, check_plain
from offgrad_storage.interrupts import masked
from offgrad_storage.memory.buffer_pool import BufferPool
from offgrad_storage.tiered.states import TierEntry
from offgrad_storage.tiered.tiers import Tiers
from offgrad_storage.tiered.transfers import TierTransfers

Array = NDArray[Any]


class TieredStore(AbstractArrayStore):
    """Keeps arrays in RAM up to ``nbytes``, and evicts the others to the stores below.

        with TieredStore(512 << 20, DiskStore(), ZarrStore("activations.zarr")) as store:
            handles = [store.put(array) for array in arrays]
            store.plan(handles[::-1])

    The array with the furthest next use in the ``plan`` is evicted first; without a plan, the
    oldest. If the new array itself has the furthest next use, or is larger than ``nbytes``, it goes
    below at once. ``put`` waits for a write only where it needs that write's memory; after the
    first such wait, each put also starts the evictions that the next one of its size will need.

    A full tier is skipped; when all tiers are full, ``put`` raises the error of the last. An array
    stays in RAM until its write is done, so a failed eviction loses no data; the next ``put`` that
    needs the memory raises the error.

    A prefetch reads an array into memory of the store for the next ``get``, if there is space or an
    array with a later use to evict; else ``get`` reads it.

    It has neither codec nor quota: give those to the stores below. Arrays in RAM are not encoded.

    Args:
        nbytes: bound of the bytes of RAM: arrays kept, being evicted, and prefetched.
        below: the stores below, the fastest first. The TieredStore owns and closes them.
        allocate: allocates arrays that are read back; None for a separate BufferPool.
        hold: allocates the arrays kept in RAM; None for a separate BufferPool.
        timeout_seconds: ``close`` gives up after so many seconds of waiting for other threads, and
            says for what. The stores below have such bounds of their own.

    Its methods also raise the MemoryError of ``hold`` and ``allocate``.
    """

    def __init__(
        self,
        nbytes: int,
        *below: AbstractArrayStore,
        allocate: Allocate | None = None,
        hold: Allocate | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        check_count("nbytes", nbytes)
        self._allocate = BufferPool().empty if allocate is None else allocate
        hold = BufferPool().empty if hold is None else hold
        self._tiers = Tiers(nbytes, below)
        self._transfers = TierTransfers(self._tiers, self._allocate, hold, timeout_seconds)
        self._serial = itertools.count()

    @property
    def below(self) -> Sequence[AbstractArrayStore]:
        """The stores below, the fastest first."""
        return self._tiers.below

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Store ``array``: see ``AbstractArrayStore.put``.

        Raises:
            QuotaExceededError: neither RAM nor any store below has space.
            StoreFullError: the same, with a full disk below.
        """
        array = np.asarray(array)
        check_plain(array, self._tiers.name)
        with masked:
            entry = TierEntry(next(self._serial), array, dict(attributes or {}))
            handle = _TieredHandle(self, entry)
            self._tiers.check_open(entry)
            self._transfers.put(entry, array)
            return handle

    def get(self, handle: Handle, out: Array | None = None) -> Array:
        """Return the stored array: see ``AbstractArrayStore.get``."""
        entry = self._entry_of(handle)
        if out is not None:
            check_out(entry, out)
        self._tiers.check_process(entry)
        with masked:
            return self._transfers.get(entry, out)

    def prefetch(self, handle: Handle, out: Array | None = None) -> None:
        """Start reading: see ``AbstractArrayStore.prefetch``.

        An array in RAM is not read, but evicted after those neither prefetched nor planned.
        """
        entry = self._entry_of(handle)
        if out is not None:
            check_out(entry, out, contiguous=True)
        self._tiers.check_process(entry)
        with masked:
            self._transfers.prefetch(entry, out)

    def cancel_prefetch(self, handle: Handle) -> None:
        """Discard a prefetch: see ``AbstractArrayStore.cancel_prefetch``."""
        entry = self._entry_of(handle)
        self._tiers.check_process(entry)
        with masked:
            self._transfers.cancel_prefetch(entry)

    @property
    def lossless(self) -> bool:
        """Whether all stores below are lossless."""
        return all(store.lossless for store in self.below)

    @property
    def reads_ahead(self) -> bool:
        """Whether any store below reads ahead."""
        return any(store.reads_ahead for store in self.below)

    def plan(self, order: Sequence[Handle]) -> None:
        """Announce the order of the next gets: see ``AbstractArrayStore.plan``.

        A handle may occur several times; each ``get`` consumes one. Linear in the length of
        ``order`` and the number of arrays in RAM.

        Raises:
            ValueError: a handle is of another store.
        """
        serials = [self._entry_of(handle).serial for handle in order]
        self._tiers.check_process()
        with masked, self._tiers.lock:
            self._tiers.check_open()
            self._tiers.ram.order.plan(serials)

    def flush(self) -> None:
        """Wait until every pending write of the stores below has ended.

        Arrays in RAM stay there.
        """
        with masked:
            self._transfers.flush()

    def stats(self) -> StoreStats:
        """The figures so far; stored, written and pending bytes are summed up over all tiers."""
        self._tiers.check_process()
        below = [store.stats() for store in self.below]
        figures = self._tiers.own_figures()
        for each in below:
            for name in ("stored_nbytes", "written_nbytes", "inflight_nbytes"):
                figures[name] += getattr(each, name)
        return StoreStats(**figures)

    def close(self) -> None:
        """Free everything, and close the stores below: see ``AbstractArrayStore.close``."""
        with masked:
            self._transfers.close()

    @property
    def packs_nbytes(self) -> int:
        """Bytes of memory that packs of small arrays hold in the stores below."""
        return sum(store.packs_nbytes for store in self.below)

    def trim(self) -> None:
        """Reduce ``packs_nbytes`` of the stores below: see ``AbstractArrayStore.trim``."""
        for store in self.below:
            store.trim()

    def _entry_of(self, handle: Handle) -> TierEntry:
        if handle.store is not self:
            raise ValueError(f"{handle} belongs to another store than {self}")
        return _tier_entry(handle._entry)

    def _check_open(self) -> None:
        self._tiers.check_open()

    def _wait_captured(self, entry: Entry) -> None:
        state = _tier_entry(entry).tier_state
        # No thread reads from the memory of a fork.
        if not (state.is_captured or self._tiers.is_forked()) and state.lower is not None:
            state.lower.wait_captured()

    def _wait_written(self, entry: Entry) -> None:
        state = _tier_entry(entry).tier_state
        if not (state.is_captured or self._tiers.is_forked()) and state.lower is not None:
            state.lower.wait_written()

    def _check_written(self, entry: Entry) -> None:
        with masked:
            self._transfers.check_written(_tier_entry(entry))

    def _check(self) -> None:
        """Raise AssertionError unless the figures agree with the states of the arrays."""
        self._tiers._check()
        for store in self.below:
            if isinstance(store, TieredStore):
                store._check()

    def __repr__(self) -> str:
        tiers = self._tiers
        return f"<{tiers.name} of {tiers.ram.budget.nbytes} bytes over {list(self.below)}>"


class _TieredHandle(Handle):
    """Asks the lower tier for its figures."""

    __slots__ = ()

    @property
    def encoded_nbytes(self) -> int:
        """Bytes after encoding in the lower tier; ``nbytes`` while only in RAM."""
        lower = _tier_entry(self._entry).tier_state.lower
        return self.nbytes if lower is None else lower.encoded_nbytes

    @property
    def stored_nbytes(self) -> int:
        """Bytes it takes in all tiers; an upper estimate until it is written."""
        state = _tier_entry(self._entry).tier_state
        resident_nbytes = self.nbytes if state.is_resident else 0
        return resident_nbytes + (0 if state.lower is None else state.lower.stored_nbytes)

    @property
    def captured(self) -> bool:
        """Whether the array passed to put may be changed or freed."""
        return _tier_entry(self._entry).tier_state.is_captured

    @property
    def is_pending(self) -> bool:
        """Whether the write in the lower tier is queued or under way."""
        state = _tier_entry(self._entry).tier_state
        return not state.is_captured and (state.lower is None or state.lower.is_pending)


def _tier_entry(entry: Entry) -> TierEntry:
    assert isinstance(entry, TierEntry)
    return entry
