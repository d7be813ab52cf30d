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

from .backend import Backend
from .base import AbstractArrayStore, Allocate, Handle, StoreStats
from .buffers import BufferPool, BufferPoolStats
from .codecs import Codec, codec
from .directory import spill_directory, sweep
from .disk import DiskStore
from .entry import Entry, Pack, checksum, verify
from .errors import (
    CorruptionError,
    ForkedStoreError,
    MissingDataError,
    QuotaExceededError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from .pool import PoolStore
from .store import BackendStore
from .tiered import TieredStore
from .zarr_groups import dequantize
from .zarr_store import ZarrStore

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
