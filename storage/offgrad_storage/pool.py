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
        quota: most bytes of arrays stored at once; None for no bound.
        codec: what arrays are encoded with (see ``codec``); within ``put``.
        seed: of codecs that round at random: the same array and seed give the same bits.
        allocate: where arrays that are read back come from; None for a BufferPool of its own.
        hold: where the stored copies live; None for a BufferPool of its own.

    Raises, besides StoreErrors, the MemoryError of ``hold`` and ``allocate``.
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
        # The allocator may ask this store what it holds, or wait for other stores.
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
