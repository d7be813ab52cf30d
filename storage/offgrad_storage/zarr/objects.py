"""ZarrStore without a local folder: zarr writes the data, one Zarr array for each array."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.backend import Backend
from offgrad_storage.entry import (
    Entry,
    bytes_of,
    checksum,
    verify,
)
from offgrad_storage.errors import CorruptionError, MissingDataError
from offgrad_storage.memory.buffer_pool import BufferPool
from offgrad_storage.zarr.codec import ZarrCodec
from offgrad_storage.zarr.format import compressor, layout
from offgrad_storage.zarr.shards import as_json

_OVERHEAD = 4096  # bytes of metadata, and of incompressible data

Array = NDArray[Any]


def is_url_or_zarr_store(directory: Any) -> bool:
    """Whether ``directory`` is a URL or a zarr store, and not a local folder."""
    if isinstance(directory, str):
        return "://" in directory
    if directory is None or isinstance(directory, os.PathLike) or "zarr" not in sys.modules:
        return False
    from zarr.abc.store import Store

    return isinstance(directory, Store)


class ObjectBackend(Backend):
    """Keeps arrays in a new group of a zarr store.

    The place of an entry is the name of its array, and None until its write begins.

    zarr's threads release an array some time after its write, some zarr stores never. They only get
    copies in buffers of this backend, so memory of users is not held.
    """

    def __init__(self, where: Any, codec: ZarrCodec, keep: bool, quota: int | None) -> None:
        # The first use of a codec imports it in a thread; a process forked at that moment would
        # inherit the import lock, and wait for it for ever.
        import multiprocessing.synchronize  # noqa: F401

        import zarr

        super().__init__(f"ZarrStore in {where}", quota)
        if not codec.lossless:
            raise ValueError(f"codec {codec.name!r} needs a local folder, got {where}")
        if not keep and not getattr(where, "supports_deletes", True):
            raise ValueError(f"{where} does not support deletes: pass keep=True")
        self.persistent = keep
        self.needs_executors = True
        self._codec = codec
        self._buffers = BufferPool()
        self._made_root = False
        try:
            self._root = zarr.open_group(where, mode="r+", zarr_format=3)
        except FileNotFoundError:
            self._root = zarr.open_group(where, mode="a", zarr_format=3)
            self._made_root = self._root.store.supports_deletes
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self._name = f"offgrad-{stamp}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            self.path = self._root.create_group(self._name)
        except BaseException:
            self._remove_root()
            raise

    def reserve(self, entry: Entry) -> int:
        """Reserve the bytes of the array and its metadata."""
        nbytes = entry.nbytes + _OVERHEAD
        if self.quota is not None and self.used_nbytes + nbytes > self.quota:
            raise self.over_quota(entry, nbytes)
        return nbytes

    def write(self, entry: Entry, array: Array) -> int:
        """Have zarr write the array, and encode it."""
        from zarr.core.sync import sync

        copied = self._buffers.empty(array.shape, array.dtype)
        np.copyto(copied, array)
        entry.checksum = checksum(copied)
        stored_as = layout(entry.shape, entry.dtype)
        attributes = as_json(entry.attributes) | {"offgrad_xxh3_64": f"{entry.checksum:016x}"}
        if stored_as.dtype != entry.dtype:
            attributes["offgrad_dtype"] = str(entry.dtype)
        entry.place = f"{entry.serial:08d}"
        stored = self.path.create_array(
            entry.place,
            shape=stored_as.shape,
            dtype=stored_as.dtype.newbyteorder("="),
            chunks=stored_as.chunk,
            compressors=compressor(self._codec.kind(entry.shape, entry.dtype)),
            attributes=attributes,
            # The default compares each chunk with the fill value, which is slower than writing it.
            config={"write_empty_chunks": True},
        )
        if copied.size:
            stored[...] = _as_stored(copied)
        stored_nbytes = int(stored.nbytes_stored())
        metadata = stored.store_path / "zarr.json"
        entry.encoded_nbytes = stored_nbytes - sync(metadata.store.getsize(metadata.path))
        return stored_nbytes

    def read(self, entry: Entry, out: Array) -> None:
        """Have zarr read the array."""
        from zarr.core.buffer.cpu import NDBuffer

        if not out.size:
            return
        read = self._buffers.empty(out.shape, out.dtype)
        try:
            stored = self.path[entry.place]
            stored.get_basic_selection(Ellipsis, out=NDBuffer.from_numpy_array(_as_stored(read)))
        except (OSError, MemoryError):
            raise
        except KeyError:
            raise MissingDataError(
                f"{self._name}/{entry.place} is missing",
                store=self.name,
                handle=str(entry),
                fix="Keep the group while the store is open",
            ) from None
        except Exception as error:
            raise CorruptionError(
                f"the chunks cannot be decoded ({type(error).__name__}: {error})",
                store=self.name,
                handle=str(entry),
                fix="Another program wrote to the group, or the drive is faulty",
            ) from error
        verify(checksum(read), entry, self.name)
        np.copyto(out, read)

    def free(self, entry: Entry) -> Callable[[], object] | None:
        """Return a job that deletes the array, if its write has begun."""
        return None if entry.place is None else functools.partial(self._delete, entry.place)

    def close(self) -> None:
        """Delete the group, unless it is kept, and an empty root group that this backend made."""
        if not self.persistent:
            with contextlib.suppress(KeyError, FileNotFoundError):
                del self._root[self._name]
            self._remove_root()

    def _remove_root(self) -> None:
        from zarr.core.sync import sync

        made, self._made_root = self._made_root, False
        if made:
            with contextlib.suppress(FileNotFoundError):
                sync(_delete_empty(self._root.store_path))

    def _delete(self, name: str) -> None:
        with contextlib.suppress(KeyError, FileNotFoundError):
            del self.path[name]


async def _delete_empty(group: Any) -> None:
    """Delete ``group``, a StorePath, if the group is empty."""
    names = [name async for name in group.store.list_dir(group.path)]
    if names == ["zarr.json"]:
        await (group / "zarr.json").delete()


def _as_stored(array: Array) -> Array:
    """A C-contiguous array as Zarr stores it."""
    stored_as = layout(array.shape, array.dtype)
    native = stored_as.dtype.newbyteorder("=")
    return bytes_of(array).view(native).reshape(stored_as.shape)
