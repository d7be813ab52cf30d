"""Stores that take NumPy arrays out of memory and give them back bit for bit.

    with DiskStore() as store:
        handle = store.put(array)
        array = handle.get()

Knows nothing of tensors or autograd; needs NumPy and xxhash, and zarr for ZarrStore alone.
"""

from .backend import Backend
from .base import AbstractArrayStore, Allocate, Handle, StoreStats
from .buffers import BufferPool, BufferPoolStats
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
from .zarr_store import ZarrStore

__all__ = [
    "AbstractArrayStore",
    "Allocate",
    "Backend",
    "BackendStore",
    "BufferPool",
    "BufferPoolStats",
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
    "ZarrStore",
    "spill_directory",
    "sweep",
]
