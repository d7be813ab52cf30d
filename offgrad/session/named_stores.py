"""The stores that policies name, one of each kind, codec and folder for the process.

They live as long as the process, so that each step reuses the space the step before has written.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offgrad_storage import (
    AbstractArrayStore,
    DiskStore,
    PoolStore,
    ZarrStore,
)

from offgrad import memory
from offgrad.policies.names import store_and_codec

INFLIGHT_NBYTES = 32 << 20
"""Most bytes of tensors whose write is pending in a default store."""
THREADS = 2
"""I/O threads of a default store. A third takes from computing what it gives to the drive."""


# By name with codec, folder and process: a forked child needs stores of its own.
_stores: dict[tuple[str, str | None, int], AbstractArrayStore] = {}
_lock = threading.Lock()


class _PoolCopies:
    """Tells an `OutOfMemoryError` what the copies in RAM take."""

    def reclaim(self) -> None:
        """Do nothing: what is stored is needed."""

    def held_by_purpose(self) -> Mapping[str, int]:
        """Return the bytes of the copies."""
        own = [store for (_, _, pid), store in list(_stores.items()) if pid == os.getpid()]
        pools = [store.stats().stored_nbytes for store in own if isinstance(store, PoolStore)]
        return {"copies in the pool store": sum(pools)}


_pool_copies = _PoolCopies()
memory.register_reclaimable(_pool_copies)


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def open_store(
    store: str | AbstractArrayStore, directory: str | None = None, codec: str | None = None
) -> AbstractArrayStore:
    """Return the store meant, the same one each time.

    Args:
        store: ``"pool"``, ``"disk"``, ``"zarr"``, or one of these with a codec, ``"disk:lz4"``; a
            store is returned as it is.
        directory: where ``"disk"`` and ``"zarr"`` write; None for the store's default.
        codec: what it encodes with; None for the store's default.
    """
    if not isinstance(store, str):
        return store
    name, codec = store_and_codec(store, codec)
    key = (name if codec is None else f"{name}:{codec}", directory, os.getpid())
    with _lock:
        found = _stores.get(key)
        if found is None:
            found = _stores[key] = _open(name, codec, directory)
        return found


def _open(name: str, codec: str | None, directory: str | None) -> AbstractArrayStore:
    options: dict[str, Any] = {"allocate": memory.empty}
    if codec is not None:
        options["codec"] = codec
    if name == "pool":
        return PoolStore(hold=memory.empty, **options)
    options |= {"inflight_nbytes": INFLIGHT_NBYTES, "threads": THREADS}
    folder = None if directory is None else Path(directory)
    return DiskStore(folder, **options) if name == "disk" else ZarrStore(folder, **options)
