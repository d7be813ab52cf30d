"""PoolStore: arrays in reusable memory."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offgrad_storage.backend import Backend
from offgrad_storage.backend_store import BackendStore
from offgrad_storage.base import Allocate, Handle
from offgrad_storage.codecs import Codec
from offgrad_storage.entry import Entry
from offgrad_storage.interrupts import masked
from offgrad_storage.memory.buffer_pool import BufferPool

Array = NDArray[Any]


class PoolStore(BackendStore):
    """Keeps copies of arrays in memory; the copy is made before ``put`` returns.

    Args:
        quota: bound of the bytes stored at once; None for none.
        codec: encodes arrays (see ``codec``) within ``put``.
        seed: of codecs that round at random: bits depend on the array and the seed alone.
        allocate: allocates arrays that are read back; None for a separate BufferPool.
        hold: allocates the stored copies; None for a separate BufferPool.

    Its methods also raise the MemoryError of ``hold`` and ``allocate``.
    """

    def __init__(
        self,
        quota: int | None = None,
        *,
        codec: str | Codec = "none",
        seed: int = 0,
        allocate: Allocate | None = None,
        hold: Allocate | None = None,
    ) -> None:
        backend = _PoolBackend(quota, BufferPool().empty if hold is None else hold)
        super().__init__(backend, threads=0, codec=codec, seed=seed, allocate=allocate)

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Store a copy of ``array``: see ``AbstractArrayStore.put``."""
        with masked:
            handle = super().put(array, attributes=attributes)
            place: _Place = handle._entry.place
            # The handle owns the copy, so both die together, though no thread looks after deaths.
            handle._source, place.own = place.own, None
            return handle


class _Place:
    """A stored copy: ``own`` until its handle owns it."""

    __slots__ = ("own", "shared")

    def __init__(self, array: Array) -> None:
        self.own: Array | None = array
        self.shared = weakref.ref(array)


class _PoolBackend(Backend):
    def __init__(self, quota: int | None, hold: Allocate) -> None:
        super().__init__("PoolStore", quota)
        self._hold = hold

    def prepare(self, entry: Entry) -> None:
        # The allocator may call this store, or wait for other stores.
        if entry.encoded_nbytes is None:
            entry.place = _Place(self._hold(entry.shape, entry.dtype))
        else:
            entry.place = _Place(self._hold((entry.encoded_nbytes,), np.dtype(np.uint8)))

    def write(self, entry: Entry, array: Array) -> int:
        np.copyto(entry.place.own, array)
        return entry.payload_nbytes

    def read(self, entry: Entry, out: Array) -> None:
        np.copyto(out, entry.place.shared())

    def free(self, entry: Entry) -> None:
        entry.place = None

    def close(self) -> None:
        """The handles of a closed store release their copies."""
