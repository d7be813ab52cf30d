"""Packs that are being filled: small arrays are copied into the open pack of their kind.

A full pack is sealed and queued for writing. So are open packs, the oldest first, where other
arrays need the memory in flight or the space in the backend.

The memory of packs comes from ``hold``, an argument of the store. It may wait for other stores and
for this one, so it is called in the thread of the caller, without the lock. An I/O thread has only
the open packs and spare memory that puts have provided.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.base import Allocate
from offgrad_storage.entry import Entry, Handle, Pack, State, checksum
from offgrad_storage.errors import QuotaExceededError, StoreError, StoreFullError
from offgrad_storage.executor.entry_table import EntryTable
from offgrad_storage.interrupts import interruptible
from offgrad_storage.memory.buffer_pool import round_up

Array = NDArray[Any]

_MIN_PACK_NBYTES = 256 << 10  # doubled from each pack of a kind to the next
_ALIGNMENT = 64
_UINT8 = np.dtype(np.uint8)


class OpenPacks:
    """Fills packs and seals them.

    Methods whose names end in ``_locked`` need the table's lock, the others take it.

    Args:
        table: the entries of the store; its ``open_nbytes`` counts the memory of open packs, of
            spares and of claims.
        hold: allocates the memory of packs.
        max_pack_nbytes: bound of the bytes of a pack; 0 for no packs.
        start_thread: makes sure that an I/O thread runs; with the lock held.

    Attributes:
        below: arrays of fewer bytes go into packs.
        by_kind: the pack of each kind that is being filled, the oldest first.
        spares: memory for the next packs of each kind, for I/O threads.
        copying: arrays being copied into packs.
        claims: calls of ``hold`` under way, or about to end.
    """

    def __init__(
        self,
        table: EntryTable,
        hold: Allocate,
        max_pack_nbytes: int,
        start_thread: Callable[[Entry], object],
    ) -> None:
        self.below = min(table.backend.packs_below, max_pack_nbytes)
        self.by_kind: dict[Hashable, Pack] = {}
        self.spares: dict[Hashable, deque[Array]] = {}
        self.copying = self.claims = 0
        self._table = table
        self._hold = hold
        self._max_nbytes = max_pack_nbytes
        if table.backend.quota is not None:  # one live array keeps the space of its whole pack
            self._max_nbytes = min(max_pack_nbytes, int(table.backend.quota) // 16)
        self._start_thread = start_thread
        self._next_nbytes: dict[Hashable, int] = {}  # of the next pack of each kind
        self._serial = itertools.count()

    # ---- into a pack

    def put(self, handle: Handle, array: Array) -> bool:
        """Copy ``array`` into a pack; wait while too much is in flight. False without memory."""
        entry, table, nbytes = handle._entry, self._table, array.nbytes
        memory: Array | None = None
        while True:
            with table.lock:
                table.handle_deaths()
                try:
                    table.check(entry)
                    pack = self._with_room_locked(entry.kind, nbytes)
                    if pack is None and memory is not None:
                        pack = self._open_locked(entry, nbytes, memory, wait=True)
                finally:
                    if memory is not None:  # the claim ends; an open pack counts by itself
                        self._end_claim_locked(memory.nbytes)
                        memory = None
                if pack is not None:
                    memory = self._take_slot_locked(entry, pack, nbytes)
                    break
                size = self._claim_locked(entry, nbytes)
            memory = self._allocate(size)
            if memory is None:
                return False
        try:
            _copy_in(entry, memory, array)
        except BaseException:
            with table.lock:
                self._end_copy_locked(pack)
                self.leave_locked(pack)  # not written yet, so not in the cache
            raise
        with table.lock:
            self._end_copy_locked(pack)
            table.add(handle, entry)
            entry.captured = True
            self.point_to_locked(entry, pack)
            table.move(entry, State.PACKED)
        return True

    def provide(self, entry: Entry) -> None:
        """Provide memory for packs, if there is any, before ``entry`` is encoded by a thread."""
        table, kind = self._table, entry.kind
        with table.lock:
            pack, spares = self.by_kind.get(kind), self.spares.get(kind, ())
            room = sum(each.nbytes for each in spares)
            room += pack.nbytes - pack.used if pack is not None else 0
            wanted = 1
            if entry.nbytes < self.below:
                arrays = table.figures.inflight_nbytes - table.packs_inflight_nbytes
                wanted = min(arrays + entry.nbytes, 2 * self._max_nbytes)
            if room >= wanted:
                return
            size = self._next_size(kind, min(entry.nbytes, self.below))
            if table.closed or not table.fits_in_flight(size):
                return
            self._seal_for_locked(size)
            table.open_nbytes += size
            self.claims += 1
        memory = self._allocate(size)
        if memory is not None:
            with table.lock:
                self.claims -= 1
                if table.closed:
                    table.open_nbytes -= size
                else:
                    self.spares.setdefault(kind, deque()).append(memory)

    def put_encoded(self, entry: Entry, data: Array) -> Pack | None:
        """Copy ``data``, the encoded bytes of ``entry``, into a pack; None if there is no space.

        Called by I/O threads, which wait neither for another nor for memory.
        """
        table, nbytes = self._table, data.nbytes
        with table.lock:
            if any(table.errors.failed_writes.values()):  # another pack may fail as well
                return None
            if table.closed and not table.backend.persistent:
                raise table.errors.closed(entry)
            pack = self._with_room_locked(entry.kind, nbytes)
            spares = self.spares.get(entry.kind)
            while pack is None and spares:
                memory = spares.popleft()
                try:
                    if memory.nbytes >= nbytes:
                        pack = self._open_locked(entry, nbytes, memory, wait=False)
                except (QuotaExceededError, StoreFullError):
                    return None
                finally:
                    table.open_nbytes -= memory.nbytes
            if pack is None:
                return None
            memory = self._take_slot_locked(entry, pack, nbytes)
        try:
            _copy_in(entry, memory, data)
        finally:
            with table.lock:
                self._end_copy_locked(pack)
        return pack

    def point_to_locked(self, entry: Entry, pack: Pack) -> None:
        """Direct reads of ``entry`` to ``pack``."""
        entry.pack = pack
        entry.stored_nbytes = entry.payload_nbytes
        figures = self._table.figures
        figures.stored_nbytes += entry.stored_nbytes
        figures.written_nbytes += entry.stored_nbytes

    # ---- room

    def wait_for_room_locked(self, entry: Entry, nbytes: int) -> None:
        """Wait until ``nbytes`` more may be in flight; seal packs if they take the room.

        Raises:
            StoreClosedError: the store was closed meanwhile.
            StoreError: writes that failed take the room, and fail again.
        """
        table, retried = self._table, False
        while not table.fits_in_flight(nbytes):
            if not table.pending:
                if self.by_kind or any(self.spares.values()):
                    self._seal_oldest_locked()
                    continue
                if table.errors.failed_writes:
                    if retried or not table.retry_failed():
                        error = next(iter(table.errors.failed_writes)).error
                        assert error is not None
                        table.errors.report(error)
                        raise error.for_array(str(entry)) from error.__cause__
                    retried = True
                    table.wake()
            table.wait_for_write(entry)

    def reserve_locked(self, entry: Entry) -> None:
        """Have the backend reserve space for ``entry``; wait while pending jobs may free some.

        Written arrays may take less than reserved, and free jobs give space back.
        """
        table = self._table
        while True:
            try:
                table.reserve(entry)
                return
            except QuotaExceededError:
                if table.find_deaths():
                    continue
                self.seal_all_locked()
                if not (table.writes or table.free_jobs or table.jobs.under_way):
                    raise
            table.wait_for_write(entry)
            table.check(entry)

    def seal_all_locked(self) -> None:
        """Close all packs to more arrays, and drop spare memory."""
        for pack in list(self.by_kind.values()):
            self._seal_locked(pack)
        self.drop_spares_locked()

    def drop_spares_locked(self) -> None:
        """Drop the memory for packs that no encoded array has used."""
        while self.spares:
            _, spares = self.spares.popitem()
            self._table.open_nbytes -= sum(each.nbytes for each in spares)

    # ---- opening and sealing

    def _claim_locked(self, entry: Entry, nbytes: int) -> int:
        """Count the bytes of a new pack as held, once there is room; return them."""
        table = self._table
        self._start_thread(entry)
        pack = self.by_kind.get(entry.kind)
        if pack is not None:
            self._seal_locked(pack, full=True)
        size = self._next_size(entry.kind, nbytes)
        self._seal_for_locked(size)
        self.wait_for_room_locked(entry, size)
        table.open_nbytes += size
        self.claims += 1
        return size

    def _end_claim_locked(self, size: int) -> None:
        self.claims -= 1
        self._table.open_nbytes -= size
        self._table.notify_all()

    def _allocate(self, size: int) -> Array | None:
        """Memory for a claim of ``size``; None, and no claim, if there is none."""
        allocated, memory = False, None
        try:
            with contextlib.suppress(MemoryError), interruptible:
                memory = self._hold((size,), _UINT8)
            allocated = memory is not None
        finally:
            if not allocated:
                with self._table.lock:
                    self._end_claim_locked(size)
        return memory

    def _next_size(self, kind: Hashable, nbytes: int) -> int:
        size = min(self._next_nbytes.get(kind, _MIN_PACK_NBYTES), self._max_nbytes)
        return max(round_up(nbytes), min(size, self._table.max_inflight_nbytes // 2))

    def _seal_for_locked(self, size: int) -> None:
        """Leave half of the bytes in flight to packs that are being written, and to arrays."""
        table = self._table
        while self.by_kind and table.open_nbytes + size > table.max_inflight_nbytes // 2:
            self._seal_oldest_locked()

    def _seal_oldest_locked(self) -> None:
        self.drop_spares_locked()
        if self.by_kind:
            pack = next(iter(self.by_kind.values()))
            self._next_nbytes[pack.kind] = max(_MIN_PACK_NBYTES, pack.capacity // 2)
            self._seal_locked(pack)

    def _with_room_locked(self, kind: Hashable, nbytes: int) -> Pack | None:
        pack = self.by_kind.get(kind)
        return pack if pack is not None and pack.used + nbytes <= pack.nbytes else None

    def _open_locked(self, entry: Entry, nbytes: int, memory: Array, wait: bool) -> Pack:
        """Open a pack in ``memory``."""
        table, kind = self._table, entry.kind
        pack = Pack(next(self._serial), kind, memory)
        try:
            try:
                table.reserve(pack)
            except (QuotaExceededError, StoreFullError):
                small = Pack(pack.serial, kind, memory[: round_up(nbytes)])
                small.capacity, pack = memory.nbytes, small
                self.reserve_locked(pack) if wait else table.reserve(pack)
        except StoreError as error:
            raise error.for_array(str(entry)) from error.__cause__
        other = self.by_kind.get(pack.kind)
        if other is not None:  # full, or opened by another thread while this one waited
            self._seal_locked(other, full=True)
        table.open_nbytes += pack.capacity
        self.by_kind[pack.kind] = pack
        return pack

    def _take_slot_locked(self, entry: Entry, pack: Pack, nbytes: int) -> Array:
        """Give ``entry`` its place in ``pack``; return the memory of the pack."""
        assert pack.source is not None
        entry.offset = pack.used
        pack.used += round_up(nbytes, _ALIGNMENT)
        pack.members += 1
        pack.copying += 1
        self.copying += 1
        return pack.source

    def _end_copy_locked(self, pack: Pack) -> None:
        pack.copying -= 1
        self.copying -= 1
        if not pack.copying and self.by_kind.get(pack.kind) is not pack:
            self._enqueue_locked(pack)
        if not self.copying and self._table.closed:
            self._table.notify_all()
            self._table.wake()

    def _seal_locked(self, pack: Pack, full: bool = False) -> None:
        """Close ``pack`` to more arrays, and write it when all are copied."""
        assert pack.source is not None
        del self.by_kind[pack.kind]
        if full and pack.capacity == pack.nbytes:  # not one that a quota made small
            self._next_nbytes[pack.kind] = 2 * round_up(pack.used)
        pack.nbytes = round_up(pack.used)
        pack.shape = (pack.nbytes,)
        pack.source = pack.source[: pack.nbytes]
        self._table.pend_pack(pack)
        if not pack.copying:
            self._enqueue_locked(pack)

    def _enqueue_locked(self, pack: Pack) -> None:
        self._table.enqueue_pack(pack)
        self._table.wake()

    # ---- the end of a pack

    def leave_locked(self, pack: Pack) -> bool:
        """An array leaves ``pack``; free it if this was the last, and return whether it was."""
        pack.members -= 1
        if pack.members or self._table.backend.persistent or pack.state is State.LEAVING:
            return False
        if self.by_kind.get(pack.kind) is pack:
            del self.by_kind[pack.kind]
            self._table.open_nbytes -= pack.capacity
        self._table.end_pack(pack)
        return True

    def release_locked(self) -> None:
        """The store is closed: release the memory."""
        for pack in self.by_kind.values():
            self._table.open_nbytes -= pack.capacity
            pack.source = None
        self.by_kind.clear()
        self.drop_spares_locked()


def _copy_in(entry: Entry, memory: Array, array: Array) -> None:
    copied = np.ndarray(array.shape, array.dtype, memory, entry.offset)
    np.copyto(copied, array)
    entry.checksum = checksum(copied)
