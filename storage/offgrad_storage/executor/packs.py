"""Packs: small arrays that are written and read as one.

One I/O for each small array would cost more than its bytes. An array is copied into the open pack
of its kind; a full pack is queued for writing. To read one array its whole pack is read, and cached
for the others. A pack that cannot be written stays in memory, and the next put raises its error.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.backend import Backend
from offgrad_storage.entry import (
    Entry,
    Pack,
    State,
    checksum,
    verify,
)
from offgrad_storage.errors import QuotaExceededError, StoreError, StoreFullError
from offgrad_storage.executor.entry_states import EntryStates
from offgrad_storage.executor.workers import Workers
from offgrad_storage.memory.buffer_pool import BufferPool, round_up

Array = NDArray[Any]

# Bytes of a pack, doubled from each to the next.
_MIN_PACK_NBYTES, _MAX_PACK_NBYTES = 256 << 10, 4 << 20
_MAX_LOADED_NBYTES = 16 << 20  # of packs cached after reading, besides those with prefetches
_MAX_PREFETCHED_NBYTES = 64 << 20  # of packs in memory, above which no pack is prefetched
_ALIGNMENT = 64


class PackTable(EntryStates):
    """The packs of a store: filling, sealing, reading and caching them."""

    def __init__(self, backend: Backend, workers: Workers, inflight_nbytes: int) -> None:
        super().__init__(backend, workers, inflight_nbytes)
        self._buffers = BufferPool()
        self._open_packs: dict[Hashable, Pack] = {}
        self._next_nbytes: dict[Hashable, int] = {}  # of the next pack of each kind
        self._loaded_packs: OrderedDict[Pack, None] = OrderedDict()
        # Packs that could not be written; None once a put has raised the error.
        self._failed_packs: dict[Pack, StoreError | None] = {}
        self._pack_serial = itertools.count()
        self._copying = 0  # arrays being copied into packs

    def put_in_pack(self, entry: Entry, array: Array) -> None:
        """Copy ``array``, of a new ``entry``, into a pack; wait while too much is in flight."""
        with self._lock:
            pack = self._pack_for(entry, array.nbytes, wait=True)
            self._register(entry)
            memory = self._reserve_in_pack(entry, pack, array.nbytes)
            self._set_pack(entry, pack)
        try:
            _copy_in(entry, memory, array)
        finally:
            with self._lock:
                entry.state = State.STORED
                entry.captured = True
                self._end_copy(pack)

    def pack_encoded(self, entry: Entry, data: Array) -> Pack | None:
        """Copy ``data``, the encoded bytes of ``entry``, into a pack; None if there is no space."""
        with self._lock:
            if any(self._failed_packs.values()):  # another pack may fail as well
                return None
            try:
                # This is an I/O thread, which must not wait for another.
                pack = self._pack_for(entry, data.nbytes, wait=False)
            except (QuotaExceededError, StoreFullError):
                return None
            memory = self._reserve_in_pack(entry, pack, data.nbytes)
        try:
            _copy_in(entry, memory, data)
        finally:
            with self._lock:
                self._end_copy(pack)
        return pack

    def prefetch_pack(self, pack: Pack) -> None:
        """Read ``pack``; a get of an array in it reads again after an error, and raises it."""
        with contextlib.suppress(Exception):
            self._load(pack)
        with self._lock:
            self._active -= 1
            self._lock.notify_all()

    def _read_from_pack(self, entry: Entry, pack: Pack, out: Array, loaded: Array | None) -> None:
        """Fill ``out`` with the stored bytes of ``entry``; ``loaded`` are those of its pack."""
        try:
            data = self._load(pack) if loaded is None else loaded
            np.copyto(out, np.ndarray(out.shape, out.dtype, data, entry.offset))
            if checksum(out) == entry.checksum:
                return
        except (StoreError, OSError):
            pass
        # A part of the pack is damaged or missing; this array may be intact, or be so next time.
        self._forget_loaded(pack)
        data = self._buffers.empty(pack.nbytes, np.uint8)
        try:
            self.backend.read_part(pack, data, entry.offset, out.nbytes)
        except StoreError as error:
            raise error.for_array(str(entry)) from error.__cause__
        np.copyto(out, np.ndarray(out.shape, out.dtype, data, entry.offset))
        verify(checksum(out), entry, self.backend.name)

    def _load(self, pack: Pack) -> Array:
        """The bytes of ``pack``: those in memory, or read now."""
        with self._lock:
            while True:
                data = self._in_memory(pack)
                if data is not None:
                    return data
                if not pack.loading:
                    break
                self._lock.wait()
            pack.loading = True
            pack.busy += 1
        loaded: Array | None = None
        try:
            data = self._buffers.empty(pack.nbytes, np.uint8)
            self.backend.read(pack, data)
            loaded = data
        finally:
            with self._lock:
                pack.loading = False
                pack.busy -= 1
                if loaded is not None and not (pack.dropped or self._closed):
                    self._keep_loaded(pack, loaded)
                self._free_if_unused(pack)
                self._lock.notify_all()
        return data

    def _forget_loaded(self, pack: Pack) -> None:
        with self._lock:
            pack.loaded = None
            self._loaded_packs.pop(pack, None)

    # ---- into a pack; with the lock held

    def _pack_for(self, entry: Entry, nbytes: int, wait: bool) -> Pack:
        """The open pack of the kind of ``entry``, with space for ``nbytes``."""
        while True:
            if wait or not self.backend.persistent:
                self._check_open(entry)
                self._start_thread(entry)
            pack = self._open_packs.get(entry.kind)
            if pack is None:
                return self._open_pack(entry, nbytes, wait)
            if pack.used + nbytes <= pack.nbytes:
                return pack
            if wait and not self._fits_in_flight(pack):
                self._wait_for_write(entry)
            else:
                self._seal(pack)

    def _open_pack(self, entry: Entry, nbytes: int, wait: bool) -> Pack:
        kind = entry.kind
        size = max(round_up(nbytes), self._next_nbytes.get(kind, _MIN_PACK_NBYTES))
        held = sum(each.nbytes for each in self._open_packs.values())
        for each in list(self._open_packs.values()):
            if held + size > self._max_inflight_nbytes:  # oldest first
                held -= each.nbytes
                self._seal(each)
        pack = Pack(next(self._pack_serial), kind, self._buffers.empty(size, np.uint8))
        try:
            self._try_reserve(pack)
            self._next_nbytes[kind] = min(_MAX_PACK_NBYTES, 2 * size)
        except (QuotaExceededError, StoreFullError):
            pack = Pack(pack.serial, kind, self._buffers.empty(round_up(nbytes), np.uint8))
            try:
                self._reserve(pack) if wait else self._try_reserve(pack)
            except StoreError as error:
                raise error.for_array(str(entry)) from error.__cause__
        except StoreError as error:
            raise error.for_array(str(entry)) from error.__cause__
        other = self._open_packs.get(pack.kind)
        if other is not None:  # opened by another thread while this one waited
            self._seal(other)
        self._open_packs[pack.kind] = pack
        return pack

    def _reserve(self, entry: Entry) -> None:
        """Have the backend reserve space for ``entry``; wait while pending jobs may free some.

        Written arrays may take less than reserved, and free jobs give space back.
        """
        while True:
            try:
                self._try_reserve(entry)
                return
            except QuotaExceededError:
                self._seal_all()
                if not (self._writes or self._free_jobs or self._active) or not self._workers:
                    raise
            self._wait_for_write(entry)
            self._check_open(entry)

    def _reserve_in_pack(self, entry: Entry, pack: Pack, nbytes: int) -> Array:
        """Give ``entry`` its place in ``pack``; return the memory of the pack."""
        assert pack.source is not None
        entry.offset = pack.used
        pack.used += round_up(nbytes, _ALIGNMENT)
        pack.members += 1
        pack.copying += 1
        self._copying += 1
        return pack.source

    def _end_copy(self, pack: Pack) -> None:
        pack.copying -= 1
        self._copying -= 1
        if pack.sealed and not pack.copying:
            self._enqueue(pack)
        if not self._copying:
            self._lock.notify_all()

    def _set_pack(self, entry: Entry, pack: Pack) -> None:
        """Direct reads of ``entry`` to ``pack``."""
        entry.pack = pack
        entry.stored_nbytes = entry.payload_nbytes
        self._figures.stored_nbytes += entry.stored_nbytes
        self._figures.written_nbytes += entry.stored_nbytes

    def _move_to_pack(self, entry: Entry, pack: Pack) -> None:
        """As ``_set_pack``, for an entry that has a place in the backend: free that."""
        self._free_place(entry)
        self._set_pack(entry, pack)
        if entry.dropped:
            self._remove_from_pack(entry, pack)

    def _seal(self, pack: Pack) -> None:
        """Close ``pack`` to more arrays, and write it when all are copied."""
        assert pack.source is not None
        del self._open_packs[pack.kind]
        pack.sealed = True
        pack.nbytes = round_up(pack.used)
        pack.shape = (pack.nbytes,)
        pack.source = pack.source[: pack.nbytes]
        if not pack.copying:
            self._enqueue(pack)

    def _seal_all(self) -> None:
        for pack in list(self._open_packs.values()):
            self._seal(pack)

    def _enqueue(self, pack: Pack) -> None:
        self._figures.inflight_nbytes += pack.nbytes
        self._writes[pack] = None
        self._workers.wake()

    # ---- failed packs; with the lock held

    def _end_write(self, entry: Entry, error: StoreError | None) -> None:
        if error is not None and isinstance(entry, Pack) and not entry.dropped:
            entry.loaded = entry.source
            self._failed_packs[entry] = error
        super()._end_write(entry, error)

    def _raise_failed_packs(self, entry: Entry) -> None:
        """Raise the error of an earlier pack that could not be written, once, from this put."""
        errors = [error for error in self._failed_packs.values() if error is not None]
        if errors:
            self._failed_packs = dict.fromkeys(self._failed_packs)
            if not self.backend.persistent:  # else the data will be missing: close raises it, too
                for error in errors:
                    self._report(error)
            raise errors[0].for_array(str(entry)) from errors[0].__cause__

    # ---- packs in memory; with the lock held

    def _in_memory(self, pack: Pack) -> Array | None:
        """The bytes of ``pack``; None if they must be read."""
        if pack.source is None and pack.loaded is not None:
            if pack in self._loaded_packs:
                self._loaded_packs.move_to_end(pack)
            return pack.loaded
        return pack.source

    def _keep_loaded(self, pack: Pack, data: Array) -> None:
        pack.loaded = data
        self._loaded_packs[pack] = None
        self._evict_loaded()

    def _evict_loaded(self) -> None:
        """Evict loaded packs without prefetches, least recently used first."""
        excess = sum(each.nbytes for each in self._loaded_packs) - _MAX_LOADED_NBYTES
        for each in list(self._loaded_packs)[:-1]:
            if excess > 0 and not each.interest:
                del self._loaded_packs[each]
                each.loaded = None
                excess -= each.nbytes

    def _add_interest(self, pack: Pack) -> None:
        """Keep ``pack`` in memory, or read it, for one more prefetch."""
        pack.interest += 1
        if sum(each.nbytes for each in self._loaded_packs) > _MAX_PREFETCHED_NBYTES:
            return
        if not (pack.in_memory or pack.loading or pack in self._reads):
            self._reads[pack] = None
            self._workers.wake()

    def _release_interest(self, entry: Entry) -> None:
        if entry.fetch is not None and entry.fetch.packed and entry.pack is not None:
            entry.pack.interest -= 1
            if entry.pack in self._loaded_packs:  # and about to be read from
                self._loaded_packs.move_to_end(entry.pack)
                self._evict_loaded()
        entry.fetch = None

    def _end_pack_prefetch(self, entry: Entry) -> None:
        """A get ends the prefetch of an array in a pack."""
        if entry.fetch is not None and entry.fetch.packed:
            assert entry.pack is not None
            self._figures.prefetch_hits += entry.pack.in_memory
            self._release_interest(entry)

    # ---- the end of a pack; with the lock held

    def _on_handle_dead(self, entry: Entry) -> None:
        if entry.pack is None:
            super()._on_handle_dead(entry)
            return
        entry.dropped = True
        if not self.backend.persistent:
            self._entries.pop(entry.serial, None)
        self._reads.pop(entry, None)  # a prefetch from before the array moved to the pack
        self._unregister(entry)
        self._remove_from_pack(entry, entry.pack)

    def _remove_from_pack(self, entry: Entry, pack: Pack) -> None:
        self._release_interest(entry)
        pack.members -= 1
        if self.backend.persistent:
            return
        self._figures.stored_nbytes -= entry.stored_nbytes
        if pack.members:
            return
        if not pack.sealed:
            del self._open_packs[pack.kind]
            pack.source = None
        pack.dropped = True
        pack.loaded = None
        self._loaded_packs.pop(pack, None)
        error = self._failed_packs.pop(pack, None)
        if error is not None:  # no data was lost
            self._report(error)
        self._reads.pop(pack, None)
        self._cancel_write(pack)
        self._free_if_unused(pack)

    def _release_packs(self) -> None:
        for pack in self._open_packs.values():
            pack.source = None
        for pack in (*self._loaded_packs, *self._failed_packs):
            pack.loaded = None
        self._open_packs.clear()
        self._loaded_packs.clear()
        self._failed_packs.clear()


def _copy_in(entry: Entry, memory: Array, array: Array) -> None:
    copied = np.ndarray(array.shape, array.dtype, memory, entry.offset)
    np.copyto(copied, array)
    entry.checksum = checksum(copied)
