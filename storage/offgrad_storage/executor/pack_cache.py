"""Packs in memory for reading: loaded whole, and cached for the other arrays in them.

To read one array its whole pack is read. A pack that prefetches want is loaded by an I/O thread,
and stays in memory until the last of them ends; other packs are evicted, the least recently used
first. The bytes of a pack that is not written yet are in memory as well.

The memory comes from ``hold``, an argument of the store. It may wait for other stores and for this
one, so it is called in the thread of the caller, without the lock.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.base import Allocate
from offgrad_storage.entry import Entry, Pack, State, checksum, verify
from offgrad_storage.errors import StoreError
from offgrad_storage.executor.entry_table import EntryTable
from offgrad_storage.interrupts import interruptible
from offgrad_storage.memory.buffer_pool import BufferPool

Array = NDArray[Any]

_MAX_LOADED_NBYTES = 16 << 20  # of packs cached after reading, besides those with prefetches
_MAX_PREFETCHED_NBYTES = 64 << 20  # of packs in memory, above which no pack is prefetched
_UINT8 = np.dtype(np.uint8)


class PackCache:
    """Loads packs and evicts them.

    Methods whose names end in ``_locked`` need the table's lock, the others take it.

    Args:
        table: the entries of the store.
        hold: allocates the memory of packs.

    Attributes:
        loading: packs that a thread is reading.
        loaded: packs cached after reading, the least recently used first.
        loading_nbytes: memory of packs that are being read, or are going to be.
        loaded_nbytes: memory of loaded packs.
        claims: calls of ``hold`` under way, or about to end.
    """

    def __init__(self, table: EntryTable, hold: Allocate) -> None:
        self.loading: dict[Pack, None] = {}
        self.loaded: OrderedDict[Pack, None] = OrderedDict()
        self.loading_nbytes = self.loaded_nbytes = 0
        self.claims = 0
        self._table = table
        self._hold = hold
        self._scratch = BufferPool()

    # ---- reading; the lock is free

    def read(self, entry: Entry, pack: Pack, out: Array, loaded: Array | None) -> None:
        """Fill ``out`` with the stored bytes of ``entry``; ``loaded`` are those of its pack."""
        try:
            data = self._load(pack) if loaded is None else loaded
            np.copyto(out, np.ndarray(out.shape, out.dtype, data, entry.offset))
            if checksum(out) == entry.checksum:
                return
        except (StoreError, OSError, MemoryError):
            pass
        # A part of the pack is damaged or missing; this array may be intact, or be so next time.
        with self._table.lock:
            self._evict_locked(pack)
        data = self._scratch.empty(pack.nbytes, np.uint8)
        try:
            with interruptible:
                self._table.backend.read_part(pack, data, entry.offset, out.nbytes)
        except StoreError as error:
            raise error.for_array(str(entry)) from error.__cause__
        np.copyto(out, np.ndarray(out.shape, out.dtype, data, entry.offset))
        verify(checksum(out), entry, self._table.backend.name)

    def prefetch(self, pack: Pack) -> None:
        """In an I/O thread: read ``pack`` into its target; a get reads again after an error."""
        with self._table.lock:
            if pack in self.loading or pack.target is None:
                return
            memory = self._begin_load_locked(pack)
        with contextlib.suppress(Exception):
            self._finish_load(pack, memory)

    def _load(self, pack: Pack) -> Array:
        """The bytes of ``pack``: those in memory, or read now.

        Raises:
            MemoryError: of ``hold``.
        """
        table = self._table
        memory: Array | None = None
        while True:
            with table.lock:
                if memory is not None:
                    self.claims -= 1
                    self.loading_nbytes -= pack.nbytes
                while pack in self.loading and pack.in_memory is None:
                    table.wait()
                data = self.in_memory_locked(pack)
                if data is not None:
                    self._drop_target_locked(pack)
                    return data
                if memory is not None or pack.target is not None:
                    memory = self._begin_load_locked(pack, memory)
                    break
                self.claims += 1
                self.loading_nbytes += pack.nbytes
            # `hold` may get an array of this pack.
            allocated = False
            try:
                with interruptible:
                    memory = self._hold((pack.nbytes,), _UINT8)
                allocated = True
            finally:
                if not allocated:
                    with table.lock:
                        self.claims -= 1
                        self.loading_nbytes -= pack.nbytes
        return self._finish_load(pack, memory)

    def _begin_load_locked(self, pack: Pack, memory: Array | None = None) -> Array:
        """Take the memory of a prefetch that has not begun, or else ``memory``."""
        self._table.reads.pop(pack, None)
        if pack.target is None:
            self.loading_nbytes += pack.nbytes
        else:
            memory, pack.target = pack.target, None
        assert memory is not None
        self.loading[pack] = None
        pack.busy += 1
        return memory

    def _finish_load(self, pack: Pack, memory: Array) -> Array:
        table = self._table
        loaded: Array | None = None
        try:
            with interruptible:
                table.backend.read(pack, memory)
            loaded = memory
        finally:
            with table.lock:
                self.loading_nbytes -= pack.nbytes
                del self.loading[pack]
                pack.busy -= 1
                if loaded is not None and pack.state is State.STORED and not table.closed:
                    pack.loaded = loaded
                    self.loaded[pack] = None
                    self.loaded_nbytes += pack.nbytes
                    self._make_room_locked()
                table.leave_if_unused(pack)
                table.notify_all()
        assert loaded is not None
        return loaded

    # ---- packs in memory

    def in_memory_locked(self, pack: Pack) -> Array | None:
        """The bytes of ``pack``; None if they must be read."""
        if pack in self.loaded:
            self.loaded.move_to_end(pack)
        return pack.in_memory

    def want_locked(self, entry: Entry, pack: Pack) -> bool:
        """Keep ``pack`` in memory for one more prefetch; return whether ``load`` must follow."""
        entry.wants_pack = True
        pack.interest += 1
        if self.loaded_nbytes + self.loading_nbytes > _MAX_PREFETCHED_NBYTES:
            return False
        if self._is_coming(pack):
            return False
        self.loading_nbytes += pack.nbytes
        self.claims += 1
        return True

    def _is_coming(self, pack: Pack) -> bool:
        """Whether the bytes of ``pack`` are in memory, being read, or going to be."""
        return pack.in_memory is not None or pack in self.loading or pack.target is not None

    def load(self, pack: Pack) -> None:
        """Have a thread read ``pack``, which a prefetch wants, if there is memory for it."""
        table, queued = self._table, False
        try:
            memory = None
            with contextlib.suppress(MemoryError), interruptible:
                memory = self._hold((pack.nbytes,), _UINT8)
            with table.lock:
                is_needed = pack.interest and not (self._is_coming(pack) or table.closed)
                if memory is not None and is_needed:
                    pack.target, memory, queued = memory, None, True
                    table.reads[pack] = None
                    table.wake()
        finally:
            with table.lock:
                self.claims -= 1
                if not queued:
                    self.loading_nbytes -= pack.nbytes

    def end_prefetch_locked(self, entry: Entry, hit: bool = False) -> None:
        """No prefetch of ``entry`` wants its pack any more; a get counts a hit."""
        if entry.wants_pack:
            pack = entry.pack
            assert pack is not None
            entry.wants_pack = False
            pack.interest -= 1
            if hit:
                self._table.figures.prefetch_hits += pack.in_memory is not None
            if pack in self.loaded:  # and about to be read from
                self.loaded.move_to_end(pack)
                self._make_room_locked()

    def trim_locked(self) -> None:
        """Evict all loaded packs without prefetches."""
        for pack in [*self.loaded]:
            if not pack.interest:
                self._evict_locked(pack)

    def _make_room_locked(self) -> None:
        """Evict loaded packs without prefetches, least recently used first."""
        if self.loaded_nbytes > _MAX_LOADED_NBYTES:
            for pack in list(self.loaded)[:-1]:
                if self.loaded_nbytes > _MAX_LOADED_NBYTES and not pack.interest:
                    self._evict_locked(pack)

    def _evict_locked(self, pack: Pack) -> None:
        if pack in self.loaded:
            del self.loaded[pack]
            pack.loaded = None
            self.loaded_nbytes -= pack.nbytes

    def _drop_target_locked(self, pack: Pack) -> None:
        if pack.target is not None:
            pack.target = None
            self.loading_nbytes -= pack.nbytes

    # ---- the end of a pack

    def forget_locked(self, pack: Pack) -> None:
        """``pack`` is freed: evict it, and release the memory for its read."""
        self._evict_locked(pack)
        self._drop_target_locked(pack)

    def release_locked(self) -> None:
        """The store is closed: release the memory."""
        for pack in [*self.loaded]:
            self._evict_locked(pack)
        for each in [*self._table.reads]:
            if isinstance(each, Pack):
                self._drop_target_locked(each)
