"""Stores that take NumPy arrays out of memory and give them back bit for bit.

    with DiskStore() as store:
        handle = store.put(array)
        array = handle.get()

There are PoolStore (memory), DiskStore, ZarrStore (a folder that other tools open) and TieredStore
(memory, then others). AbstractArrayStore says what all of them do, StoreError what can go wrong.
BufferPool gives arrays that go to disk without a copy; ``codec`` knows the encodings by name.
A store of one's own is a Backend in a BackendStore, which gives it an Entry, or a Pack, for each
array; ``checksum`` and ``verify`` are for it, and ``offgrad_storage.testing`` checks it.

Knows nothing of tensors or autograd. Needs NumPy and xxhash; numcodecs for some codecs; zarr and
google-crc32c for what a ZarrStore keeps, publishes, or puts elsewhere than in a local folder.
"""

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
