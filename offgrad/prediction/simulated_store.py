"""Simulated stores: of a default store the memory and the times, without bytes.

They hold the memory of meta arrays exactly as the stores hold that of arrays: until a write has
ended, in packs, in packs read back.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias
from weakref import ref

import numpy as np
from numpy.typing import ArrayLike, NDArray
from offgrad_storage import AbstractArrayStore, Handle, StoreStats
from offgrad_storage.memory.buffer_pool import round_up

from offgrad import memory
from offgrad.prediction.drive import Drive, Job
from offgrad.session.named_stores import INFLIGHT_NBYTES

Array = NDArray[Any]
Encoded: TypeAlias = Callable[[Array, Mapping[str, object]], int]

_PACKS_BELOW = 1 << 20
_MIN_PACK_NBYTES = 256 << 10
_MAX_LOADED_NBYTES = 16 << 20
_MAX_PREFETCHED_NBYTES = 64 << 20


class _Entry:
    """An array in a simulated store: see `offgrad_storage.entry.Entry`.

    Attributes:
        payload_nbytes: bytes after encoding.
        source: the array, once its write has begun, until it has ended.
        pack: where it is, if it is small.
        job: its write.
    """

    def __init__(self, array: Array, payload_nbytes: int) -> None:
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes
        self.payload_nbytes = self.stored_nbytes = payload_nbytes
        self.captured = False
        self.error: Any = None
        self.source: Array | None = None
        self.pack: _Pack | None = None
        self.job: Job | None = None


class _Pack:
    """Small arrays written and read as one; `in_memory` is None while it is on the drive."""

    def __init__(self, data: Array) -> None:
        self.in_memory: Array | None = data
        self.target: Array | None = None  # as of a real pack, while it is read
        self.capacity = self.nbytes = data.nbytes
        self.used = self.interest = 0
        self.members: list[ref[Handle]] = []
        self.job: Job | None = None
        self.is_open = True

    @property
    def is_alive(self) -> bool:
        """Whether an array in it is needed."""
        return any(each() is not None for each in self.members)


class SimulatedStore(AbstractArrayStore):
    """A store on a simulated drive.

    Attributes:
        puts: so far.

    Args:
        drive: shared by all stores on it.
        max_pack_nbytes: as for a real store; 0 for no packs.
        encoded: returns the bytes of an encoded array, from it and its attributes; None for no
            codec.
        by_shape: whether packs hold arrays of one shape and dtype, as in Zarr.
    """

    def __init__(
        self,
        drive: Drive,
        max_pack_nbytes: int = 0,
        encoded: Encoded | None = None,
        by_shape: bool = False,
    ) -> None:
        self._drive = drive
        self._max_pack_nbytes = max_pack_nbytes
        self._encoded, self._by_shape = encoded, by_shape
        self.puts = 0
        self._inflight_nbytes = self._written_nbytes = self._read_nbytes = 0
        self._packs: dict[Hashable, _Pack] = {}
        self._next_nbytes: dict[Hashable, int] = {}
        self._loaded: OrderedDict[_Pack, None] = OrderedDict()
        self._closed: list[_Pack] = []  # sealed, and perhaps pending

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        assert isinstance(array, np.ndarray)
        self._forget_dead()
        nbytes = self._encoded_nbytes(array, attributes)
        entry = _Entry(array, nbytes)
        self.puts += 1
        handle = Handle(self, entry)  # type: ignore[arg-type]
        if nbytes < min(_PACKS_BELOW, self._max_pack_nbytes):
            self._put_in_pack(handle, entry, array)
        else:
            self._wait_for_room(array.nbytes)
            self._queue(handle, entry, array)
        return handle

    def _encoded_nbytes(self, array: Array, attributes: Mapping[str, object] | None) -> int:
        return array.nbytes if self._encoded is None else self._encoded(array, attributes or {})

    def get(self, handle: Handle, out: Array | None = None) -> Array:
        self._forget_dead()
        entry: Any = handle._entry
        self._read_nbytes += entry.nbytes
        holder: Any = handle  # of the prefetch: both die together
        fetch, holder._fetch = holder._fetch, None
        target = out if out is not None else memory.empty(entry.shape, entry.dtype)
        if entry.pack is not None:
            self._get_from_pack(entry, fetch is not None)
        elif fetch is not None and fetch[1] is not None:
            job = fetch[1]
            self._drive.prefer_read(job)
            self._drive.wait_for(lambda: job.is_done)
            return fetch[0] if out is None and fetch[0] is not None else target
        elif self._is_in_memory(handle):
            self._copy(entry.nbytes)
        else:
            self._drive.read_now(entry.payload_nbytes)
        return target

    def prefetch(self, handle: Handle, out: Array | None = None) -> None:
        self._forget_dead()
        entry: Any = handle._entry
        holder: Any = handle
        if holder._fetch is not None:
            return
        if entry.pack is not None:
            holder._fetch = (None, None)
            self._want(entry.pack)
            return
        target = memory.empty(entry.shape, entry.dtype) if out is None else out
        if self._is_in_memory(handle):
            job = self._drive.copy(entry.nbytes, _nothing)
        else:
            job = self._drive.read(entry.payload_nbytes, _nothing)
        holder._fetch = (target, job)

    def cancel_prefetch(self, handle: Handle) -> None:
        entry: Any = handle._entry
        holder: Any = handle  # of the prefetch: both die together
        fetch, holder._fetch = holder._fetch, None
        if fetch is None:
            return
        if entry.pack is not None:
            entry.pack.interest -= 1
        elif fetch[1] is not None and not self._drive.cancel(fetch[1]):
            job = fetch[1]
            self._drive.wait_for(lambda: job.is_done)

    def flush(self) -> None:
        self._seal_all()
        self._drive.wait_for(lambda: not self._drive.is_writing, for_write=True)

    def trim(self) -> None:
        self._forget_dead()
        pending = [each for each in (*self._packs.values(), *self._closed) if each.is_alive]
        self._seal_all()
        self._drive.wait_for(lambda: all(_is_written(each) for each in pending), for_write=True)
        for pack in [each for each in self._loaded if not each.interest]:
            self._evict(pack)

    @property
    def packs_nbytes(self) -> int:
        self._forget_dead()
        packs = {*self._packs.values(), *self._closed, *self._loaded}
        return sum(each.capacity for each in packs if each.in_memory is not None)

    def close(self) -> None:
        pass

    def stats(self) -> StoreStats:
        return StoreStats(
            written_nbytes=self._written_nbytes,
            read_nbytes=self._read_nbytes,
            inflight_nbytes=self._inflight_nbytes,
        )

    def _check_open(self) -> None:
        pass

    def _wait_captured(self, entry: Any) -> None:
        if entry.captured:
            return
        if entry.job is not None:
            self._drive.prefer(entry.job)
        self._drive.wait_for(lambda: bool(entry.captured), for_write=True)

    # Large arrays

    def _queue(self, handle: Handle, entry: _Entry, array: Array) -> None:
        nbytes = array.nbytes
        self._inflight_nbytes += nbytes
        handle._source = array  # both die together until the write begins
        reference = ref(handle)

        def begin() -> bool:
            alive = reference()
            if alive is None:
                self._inflight_nbytes -= nbytes
                entry.job = None
                return False
            entry.source, alive._source = alive._source, None
            self._written_nbytes += round_up(entry.payload_nbytes)
            return True

        def end() -> None:
            self._inflight_nbytes -= nbytes
            entry.source, entry.captured, entry.job = None, True, None

        del array
        entry.job = self._drive.write(entry.payload_nbytes, begin, end)

    def _is_in_memory(self, handle: Handle) -> bool:
        return not handle._entry.captured

    def _wait_for_room(self, nbytes: int) -> None:
        def has_room() -> bool:
            held = self._inflight_nbytes + sum(each.capacity for each in self._packs.values())
            return not held or held + nbytes <= INFLIGHT_NBYTES

        while not self._drive.wait_for(has_room, for_write=True):
            if not self._packs:
                return
            self._seal(next(iter(self._packs)))

    def _copy(self, nbytes: int) -> None:
        self._drive.compute(nbytes / self._drive.machine.copy_rate)

    # Packs

    def _put_in_pack(self, handle: Handle, entry: _Entry, array: Array) -> None:
        kind: Hashable = (entry.shape, entry.dtype) if self._by_shape else None
        nbytes = entry.payload_nbytes
        pack = self._packs.get(kind)
        if pack is None or pack.used + nbytes > pack.nbytes:
            if pack is not None:
                self._next_nbytes[kind] = 2 * round_up(pack.used)
                self._seal(kind)
            size = min(self._next_nbytes.get(kind, _MIN_PACK_NBYTES), self._max_pack_nbytes)
            size = max(round_up(nbytes), min(size, INFLIGHT_NBYTES // 2))
            while self._packs and self._open_nbytes() + size > INFLIGHT_NBYTES // 2:
                self._seal(next(iter(self._packs)))
            self._wait_for_room(size)
            pack = self._packs[kind] = _Pack(memory.empty((size,), np.uint8))
        pack.used += round_up(nbytes, 64)
        pack.members.append(ref(handle))
        self._copy(nbytes)
        self._written_nbytes += nbytes
        entry.pack, entry.captured = pack, True

    def _open_nbytes(self) -> int:
        return sum(each.capacity for each in self._packs.values())

    def _seal(self, kind: Hashable) -> None:
        pack = self._packs.pop(kind)
        pack.is_open = False
        pack.nbytes = min(round_up(pack.used), pack.capacity)
        self._closed.append(pack)
        self._inflight_nbytes += pack.capacity

        def begin() -> bool:
            if not pack.is_alive:
                self._inflight_nbytes -= pack.capacity
                pack.in_memory = None
            return pack.in_memory is not None

        def end() -> None:
            self._inflight_nbytes -= pack.capacity
            pack.in_memory, pack.capacity = None, pack.nbytes

        pack.job = self._drive.write(pack.nbytes, begin, end)

    def _seal_all(self) -> None:
        for kind in list(self._packs):
            self._seal(kind)

    def _want(self, pack: _Pack) -> None:
        """Keep a pack in memory for one more prefetch; have it read if it is on the drive."""
        pack.interest += 1
        held = sum(each.capacity for each in self._loaded)
        if pack.in_memory is None and held <= _MAX_PREFETCHED_NBYTES:
            self._load(pack)

    def _load(self, pack: _Pack) -> None:
        pack.in_memory = memory.empty((pack.nbytes,), np.uint8)
        self._loaded[pack] = None
        pack.job = self._drive.read(pack.nbytes, _nothing)

    def _get_from_pack(self, entry: Any, was_wanted: bool) -> None:
        pack: _Pack = entry.pack
        pack.interest -= was_wanted
        if pack.in_memory is None:
            self._load(pack)
        if pack in self._loaded:
            self._loaded.move_to_end(pack)
            job = pack.job
            assert job is not None
            self._drive.wait_for(lambda: job.is_done)
            for each in list(self._loaded)[:-1]:
                if sum(one.capacity for one in self._loaded) <= _MAX_LOADED_NBYTES:
                    break
                if not each.interest:
                    self._evict(each)
        self._copy(entry.payload_nbytes)

    def _evict(self, pack: _Pack) -> None:
        self._loaded.pop(pack, None)
        pack.in_memory = None

    def _forget_dead(self) -> None:
        """Free packs of which no array is needed."""
        for kind, pack in list(self._packs.items()):
            if not pack.is_alive:
                del self._packs[kind]
                pack.in_memory = None
        for pack in list(self._loaded):
            if not pack.is_alive:
                self._evict(pack)
        self._closed = [each for each in self._closed if not _is_written(each)]


def _is_written(pack: _Pack) -> bool:
    return pack.job is not None and pack.job.is_done


class SimulatedPool(SimulatedStore):
    """A store in memory: copies, made at once."""

    @property
    def reads_ahead(self) -> bool:
        return False

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        assert isinstance(array, np.ndarray)
        entry = _Entry(array, self._encoded_nbytes(array, attributes))
        handle = Handle(self, entry)  # type: ignore[arg-type]
        if entry.payload_nbytes == array.nbytes:
            handle._source = memory.empty(array.shape, array.dtype)
        else:
            handle._source = memory.empty((entry.payload_nbytes,), np.uint8)
        entry.captured = True
        self._copy(array.nbytes)
        return handle

    def get(self, handle: Handle, out: Array | None = None) -> Array:
        target = memory.empty(handle.shape, handle.dtype) if out is None else out
        self._copy(handle.nbytes)
        return target

    def prefetch(self, handle: Handle, out: Array | None = None) -> None:
        pass


def _nothing() -> None:
    pass
