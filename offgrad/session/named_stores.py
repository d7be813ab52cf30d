"""The stores that policies name: one for each kind, codec and directory in the process.

They live as long as the process, so that each step reuses the space that the step before wrote.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offgrad_storage import AbstractArrayStore, PoolStore

from offgrad import memory
from offgrad.policies.names import STORES, store_and_codec

INFLIGHT_NBYTES = 32 << 20
"""The maximum of bytes whose write is pending in a default store."""
THREADS = 2
"""I/O threads of a default store. A third slows computing as much as it speeds up the drive."""


# By name with codec, directory and process: a forked child needs its own stores.
_stores: dict[tuple[str, str | None, int], AbstractArrayStore] = {}
_lock = threading.Lock()


class _PoolCopies:
    """Reports the memory of copies in RAM in an `OutOfMemoryError`."""

    def reclaim(self) -> None:
        """Do nothing: stored copies are needed."""

    def held_by_purpose(self) -> Mapping[str, int]:
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
    """Return the store of that name, the same one each time; a store object as it is.

    Args:
        store: ``"pool"``, ``"disk"``, ``"zarr"``, or one of these with a codec, ``"disk:lz4"``; or
            a store object.
        directory: where ``"disk"`` and ``"zarr"`` write; None for the store's default.
        codec: the name of its codec; None for the store's default.
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
    make: Any = STORES[name].store
    options: dict[str, Any] = {"allocate": memory.empty}
    if codec is not None:
        options["codec"] = codec
    if STORES[name].is_in_memory:
        return make(hold=memory.empty, **options)  # type: ignore[no-any-return]
    options |= {"inflight_nbytes": INFLIGHT_NBYTES, "threads": THREADS}
    return make(None if directory is None else Path(directory), **options)  # type: ignore[no-any-return]
