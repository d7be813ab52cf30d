"""Stores that hold no bytes: they count, and keep in memory what a store in memory would."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from offgrad_storage import AbstractArrayStore, Handle, StoreStats
from offgrad_storage.codecs.groups import GroupInt
from offgrad_storage.entry import Entry

from offgrad import memory
from offgrad.memory.meta import memory_of

Array = Any

_HALVES = ("float16", "bfloat16")


SAVED, PREFETCHED, IN_FLIGHT = "saved for backward", "prefetched", "in flight"


def mark(array: Any, role: str) -> None:
    """Note the purpose of memory that no storage has."""
    owner = memory_of(array)
    if owner is not None:
        owner.role = role


def encoded_nbytes(codec: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> int | None:
    """Return the bytes of an encoded array; None if it is stored as it is, or depends on values."""
    size = int(np.prod(shape, dtype=np.int64))
    if codec is None or not size:
        return None
    if isinstance(codec, GroupInt):
        parts = codec.parts(tuple(shape), dtype)
        return None if parts is None else parts.nbytes
    if codec.name in _HALVES and dtype.kind in "fc" and dtype.itemsize > 2:
        return size * (4 if dtype.kind == "c" else 2)
    if codec.name in ("packbits", "auto") and dtype == np.bool_ and size > 1:
        return -(-size // 8)
    return None


def has_known_sizes(codec: Any) -> bool:
    """Return whether the bytes of encoded arrays depend on their shapes and dtypes alone."""
    return isinstance(codec, GroupInt) or codec.name in (*_HALVES, "packbits", "auto", "none")


class CountingStore(AbstractArrayStore):
    """Counts puts and gets, and holds nothing, as a store without threads on a drive.

    Attributes:
        name: of the store that it stands for.
        written_nbytes, read_nbytes: so far, encoded.
        depends_on_values: whether its codec makes arrays smaller by an unknown amount.
    """

    def __init__(self, name: str, codec: Any = None) -> None:
        self.name = name
        self.codec = None if codec is None or codec.name == "none" else codec
        self.written_nbytes = self.read_nbytes = 0
        self.depends_on_values = self.codec is not None and not has_known_sizes(self.codec)
        self._serial = 0

    def new_handle(self, array: Array, attributes: Mapping[str, object] | None) -> Handle:
        """Return the handle of an array that is put."""
        entry = Entry(self._serial, array, dict(attributes or {}))
        self._serial += 1
        entry.encoded_nbytes = encoded_nbytes(self.codec, array.shape, array.dtype)
        entry.stored_nbytes = entry.payload_nbytes
        self.written_nbytes += entry.payload_nbytes
        return Handle(self, entry)

    def put(self, array: Array, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Count the write."""
        handle = self.new_handle(array, attributes)
        handle._entry.captured = True
        return handle

    def get(self, handle: Handle, out: Array | None = None) -> Array:
        """Return `out`, or new memory."""
        self.read_nbytes += handle._entry.payload_nbytes
        return memory.empty(handle.shape, handle.dtype) if out is None else out

    def prefetch(self, handle: Handle, out: Array | None = None) -> None:
        """Do nothing."""

    def cancel_prefetch(self, handle: Handle) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def stats(self) -> StoreStats:
        """Return no figures but bytes in flight."""
        return StoreStats()

    @property
    def reads_ahead(self) -> bool:
        """Whether it has threads."""
        return False

    @property
    def lossless(self) -> bool:
        """Whether the codec is lossless."""
        return self.codec is None or bool(self.codec.lossless)

    def _check_open(self) -> None:
        pass

    def _wait_captured(self, entry: Entry) -> None:
        pass

    def __repr__(self) -> str:
        return f"<{self.name}, counted>"


class CountingPool(CountingStore):
    """Keeps a copy in memory, encoded, as a PoolStore does."""

    def put(self, array: Array, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Allocate the copy."""
        handle = self.new_handle(array, attributes)
        entry = handle._entry
        if entry.encoded_nbytes is None:
            handle._source = memory.empty(entry.shape, entry.dtype)
        else:
            handle._source = memory.empty((entry.encoded_nbytes,), np.uint8)
        mark(handle._source, SAVED)
        entry.captured = True
        return handle
