"""The stores that policies name, one of each kind and folder for the process.

They live as long as the process, so that each step reuses the space the step before has written.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offgrad_storage import AbstractArrayStore, DiskStore, PoolStore, ZarrStore

from offgrad import memory

INFLIGHT_NBYTES = 32 << 20
"""Most bytes of tensors whose write is pending in a default store."""


# By name, folder and process: a forked child needs stores of its own.
_stores: dict[tuple[str, str | None, int], AbstractArrayStore] = {}
_lock = threading.Lock()


class _PoolCopies:
    """Tells an `OutOfMemoryError` what the copies in RAM take."""

    def relieve(self) -> None:
        """Do nothing: what is stored is needed."""

    def holdings(self) -> Mapping[str, int]:
        """Return the bytes of the copies."""
        own = [store for (_, _, pid), store in list(_stores.items()) if pid == os.getpid()]
        pools = [store.stats().stored_nbytes for store in own if isinstance(store, PoolStore)]
        return {"copies in the pool store": sum(pools)}


_pool_copies = _PoolCopies()
memory.register_borrower(_pool_copies)


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def open_store(spec: str | AbstractArrayStore, directory: str | None = None) -> AbstractArrayStore:
    """Return the store meant by `spec`, the same one each time.

    Args:
        spec: ``"pool"``, ``"disk"``, ``"zarr"``, ``"zarr:CODEC"``; a store is returned as it is.
        directory: where ``"disk"`` and ``"zarr"`` write; None for the store's default.
    """
    if not isinstance(spec, str):
        return spec
    key = (spec, directory, os.getpid())
    with _lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = _open(spec, directory)
        return store


def _open(spec: str, directory: str | None) -> AbstractArrayStore:
    name, _, codec = spec.partition(":")
    folder = None if directory is None else Path(directory)
    if name == "pool":
        return PoolStore(allocate=memory.empty, hold=memory.empty)
    options: dict[str, Any] = {"inflight_nbytes": INFLIGHT_NBYTES, "allocate": memory.empty}
    if name == "disk":
        return DiskStore(folder, **options)
    if name == "zarr":
        if codec:
            options["codec"] = codec
        return ZarrStore(folder, **options)
    raise ValueError(f"a store is pool, disk, zarr or zarr:CODEC, got {spec!r}")
