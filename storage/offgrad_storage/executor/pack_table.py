"""Packs: small arrays that are written and read as one.

One I/O for each small array would cost more than its bytes. An array is copied into the open pack
of its kind; a full pack is queued for writing. To read one array its whole pack is read, and cached
for the others. A pack that cannot be written stays in memory.
"""

from __future__ import annotations

from collections.abc import Callable

from offgrad_storage.base import Allocate
from offgrad_storage.entry import Entry, Pack
from offgrad_storage.executor.entry_table import EntryTable
from offgrad_storage.executor.open_packs import OpenPacks
from offgrad_storage.executor.pack_cache import PackCache


class PackTable:
    """The packs of a store: those being filled, those in memory for reading, and their end.

    Methods whose names end in ``_locked`` need the table's lock.

    Args:
        table: the entries of the store.
        hold: allocates the memory of packs.
        max_pack_nbytes: bound of the bytes of a pack; 0 for no packs.
        start_thread: makes sure that an I/O thread runs; with the lock held.

    Attributes:
        open: the packs being filled.
        cache: the packs in memory for reading.
    """

    def __init__(
        self,
        table: EntryTable,
        hold: Allocate,
        max_pack_nbytes: int,
        start_thread: Callable[[Entry], object],
    ) -> None:
        self.open = OpenPacks(table, hold, max_pack_nbytes, start_thread)
        self.cache = PackCache(table, hold)
        self._table = table

    @property
    def nbytes(self) -> int:
        """Bytes of memory that packs hold now. Takes no lock."""
        table, cache = self._table, self.cache
        failed = [each for each in [*table.errors.failed_writes] if isinstance(each, Pack)]
        written = table.open_nbytes + table.packs_inflight_nbytes
        written += sum(pack.capacity for pack in failed)
        return written + cache.loaded_nbytes + cache.loading_nbytes

    def leave_locked(self, entry: Entry) -> None:
        """The dead ``entry`` leaves its pack, which is freed with the last one."""
        pack = entry.pack
        assert pack is not None
        self.cache.end_prefetch_locked(entry)
        self._table.figures.stored_nbytes -= entry.stored_nbytes
        if self.open.leave_locked(pack):
            self.cache.forget_locked(pack)

    def release_locked(self) -> None:
        """The store is closed: release the memory of all packs."""
        self.open.release_locked()
        self.cache.release_locked()
