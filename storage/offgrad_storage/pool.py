"""PoolStore: arrays in reusable memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.backend import Backend
from offgrad_storage.backend_store import BackendStore
from offgrad_storage.base import Allocate
from offgrad_storage.codecs import Codec
from offgrad_storage.entry import Entry
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


class _PoolBackend(Backend):
    def __init__(self, quota: int | None, hold: Allocate) -> None:
        super().__init__("PoolStore", quota)
        self._hold = hold
        self._kept: dict[int, Array] = {}

    def prepare(self, entry: Entry) -> None:
        # The allocator may call this store, or wait for other stores.
        if entry.encoded_nbytes is None:
            entry.place = self._hold(entry.shape, entry.dtype)
        else:
            entry.place = self._hold((entry.encoded_nbytes,), np.dtype(np.uint8))

    def reserve(self, entry: Entry) -> int:
        nbytes = super().reserve(entry)
        self._kept[entry.serial], entry.place = entry.place, None
        return nbytes

    def write(self, entry: Entry, array: Array) -> int:
        np.copyto(self._kept[entry.serial], array)
        return entry.payload_nbytes

    def read(self, entry: Entry, out: Array) -> None:
        np.copyto(out, self._kept[entry.serial])

    def free(self, entry: Entry) -> None:
        del self._kept[entry.serial]

    def close(self) -> None:
        self._kept.clear()
