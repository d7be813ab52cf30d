"""DiskStore: arrays in one spill file, written from and read into their own memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from .backend import Backend
from .base import Allocate
from .buffers import PAGE, BufferPool, round_up
from .directory import PathLike, spill_directory
from .entry import Entry, bytes_of, checksum, verify
from .errors import MissingDataError, as_store_error
from .extents import Extents
from .spill_file import SpillFile
from .store import BackendStore

_CHUNK = 4 << 20

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


class DiskStore(BackendStore):
    """Keeps arrays in one file without a name, past the page cache where the file system allows it.

    Arrays from a BufferPool are written from, and read into, their own memory; others are copied
    through a buffer of a few MB.

    Args:
        directory: where the file is; None for ``spill_directory()``.
        quota: most bytes of the file; None for no bound.
        inflight_nbytes: most bytes of arrays whose write is pending; ``put`` waits when spent.
        threads: most I/O threads.
        direct: False keeps from trying O_DIRECT.
        allocate: where arrays that are read back come from; None for a BufferPool of its own.
    """

    def __init__(
        self,
        directory: PathLike | None = None,
        *,
        quota: int | None = None,
        inflight_nbytes: int = 64 << 20,
        threads: int = 2,
        direct: bool = True,
        allocate: Allocate | None = None,
    ) -> None:
        try:
            self.directory: Path = spill_directory(directory)
            backend = _DiskBackend(self.directory, quota, direct)
        except OSError as error:
            raise as_store_error(error, "opening the spill file", store="DiskStore") from error
        super().__init__(
            backend, threads=threads, inflight_nbytes=inflight_nbytes, allocate=allocate
        )


class _DiskBackend(Backend):
    """The place of an entry is its range in the file: start and length in bytes, whole pages."""

    def __init__(self, directory: Path, quota: int | None, direct: bool) -> None:
        super().__init__(f"DiskStore in {directory}", quota)
        self._buffers = BufferPool()
        self._extents = Extents()
        self.file = SpillFile(directory, direct, self._buffers)

    def reserve(self, entry: Entry) -> int:
        length = round_up(entry.nbytes)
        start = self._extents.allocate(length, self.quota) if length else 0
        if start is None:
            raise self.over_quota(entry, length)
        entry.place = (start, length)
        return length

    def write(self, entry: Entry, array: Array) -> int:
        start, length = entry.place
        ready = self._ready(array)
        if ready is not None:
            entry.checksum = checksum(array)
            self.file.write_at(ready, start)
        else:
            entry.checksum = self._write_copied(array, start)
        return int(length)

    def read(self, entry: Entry, out: Array) -> None:
        start, _ = entry.place
        ready = self._ready(out)
        try:
            if ready is not None:
                self.file.read_at(ready, start)
                found = checksum(out)
            else:
                found = self._read_copied(bytes_of(out), start)
        except MissingDataError as error:
            raise MissingDataError(
                str(error), store=self.name, handle=str(entry), fix=error.fix
            ) from None
        verify(found, entry, self.name)

    def free(self, entry: Entry) -> None:
        start, length = entry.place
        entry.place = None
        if length:
            self._extents.free(start, length)

    def close(self) -> None:
        self.file.close()

    def _ready(self, array: Array) -> Bytes | None:
        """The bytes of ``array`` as the file takes them without a copy, if it does."""
        if not array.flags.c_contiguous:
            return None
        if not self.file.direct or not array.nbytes:
            return bytes_of(array)
        return BufferPool.padded(array)

    def _write_copied(self, array: Array, offset: int) -> int:
        digest = xxhash.xxh3_64()
        size = max(min(_CHUNK, array.nbytes), array.itemsize)
        buffer: Bytes = self._buffers.empty(round_up(size) + PAGE, np.uint8)
        filled = 0
        for block in _blocks(bytes_of(array) if array.flags.c_contiguous else array, _CHUNK):
            np.copyto(np.ndarray(block.shape, block.dtype, buffer, filled), block)
            digest.update(buffer[filled : filled + block.nbytes].data)
            filled += block.nbytes
            whole = filled - filled % PAGE
            self.file.write_at(buffer[:whole], offset)
            buffer[: filled - whole] = buffer[whole:filled]
            offset, filled = offset + whole, filled - whole
        if filled:
            self.file.write_at(buffer[:PAGE], offset)
        return digest.intdigest()

    def _read_copied(self, out: Bytes, offset: int) -> int:
        digest = xxhash.xxh3_64()
        buffer: Bytes = self._buffers.empty(round_up(min(_CHUNK, out.size)), np.uint8)
        for start in range(0, out.size, _CHUNK):
            part = out[start : start + _CHUNK]
            self.file.read_at(buffer[: round_up(part.size)], offset + start)
            np.copyto(part, buffer[: part.size])
            digest.update(part.data)
        return digest.intdigest()


def _blocks(array: Array, limit: int) -> Iterator[Array]:
    """``array`` in C order, in views of at most ``limit`` bytes, or of one element."""
    if array.nbytes <= limit or array.ndim == 0:
        yield array
        return
    row_nbytes = math.prod(array.shape[1:]) * array.itemsize
    if row_nbytes > limit:
        for index in range(len(array)):
            yield from _blocks(array[index, ...], limit)
        return
    rows = limit // row_nbytes
    for start in range(0, len(array), rows):
        yield array[start : start + rows]
