"""Gathers small arrays into packs of a few MB, which are written and read as one.

One I/O for each small array would cost more than its bytes do. An array is copied into the open
pack of its kind; a full pack is queued for writing. To read one array its pack is read, and kept a
while for the others. A pack that cannot be written stays in memory, and the next put is told.
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
from offgrad_storage.codecs import Codec
from offgrad_storage.entry import (
    Entry,
    Pack,
    State,
    checksum,
    verify,
)
from offgrad_storage.errors import QuotaExceededError, StoreError, StoreFullError
from offgrad_storage.executor.entry_states import EntryStates
from offgrad_storage.memory.buffer_pool import BufferPool, round_up

Array = NDArray[Any]

_MIN_PACK_NBYTES, _MAX_PACK_NBYTES = 256 << 10, 4 << 20  # each pack is twice as large as the last
_MAX_LOADED_NBYTES = 16 << 20  # most bytes of packs kept after reading, unless they are wanted
_MAX_PREFETCHED_NBYTES = 64 << 20  # no pack is read ahead while more are in memory
_ALIGNMENT = 64


class PackTable(EntryStates):
    """The states of packs, and the way of arrays into them and out."""

    def __init__(
        self, backend: Backend, inflight_nbytes: int, codec: Codec | None = None, seed: int = 0
    ) -> None:
        super().__init__(backend, inflight_nbytes, codec, seed)
        self._buffers = BufferPool()
        self._open_packs: dict[Hashable, Pack] = {}
        self._next_nbytes: dict[Hashable, int] = {}
        self._loaded_packs: OrderedDict[Pack, None] = OrderedDict()
        # Packs that could not be written; None once a put has raised their error.
        self._failed_packs: dict[Pack, StoreError | None] = {}
        self._pack_serial = itertools.count()
        self._copying = 0  # arrays on their way into packs

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
        """Copy ``data``, the encoded bytes of ``entry``, into a pack; None if there is no room."""
        with self._lock:
            if any(self._failed_packs.values()):  # one more pack may fail as well
                return None
            try:
                # The I/O thread that this is must not wait for another.
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

    def encode(self, entry: Entry, array: Array) -> Array:
        """What to store for ``array``: encoded if that makes it smaller."""
        if self.codec is None or isinstance(entry, Pack):
            return array
        data = self.codec.encode(array, self.seed)
        if data is None:
            return array
        entry.encoded_nbytes = data.nbytes
        return data

    def copy_as_stored(self, entry: Entry, source: Array, out: Array) -> None:
        """Fill ``out`` from the array that was put as it would come out of the store."""
        if self.codec is not None and not self.codec.lossless:
            data = self.codec.encode(source, self.seed)
            if data is not None:
                self.codec.decode(data, out)
                return
        np.copyto(out, source)

    def read_stored(self, entry: Entry, out: Array, loaded: Array | None) -> None:
        """Fill the C-contiguous ``out`` from the backend, or from the pack it is in.

        ``loaded`` are the bytes of that pack, if they are in memory.
        """
        if self.codec is None or entry.encoded_nbytes is None:
            self._read_bytes(entry, out, loaded)
            return
        data: Array = self._buffers.empty(entry.encoded_nbytes, np.uint8)
        self._read_bytes(entry, data, loaded)
        self.codec.decode(data, out)

    def _read_bytes(self, entry: Entry, out: Array, loaded: Array | None) -> None:
        if entry.pack is None:
            self.backend.read(entry, out)
        else:
            self._read_from_pack(entry, entry.pack, out, loaded)

    def _read_from_pack(self, entry: Entry, pack: Pack, out: Array, loaded: Array | None) -> None:
        try:
            data = self._load(pack) if loaded is None else loaded
            np.copyto(out, np.ndarray(out.shape, out.dtype, data, entry.offset))
            if checksum(out) == entry.checksum:
                return
        except (StoreError, OSError):
            pass
        # Not all of the pack is there or right, but this array may be, or be again.
        self._forget_loaded(pack)
        data = self._buffers.empty(pack.nbytes, np.uint8)
        try:
            self.backend.read_part(pack, data, entry.offset, out.nbytes)
        except StoreError as error:
            raise error.for_array(str(entry)) from error.__cause__
        np.copyto(out, np.ndarray(out.shape, out.dtype, data, entry.offset))
        verify(checksum(out), entry, self.backend.name)

    def _forget_loaded(self, pack: Pack) -> None:
        with self._lock:
            pack.loaded = None
            self._loaded_packs.pop(pack, None)

    def prefetch_pack(self, pack: Pack) -> None:
        """Read ``pack``; an error is for whoever wants an array of it: it comes there again."""
        with contextlib.suppress(Exception):
            self._load(pack)
        with self._lock:
            self._active -= 1
            self._lock.notify_all()

    def _load(self, pack: Pack) -> Array:
        """The bytes of ``pack``: in memory still, or again, or read now."""
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

    # ---- with the lock held

    def _end_write(self, entry: Entry, error: StoreError | None) -> None:
        if error is not None and isinstance(entry, Pack) and not entry.dropped:
            entry.loaded = entry.source
            self._failed_packs[entry] = error
        super()._end_write(entry, error)

    def _raise_failed_packs(self, entry: Entry) -> None:
        """Have the put of ``entry`` raise why packs before it could not be written; once."""
        errors = [error for error in self._failed_packs.values() if error is not None]
        if errors:
            self._failed_packs = dict.fromkeys(self._failed_packs)
            if not self.backend.persistent:  # in a persistent one the arrays are missing for good
                for error in errors:
                    self._report(error)
            raise errors[0].for_array(str(entry)) from errors[0].__cause__

    def _in_memory(self, pack: Pack) -> Array | None:
        """The bytes of ``pack``, if they need not be read."""
        if pack.source is None and pack.loaded is not None:
            if pack in self._loaded_packs:
                self._loaded_packs.move_to_end(pack)
            return pack.loaded
        return pack.source

    def _end_pack_prefetch(self, entry: Entry) -> None:
        """A get ends the prefetch of a gathered array, if there is one."""
        if entry.fetch is not None and entry.fetch.packed:
            assert entry.pack is not None
            self._figures.prefetch_hits += entry.pack.in_memory
            self._release_interest(entry)

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
        """``entry`` is to be found in ``pack`` from now on."""
        entry.pack = pack
        entry.stored_nbytes = entry.payload_nbytes
        self._figures.stored_nbytes += entry.stored_nbytes
        self._figures.written_nbytes += entry.stored_nbytes

    def _move_to_pack(self, entry: Entry, pack: Pack) -> None:
        """``entry`` is in ``pack``; the room it was given in the backend is not needed."""
        self._free_place(entry)
        self._set_pack(entry, pack)
        if entry.dropped:
            self._remove_from_pack(entry, pack)

    def _pack_for(self, entry: Entry, nbytes: int, wait: bool) -> Pack:
        while True:
            if wait or not self.backend.persistent:
                self._start_thread(entry)  # or raise an error if the store is closed
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
            if held + size > self._max_inflight_nbytes:  # the longest open first
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
        if other is not None:  # another thread's, while this one waited
            self._seal(other)
        self._open_packs[pack.kind] = pack
        return pack

    def _seal(self, pack: Pack) -> None:
        """Have ``pack`` take no more arrays, and be written as soon as they are all copied."""
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

    def _release_packs(self) -> None:
        for pack in self._open_packs.values():
            pack.source = None
        for pack in (*self._loaded_packs, *self._failed_packs):
            pack.loaded = None
        self._open_packs.clear()
        self._loaded_packs.clear()
        self._failed_packs.clear()

    def _enqueue(self, pack: Pack) -> None:
        self._figures.inflight_nbytes += pack.nbytes
        self._writes[pack] = None
        self._workers.wake()

    def _add_interest(self, pack: Pack) -> None:
        """Keep ``pack`` in memory, or read it ahead, for one more of its arrays."""
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

    def _keep_loaded(self, pack: Pack, data: Array) -> None:
        pack.loaded = data
        self._loaded_packs[pack] = None
        self._evict_loaded()

    def _evict_loaded(self) -> None:
        """Let go of what was read, longest unused first, as far as nobody has asked for it."""
        excess = sum(each.nbytes for each in self._loaded_packs) - _MAX_LOADED_NBYTES
        for each in list(self._loaded_packs)[:-1]:
            if excess > 0 and not each.interest:
                del self._loaded_packs[each]
                each.loaded = None
                excess -= each.nbytes

    def _remove_from_pack(self, entry: Entry, pack: Pack) -> None:
        """The handle of an array in ``pack`` has died."""
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
        if error is not None:  # nothing of it was lost
            self._report(error)
        self._reads.pop(pack, None)
        self._cancel_write(pack)
        self._free_if_unused(pack)


def _copy_in(entry: Entry, memory: Array, array: Array) -> None:
    copied = np.ndarray(array.shape, array.dtype, memory, entry.offset)
    np.copyto(copied, array)
    entry.checksum = checksum(copied)
