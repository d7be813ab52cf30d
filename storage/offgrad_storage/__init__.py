"""Stores that move NumPy arrays out of memory and return them bit for bit.

    with DiskStore() as store:
        handle = store.put(array)
        array = handle.get()

PoolStore keeps them in memory, DiskStore in a spill file, ZarrStore in a folder that other tools
open, TieredStore in memory first and then in other stores. AbstractArrayStore is their interface,
StoreError the base of their errors. Arrays from a BufferPool are written to disk without a copy;
``codec`` returns an encoding by name. A custom store is a Backend in a BackendStore, which makes an
Entry, or a Pack, for each array; ``checksum`` and ``verify`` help to write one, and
``offgrad_storage.testing`` tests it.

Public are the names in ``__all__``, ``codecs`` and ``testing``. Internal are the other modules.

Independent of tensors and autograd. Needs NumPy and xxhash; numcodecs for some codecs; zarr and
google-crc32c for a ZarrStore that is kept, published, or not in a local folder.
"""

import typing as _typing

from offgrad_storage._imports import lazy as _lazy

if _typing.TYPE_CHECKING or not _lazy(__name__):
    from offgrad_storage.backend import Backend
    from offgrad_storage.backend_store import BackendStore
    from offgrad_storage.base import (
        AbstractArrayStore,
        Allocate,
        Handle,
        StoreStats,
    )
    from offgrad_storage.codecs import Codec, codec
    from offgrad_storage.disk import DiskStore
    from offgrad_storage.entry import (
        Entry,
        Pack,
        checksum,
        verify,
    )
    from offgrad_storage.errors import (
        CorruptionError,
        ForkedStoreError,
        MissingDataError,
        QuotaExceededError,
        StoreClosedError,
        StoreError,
        StoreFullError,
    )
    from offgrad_storage.files.spill_directory import spill_directory, sweep
    from offgrad_storage.memory.buffer_pool import BufferPool, BufferPoolStats
    from offgrad_storage.memory.counter import MemoryCounter
    from offgrad_storage.pool import PoolStore
    from offgrad_storage.tiered.store import TieredStore
    from offgrad_storage.zarr.groups import dequantize
    from offgrad_storage.zarr.store import ZarrStore

__all__ = [
    "AbstractArrayStore",
    "Allocate",
    "Backend",
    "BackendStore",
    "BufferPool",
    "BufferPoolStats",
    "Codec",
    "CorruptionError",
    "DiskStore",
    "Entry",
    "ForkedStoreError",
    "Handle",
    "MemoryCounter",
    "MissingDataError",
    "Pack",
    "PoolStore",
    "QuotaExceededError",
    "StoreClosedError",
    "StoreError",
    "StoreFullError",
    "StoreStats",
    "TieredStore",
    "ZarrStore",
    "checksum",
    "codec",
    "dequantize",
    "spill_directory",
    "sweep",
    "verify",
]
