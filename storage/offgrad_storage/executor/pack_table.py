"""Packs: small arrays that are written and read as one.

One I/O for each small array would cost more than its bytes. An array is copied into the open pack
of its kind; a full pack is queued for writing. To read one array its whole pack is read, and cached
for the others. A pack that cannot be written stays in memory.

The memory of packs comes from ``hold``, an argument of the store. It may wait for other stores and
for this one, so it is called in the thread of the caller, without the lock. An I/O thread has only
the open packs and spare memory that puts have provided.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.base import Allocate
from offgrad_storage.entry import Entry, Handle, Pack, State, checksum, verify
from offgrad_storage.errors import QuotaExceededError, StoreError, StoreFullError
from offgrad_storage.executor.entry_table import EntryTable
from offgrad_storage.interrupts import interruptible
from offgrad_storage.memory.buffer_pool import BufferPool, round_up

Array = NDArray[Any]

_MIN_PACK_NBYTES = 256 << 10  # doubled from each pack of a kind to the next
_MAX_LOADED_NBYTES = 16 << 20  # of packs cached after reading, besides those with prefetches
_MAX_PREFETCHED_NBYTES = 64 << 20  # of packs in memory, above which no pack is prefetched
_ALIGNMENT = 64
_UINT8 = np.dtype(np.uint8)


class PackTable:
    """The packs of a store: filling, sealing, reading and caching them.

    Methods whose names end in ``_locked`` need the table's lock, the others take it.

    Args:
        table: the entries of the store.
        hold: allocates the memory of packs.
        max_pack_nbytes: bound of the bytes of a pack; 0 for no packs.
        start_thread: makes sure that an I/O thread runs; with the lock held.

    Attributes:
        below: arrays of fewer bytes go into packs.
        open: the pack of each kind that is being filled, the oldest first.
        spares: memory for the next packs of each kind, for I/O threads.
        loading: packs that a thread is reading.
        loaded: packs cached after reading, the least recently used first.
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
        self.table = table
        self.below = min(table.backend.packs_below, max_pack_nbytes)
        self.open: dict[Hashable, Pack] = {}
        self.spares: dict[Hashable, deque[Array]] = {}
        self.loading: dict[Pack, None] = {}
        self.loaded: OrderedDict[Pack, None] = OrderedDict()
        self.copying = self.claims = 0
        self._loading_nbytes = self._loaded_nbytes = 0
        self._hold = hold
        self._max_nbytes = max_pack_nbytes
        if table.backend.quota is not None:  # one live array keeps the space of its whole pack
            self._max_nbytes = min(max_pack_nbytes, int(table.backend.quota) // 16)
        self._start_thread = start_thread
        self._next_nbytes: dict[Hashable, int] = {}  # of the next pack of each kind
        self._serial = itertools.count()
        self._scratch = BufferPool()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that packs hold now. Takes no lock."""
        table = self.table
        failed = sum(each.capacity for each in [*table.failures] if isinstance(each, Pack))
        written = table.open_nbytes + table.packs_inflight_nbytes + failed
        return written + self._loaded_nbytes + self._loading_nbytes

    # ---- into a pack

    def put(self, handle: Handle, array: Array) -> bool:
        """Copy ``array`` into a pack; wait while too much is in flight. False without memory."""
        entry, table, nbytes = handle._entry, self.table, array.nbytes
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
                pack.members -= 1
                self._close_if_empty_locked(pack)
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
        table, kind = self.table, entry.kind
        with table.lock:
            pack, spares = self.open.get(kind), self.spares.get(kind, ())
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
        table, nbytes = self.table, data.nbytes
        with table.lock:
            if any(table.failures.values()):  # another pack may fail as well
                return None
            if table.closed and not table.backend.persistent:
                raise table.closed_error(entry)
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
        figures = self.table.figures
        figures.stored_nbytes += entry.stored_nbytes
        figures.written_nbytes += entry.stored_nbytes

    def wait_for_room_locked(self, entry: Entry, nbytes: int) -> None:
        """Wait until ``nbytes`` more may be in flight; seal packs if they take the room.

        Raises:
            StoreClosedError: the store was closed meanwhile.
            StoreError: writes that failed take the room, and fail again.
        """
        table, retried = self.table, False
        while not table.fits_in_flight(nbytes):
            if not table.pending:
                if self.open or any(self.spares.values()):
                    self._seal_oldest_locked()
                    continue
                if table.failures:
                    if retried or not table.retry_failed():
                        error = next(iter(table.failures)).error
                        assert error is not None
                        table.report(error)
                        raise error.for_array(str(entry)) from error.__cause__
                    retried = True
                    table.wake()
            table.wait_for_write(entry)

    def seal_all_locked(self) -> None:
        """Close all packs to more arrays, and drop spare memory."""
        for pack in list(self.open.values()):
            self._seal_locked(pack)
        self.drop_spares_locked()

    def _claim_locked(self, entry: Entry, nbytes: int) -> int:
        """Count the bytes of a new pack as held, once there is room; return them."""
        table = self.table
        self._start_thread(entry)
        pack = self.open.get(entry.kind)
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
        self.table.open_nbytes -= size
        self.table.notify_all()

    def _allocate(self, size: int) -> Array | None:
        """Memory for a claim of ``size``; None, and no claim, if there is none."""
        allocated, memory = False, None
        try:
            with contextlib.suppress(MemoryError), interruptible:
                memory = self._hold((size,), _UINT8)
            allocated = memory is not None
        finally:
            if not allocated:
                with self.table.lock:
                    self._end_claim_locked(size)
        return memory

    def _next_size(self, kind: Hashable, nbytes: int) -> int:
        size = min(self._next_nbytes.get(kind, _MIN_PACK_NBYTES), self._max_nbytes)
        return max(round_up(nbytes), min(size, self.table.max_inflight_nbytes // 2))

    def _seal_for_locked(self, size: int) -> None:
        """Leave half of the bytes in flight to packs that are being written, and to arrays."""
        while self.open and self.table.open_nbytes + size > self.table.max_inflight_nbytes // 2:
            self._seal_oldest_locked()

    def _seal_oldest_locked(self) -> None:
        self.drop_spares_locked()
        if self.open:
            pack = next(iter(self.open.values()))
            self._next_nbytes[pack.kind] = max(_MIN_PACK_NBYTES, pack.capacity // 2)
            self._seal_locked(pack)

    def drop_spares_locked(self) -> None:
        """Drop the memory for packs that no encoded array has used."""
        while self.spares:
            _, spares = self.spares.popitem()
            self.table.open_nbytes -= sum(each.nbytes for each in spares)

    def _with_room_locked(self, kind: Hashable, nbytes: int) -> Pack | None:
        pack = self.open.get(kind)
        return pack if pack is not None and pack.used + nbytes <= pack.nbytes else None

    def _open_locked(self, entry: Entry, nbytes: int, memory: Array, wait: bool) -> Pack:
        """Open a pack in ``memory``."""
        table, kind = self.table, entry.kind
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
        other = self.open.get(pack.kind)
        if other is not None:  # full, or opened by another thread while this one waited
            self._seal_locked(other, full=True)
        table.open_nbytes += pack.capacity
        self.open[pack.kind] = pack
        return pack

    def reserve_locked(self, entry: Entry) -> None:
        """Have the backend reserve space for ``entry``; wait while pending jobs may free some.

        Written arrays may take less than reserved, and free jobs give space back.
        """
        table = self.table
        while True:
            try:
                table.reserve(entry)
                return
            except QuotaExceededError:
                if table.find_deaths():
                    continue
                self.seal_all_locked()
                if not (table.writes or table.free_jobs or table.jobs):
                    raise
            table.wait_for_write(entry)
            table.check(entry)

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
        if not pack.copying and self.open.get(pack.kind) is not pack:
            self._enqueue_locked(pack)
        if not self.copying and self.table.closed:
            self.table.notify_all()
            self.table.wake()

    def _seal_locked(self, pack: Pack, full: bool = False) -> None:
        """Close ``pack`` to more arrays, and write it when all are copied."""
        assert pack.source is not None
        del self.open[pack.kind]
        if full and pack.capacity == pack.nbytes:  # not one that a quota made small
            self._next_nbytes[pack.kind] = 2 * round_up(pack.used)
        pack.nbytes = round_up(pack.used)
        pack.shape = (pack.nbytes,)
        pack.source = pack.source[: pack.nbytes]
        self.table.pend_pack(pack)
        if not pack.copying:
            self._enqueue_locked(pack)

    def _enqueue_locked(self, pack: Pack) -> None:
        self.table.enqueue_pack(pack)
        self.table.wake()

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
        with self.table.lock:
            self._forget_loaded_locked(pack)
        data = self._scratch.empty(pack.nbytes, np.uint8)
        try:
            with interruptible:
                self.table.backend.read_part(pack, data, entry.offset, out.nbytes)
        except StoreError as error:
            raise error.for_array(str(entry)) from error.__cause__
        np.copyto(out, np.ndarray(out.shape, out.dtype, data, entry.offset))
        verify(checksum(out), entry, self.table.backend.name)

    def prefetch(self, pack: Pack) -> None:
        """In an I/O thread: read ``pack`` into its target; a get reads again after an error."""
        with self.table.lock:
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
        table = self.table
        memory: Array | None = None
        while True:
            with table.lock:
                if memory is not None:
                    self.claims -= 1
                    self._loading_nbytes -= pack.nbytes
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
                self._loading_nbytes += pack.nbytes
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
                        self._loading_nbytes -= pack.nbytes
        return self._finish_load(pack, memory)

    def _begin_load_locked(self, pack: Pack, memory: Array | None = None) -> Array:
        """Take the memory of a prefetch that has not begun, or else ``memory``."""
        self.table.reads.pop(pack, None)
        if pack.target is None:
            self._loading_nbytes += pack.nbytes
        else:
            memory, pack.target = pack.target, None
        assert memory is not None
        self.loading[pack] = None
        pack.busy += 1
        return memory

    def _finish_load(self, pack: Pack, memory: Array) -> Array:
        table = self.table
        loaded: Array | None = None
        try:
            with interruptible:
                table.backend.read(pack, memory)
            loaded = memory
        finally:
            with table.lock:
                self._loading_nbytes -= pack.nbytes
                del self.loading[pack]
                pack.busy -= 1
                if loaded is not None and pack.state is State.STORED and not table.closed:
                    pack.loaded = loaded
                    self.loaded[pack] = None
                    self._loaded_nbytes += pack.nbytes
                    self._evict_loaded_locked()
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
        if self._loaded_nbytes + self._loading_nbytes > _MAX_PREFETCHED_NBYTES:
            return False
        if self._is_coming(pack):
            return False
        self._loading_nbytes += pack.nbytes
        self.claims += 1
        return True

    def _is_coming(self, pack: Pack) -> bool:
        """Whether the bytes of ``pack`` are in memory, being read, or going to be."""
        return pack.in_memory is not None or pack in self.loading or pack.target is not None

    def load(self, pack: Pack) -> None:
        """Have a thread read ``pack``, which a prefetch wants, if there is memory for it."""
        table, queued = self.table, False
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
                    self._loading_nbytes -= pack.nbytes

    def end_prefetch_locked(self, entry: Entry, hit: bool = False) -> None:
        """No prefetch of ``entry`` wants its pack any more; a get counts a hit."""
        if entry.wants_pack:
            pack = entry.pack
            assert pack is not None
            entry.wants_pack = False
            pack.interest -= 1
            if hit:
                self.table.figures.prefetch_hits += pack.in_memory is not None
            if pack in self.loaded:  # and about to be read from
                self.loaded.move_to_end(pack)
                self._evict_loaded_locked()

    def trim_locked(self) -> None:
        """Evict all loaded packs without prefetches."""
        for pack in [*self.loaded]:
            if not pack.interest:
                self._forget_loaded_locked(pack)

    def _evict_loaded_locked(self) -> None:
        """Evict loaded packs without prefetches, least recently used first."""
        if self._loaded_nbytes > _MAX_LOADED_NBYTES:
            for pack in list(self.loaded)[:-1]:
                if self._loaded_nbytes > _MAX_LOADED_NBYTES and not pack.interest:
                    self._forget_loaded_locked(pack)

    def _forget_loaded_locked(self, pack: Pack) -> None:
        if pack in self.loaded:
            del self.loaded[pack]
            pack.loaded = None
            self._loaded_nbytes -= pack.nbytes

    def _drop_target_locked(self, pack: Pack) -> None:
        if pack.target is not None:
            pack.target = None
            self._loading_nbytes -= pack.nbytes

    # ---- the end of a pack

    def leave_locked(self, entry: Entry) -> None:
        """The dead ``entry`` leaves its pack, which is freed with the last one."""
        pack = entry.pack
        assert pack is not None
        self.end_prefetch_locked(entry)
        self.table.figures.stored_nbytes -= entry.stored_nbytes
        pack.members -= 1
        self._close_if_empty_locked(pack)

    def _close_if_empty_locked(self, pack: Pack) -> None:
        if pack.members or self.table.backend.persistent or pack.state is State.LEAVING:
            return
        if self.open.get(pack.kind) is pack:
            del self.open[pack.kind]
            self.table.open_nbytes -= pack.capacity
        self._forget_loaded_locked(pack)
        self._drop_target_locked(pack)
        self.table.end_pack(pack)

    def release_locked(self) -> None:
        """The store is closed: release the memory of all packs."""
        for pack in self.open.values():
            self.table.open_nbytes -= pack.capacity
            pack.source = None
        self.open.clear()
        self.drop_spares_locked()
        for pack in [*self.loaded]:
            self._forget_loaded_locked(pack)
        for each in [*self.table.reads]:
            if isinstance(each, Pack):
                self._drop_target_locked(each)


def _copy_in(entry: Entry, memory: Array, array: Array) -> None:
    copied = np.ndarray(array.shape, array.dtype, memory, entry.offset)
    np.copyto(copied, array)
    entry.checksum = checksum(copied)
