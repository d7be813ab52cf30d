"""Zarr where there is no local folder: zarr's own way, one Zarr array for each array."""

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

_OVERHEAD = 4096  # of the metadata and of a codec that finds nothing to save

Array = NDArray[Any]


def is_remote(directory: Any) -> bool:
    """Whether ``directory`` is a URL or a store of zarr's, and not a local folder."""
    if isinstance(directory, str):
        return "://" in directory
    if directory is None or isinstance(directory, os.PathLike) or "zarr" not in sys.modules:
        return False
    from zarr.abc.store import Store

    return isinstance(directory, Store)


class ObjectBackend(Backend):
    """Keeps arrays in a new group of a store of zarr's.

    The place of an entry is the name of its array; it has none until its write begins.

    zarr's own threads let go of an array a little after they are done with it, some of its stores
    never. So that this delays nobody's memory, they only ever see buffers of this backend.
    """

    def __init__(self, where: Any, codec: ZarrCodec, keep: bool, quota: int | None) -> None:
        # A codec's first use imports it in a thread; a process forked just then would inherit the
        # import lock, and wait for it for ever.
        import multiprocessing.synchronize  # noqa: F401

        import zarr

        super().__init__(f"ZarrStore in {where}", quota)
        if not codec.lossless:
            raise ValueError(f"codec {codec.name!r} needs a local folder, got {where}")
        if not keep and not getattr(where, "supports_deletes", True):
            raise ValueError(f"{where} cannot delete what is stored there: pass keep=True")
        self.persistent = keep
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
        """The bytes of the array as it is, and some for the metadata."""
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
            # By default every chunk is compared with the fill value: slower than writing it.
            config={"write_empty_chunks": True},
        )
        if copied.size:
            stored[...] = _viewed(copied)
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
            stored.get_basic_selection(Ellipsis, out=NDBuffer.from_numpy_array(_viewed(read)))
        except (OSError, MemoryError):
            raise
        except KeyError:
            raise MissingDataError(
                f"{self._name}/{entry.place} is gone",
                store=self.name,
                handle=str(entry),
                fix="Keep the group while the store is open",
            ) from None
        except Exception as error:
            raise CorruptionError(
                f"the chunks cannot be decoded ({type(error).__name__}: {error})",
                store=self.name,
                handle=str(entry),
                fix="Something else wrote to the group, or the drive is faulty",
            ) from error
        verify(checksum(read), entry, self.name)
        np.copyto(out, read)

    def free(self, entry: Entry) -> Callable[[], object] | None:
        """Return what deletes the array, if it was ever begun."""
        return None if entry.place is None else functools.partial(self._delete, entry.place)

    def close(self) -> None:
        """Delete the group, unless it is kept, and the root group if it was made for it alone."""
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
    """Delete a group in which there is nothing; ``group`` is its StorePath."""
    names = [name async for name in group.store.list_dir(group.path)]
    if names == ["zarr.json"]:
        await (group / "zarr.json").delete()


def _viewed(array: Array) -> Array:
    """A C-contiguous array as Zarr stores it."""
    stored_as = layout(array.shape, array.dtype)
    native = stored_as.dtype.newbyteorder("=")
    return bytes_of(array).view(native).reshape(stored_as.shape)
