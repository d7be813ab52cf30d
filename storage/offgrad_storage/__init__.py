"""Stores that take NumPy arrays out of memory and give them back bit for bit.

    with DiskStore() as store:
        handle = store.put(array)
        array = handle.get()

Knows nothing of tensors or autograd. Needs NumPy and xxhash; numcodecs for some codecs, and zarr
for what a ZarrStore keeps.
"""

from .backend import Backend
from .base import AbstractArrayStore, Allocate, Handle, StoreStats
from .buffers import BufferPool, BufferPoolStats
from .codecs import Codec, codec
from .directory import spill_directory, sweep
from .disk import DiskStore
from .entry import Entry
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
    "PoolStore",
    "QuotaExceededError",
    "StoreClosedError",
    "StoreError",
    "StoreFullError",
    "StoreStats",
    "TieredStore",
    "ZarrStore",
    "codec",
    "spill_directory",
    "sweep",
]
