"""A store that counts what one on a drive would hold in memory, and how long that works.

It holds an array until the drive has written it, copies small ones into packs, and reads packs as a
whole, as `offgrad_storage.executor` does.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any
from weakref import ref

import numpy as np
from offgrad_storage import Handle, StoreStats
from offgrad_storage.entry import Entry

from offgrad import memory
from offgrad.prediction.estimate_clock import Drive
from offgrad.prediction.estimate_pool import IN_FLIGHT, PREFETCHED, Array, CountingStore, mark
from offgrad.session.named_stores import INFLIGHT_NBYTES

_PACKS_BELOW = 1 << 20
_MIN_PACK_NBYTES = 256 << 10
_ALIGNMENT = 64
_PAGE = 4096
_MAX_LOADED_NBYTES = 16 << 20


class _Pack:
    """Small arrays that are written and read as one."""

    def __init__(self, source: Array) -> None:
        self.source: Array | None = source
        self.loaded: Array | None = None
        self.target: Array | None = None  # as of a real pack, while it is read
        self.nbytes = self.capacity = int(source.nbytes)
        self.used = self.members = self.interest = 0
        self.loaded_at = 0.0

    @property
    def in_memory(self) -> Array | None:
        return self.source if self.source is not None else self.loaded


class CountingDrive(CountingStore):
    """Holds arrays until they are written, as a DiskStore or ZarrStore does.

    Args:
        name: of the store that it stands for.
        codec: of it.
        drive: takes the time of writes and reads.
        by_kind: whether only arrays of one shape and dtype share a pack.
        max_pack_nbytes: bound of the bytes of a pack; 0 for no packs.
    """

    def __init__(
        self, name: str, codec: Any, drive: Drive, by_kind: bool, max_pack_nbytes: int
    ) -> None:
        super().__init__(name, codec)
        self._drive, self._clock = drive, drive.clock
        self._by_kind = by_kind
        self._max_pack_nbytes = max_pack_nbytes
        self._below = min(_PACKS_BELOW, max_pack_nbytes)
        self._pending: deque[tuple[float, Any, int]] = deque()  # end, handle's weakref or pack
        self.inflight_nbytes = 0
        self._open: dict[Any, _Pack] = {}
        self._next_nbytes: dict[Any, int] = {}
        self._pack_of: dict[Any, tuple[_Pack, Any]] = {}  # by the weak references of handles
        self._dead: deque[Any] = deque()
        self._fetches: dict[int, float] = {}
        self._loaded: OrderedDict[int, _Pack] = OrderedDict()
        self._clock.listeners.append(self.settle)

    # ---- writes

    def put(self, array: Array, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Queue the write, or copy the array into a pack."""
        self.settle()
        handle = self.new_handle(array, attributes)
        entry = handle._entry
        nbytes = entry.payload_nbytes
        if 0 < nbytes < self._below:
            self._put_in_pack(handle, nbytes)
            entry.captured = True
            return handle
        self._wait_for_room(entry.nbytes)
        handle._source = array
        mark(array, IN_FLIGHT)
        self._queue(ref(handle), entry.nbytes, nbytes)
        return handle

    def _queue(self, item: Any, held_nbytes: int, nbytes: int) -> None:
        end = self._drive.schedule("write", 0, nbytes)
        self._pending.append((end, item, held_nbytes))
        self.inflight_nbytes += held_nbytes

    def _wait_for_room(self, nbytes: int) -> None:
        while self._pending and self._held_nbytes() + nbytes > INFLIGHT_NBYTES:
            self._clock.wait_until(self._pending[0][0])
            self.settle()

    def _held_nbytes(self) -> int:
        return self.inflight_nbytes + sum(each.capacity for each in self._open.values())

    def settle(self) -> None:
        """Release what is written by now, and what belonged to dead handles."""
        now, pending = self._clock.now, self._pending
        while pending and pending[0][0] <= now:
            _, item, nbytes = pending.popleft()
            self.inflight_nbytes -= nbytes
            if isinstance(item, _Pack):
                item.source = None
            else:
                handle = item()
                if handle is not None:
                    mark(handle._source, "")
                    handle._source = None
                    handle._entry.captured = True
        while self._dead:
            pack, kind = self._pack_of.pop(self._dead.popleft())
            pack.members -= 1
            if not pack.members:
                self._end_pack(pack, kind)

    def _end_pack(self, pack: _Pack, kind: Any) -> None:
        if self._open.get(kind) is pack:
            del self._open[kind]
        pack.source = pack.loaded = None
        self._loaded.pop(id(pack), None)

    def _wait_captured(self, entry: Entry) -> None:
        while self._pending and not entry.captured:
            self._clock.wait_until(self._pending[0][0])
            self.settle()

    def flush(self) -> None:
        """Wait until all is written."""
        for kind in list(self._open):
            self._seal(kind)
        while self._pending:
            self._clock.wait_until(self._pending[0][0])
            self.settle()

    # ---- packs

    def _put_in_pack(self, handle: Handle, nbytes: int) -> None:
        entry = handle._entry
        kind = (entry.shape, entry.dtype) if self._by_kind else None
        pack = self._open.get(kind)
        if pack is None or pack.used + nbytes > pack.nbytes:
            if pack is not None:
                self._seal(kind, full=True)
            size = min(self._next_nbytes.get(kind, _MIN_PACK_NBYTES), self._max_pack_nbytes)
            size = max(-(-nbytes // _PAGE) * _PAGE, min(size, INFLIGHT_NBYTES // 2))
            while self._open and self._open_nbytes() + size > INFLIGHT_NBYTES // 2:
                oldest = next(iter(self._open))
                self._next_nbytes[oldest] = max(_MIN_PACK_NBYTES, self._open[oldest].capacity // 2)
                self._seal(oldest)
            self._wait_for_room(size)
            pack = self._open[kind] = _Pack(memory.empty((size,), np.uint8))
            mark(pack.source, IN_FLIGHT)
        pack.used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        pack.members += 1
        self._pack_of[handle_ref := ref(handle, self._dead.append)] = pack, kind
        entry.place = handle_ref

    def _open_nbytes(self) -> int:
        return sum(each.capacity for each in self._open.values())

    def _seal(self, kind: Any, full: bool = False) -> None:
        pack = self._open.pop(kind)
        pack.nbytes = -(-pack.used // _PAGE) * _PAGE
        if full:
            self._next_nbytes[kind] = 2 * pack.nbytes
        self._queue(pack, pack.capacity, pack.nbytes)

    @property
    def packs_nbytes(self) -> int:
        """Bytes of memory that packs hold."""
        self.settle()
        writing = sum(
            n for _, each, n in self._pending if isinstance(each, _Pack) and each.source is not None
        )
        return self._open_nbytes() + writing + sum(each.nbytes for each in self._loaded.values())

    def trim(self) -> None:
        """Write open packs, and drop those cached."""
        self.flush()
        for key, pack in list(self._loaded.items()):
            if not pack.interest:
                pack.loaded = None
                del self._loaded[key]

    # ---- reads

    def prefetch(self, handle: Handle, out: Array | None = None) -> None:
        """Schedule the read of the array, or of its pack."""
        self.settle()
        if id(handle) in self._fetches:
            return
        mark(out, PREFETCHED)
        pack = self._find_pack(handle)
        if pack is not None:
            self._load(pack)
            pack.interest += 1
            self._fetches[id(handle)] = pack.loaded_at
        elif handle._source is None:
            nbytes = handle._entry.payload_nbytes
            self._fetches[id(handle)] = self._drive.schedule("read", id(handle), nbytes)
        else:
            self._fetches[id(handle)] = self._clock.now

    def cancel_prefetch(self, handle: Handle) -> None:
        """Forget the read."""
        pack = self._find_pack(handle)
        if self._fetches.pop(id(handle), None) is not None and pack is not None:
            pack.interest -= 1

    def get(self, handle: Handle, out: Array | None = None) -> Array:
        """Wait for the read."""
        self.settle()
        out = super().get(handle, out)
        mark(out, "")
        pack, end = self._find_pack(handle), self._fetches.pop(id(handle), None)
        if pack is not None:
            if end is not None:
                pack.interest -= 1
            self._load(pack)
            end = pack.loaded_at
        elif end is None:
            now = self._clock.now
            in_memory = handle._source is not None
            nbytes = handle._entry.payload_nbytes
            end = now if in_memory else self._drive.schedule("read", id(handle), nbytes)
        self._drive.note("use", id(handle if pack is None else pack), 0)
        self._clock.wait_until(end, reading=True)
        return out

    def _find_pack(self, handle: Handle) -> _Pack | None:
        found = self._pack_of.get(handle._entry.place)
        return None if found is None else found[0]

    def _load(self, pack: _Pack) -> None:
        if pack.in_memory is not None:
            if id(pack) in self._loaded:
                self._loaded.move_to_end(id(pack))
            return
        pack.loaded = memory.empty((pack.nbytes,), np.uint8)
        mark(pack.loaded, PREFETCHED)
        pack.loaded_at = self._drive.schedule("read", id(pack), pack.nbytes)
        self._loaded[id(pack)] = pack
        loaded_nbytes = sum(each.nbytes for each in self._loaded.values())
        for key, each in list(self._loaded.items())[:-1]:
            if loaded_nbytes > _MAX_LOADED_NBYTES and not each.interest:
                each.loaded = None
                loaded_nbytes -= each.nbytes
                del self._loaded[key]

    @property
    def reads_ahead(self) -> bool:
        """True: its model has a thread."""
        return True

    def stats(self) -> StoreStats:
        """Return the bytes in flight."""
        return StoreStats(inflight_nbytes=self.inflight_nbytes)
