"""ArrayFile: arrays in reusable extents of one file."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from offgrad_storage.entry import (
    Entry,
    bytes_of,
    checksum,
    verify,
)
from offgrad_storage.errors import MissingDataError, StoreFullError
from offgrad_storage.files.direct_file import DirectFile
from offgrad_storage.memory.buffer_pool import PAGE, BufferPool, round_up
from offgrad_storage.memory.extents import Extents

_CHUNK = 4 << 20

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


class ArrayFile:
    """Writes arrays from, and reads them into, their own memory if it is pooled.

    Others are copied through a buffer of a few MB. ``allocate`` and ``free`` are for one thread at
    a time, ``write`` and ``read`` for any number.

    Args:
        file: takes the bytes; this object owns it from now on.
        store: name of the store, in errors.
        buffers: allocates the buffers for copies.
        first: unused bytes at the start of the file.
    """

    def __init__(self, file: DirectFile, store: str, buffers: BufferPool, first: int = 0) -> None:
        self.file = file
        self._store = store
        self._buffers = buffers
        self._released: set[tuple[int, int]] = set()  # free extents without blocks
        self._extents = Extents(first)

    @property
    def end(self) -> int:
        """Bytes from the start of the file to the end of the last extent ever used."""
        return self._extents.end

    def allocate(self, entry: Entry, length: int, limit: int | None = None) -> int | None:
        """The start of an extent of ``length`` bytes, whole pages, for ``entry``.

        None if the file would grow past ``limit`` bytes.

        Raises:
            StoreFullError: the file system has no room for the file to grow.
        """
        if not length:
            return 0
        end = self._extents.end_with(length)
        if limit is not None and end > limit:
            return None
        missing = 0
        if end > self._extents.end:  # free extents could be released
            missing = self._missing_nbytes(end - self._extents.free_nbytes)
        if missing:
            raise StoreFullError(
                f"{self.file.directory} has {missing} bytes too few for the array",
                store=self._store,
                handle=str(entry),
                fix="Free space there, or choose another directory (OFFGRAD_SPILL_DIR)",
            )
        return self._extents.allocate(length)

    def _missing_nbytes(self, size: int) -> int:
        """Bytes that the file system lacks for the file to take ``size``; 0 if it has room."""
        descriptor = self.file.descriptor
        if hasattr(os, "fstatvfs"):
            system = os.fstatvfs(descriptor)
            available_nbytes = system.f_bavail * system.f_frsize
            taken_nbytes = os.fstat(descriptor).st_blocks * 512
        else:
            available_nbytes = shutil.disk_usage(self.file.directory).free
            taken_nbytes = os.fstat(descriptor).st_size
        return max(0, size - taken_nbytes - available_nbytes)

    def free(self, start: int, nbytes: int) -> None:
        """Free an extent, or the end of one: whole pages."""
        if nbytes:
            self._extents.free(start, round_up(nbytes))

    def release_free(self) -> bool:
        """Return the blocks of free extents to the file system; False if it refuses any.

        For one thread at a time, as ``allocate``.
        """
        ranges = set(self._extents.free_ranges())
        self._released &= ranges
        self._released |= {each for each in ranges - self._released if self.file.punch(*each)}
        return self._released == ranges

    def write(self, entry: Entry, array: Array, start: int) -> None:
        """Write ``array`` at ``start``; set the checksum of ``entry`` unless it is None."""
        data = self._uncopied(array)
        if data is None:
            entry.checksum = self._write_copied(array, start)
            return
        if entry.checksum is not None:
            entry.checksum = checksum(array)
        self.file.write_at(data, start)

    def read(self, entry: Entry, out: Array, start: int) -> None:
        """Fill the C-contiguous ``out`` from ``start``, and verify the checksum of ``entry``."""
        data = self._uncopied(out)
        try:
            if data is None:
                found: int | None = self._read_copied(bytes_of(out), start)
            else:
                self.file.read_at(data, start)
                found = None if entry.checksum is None else checksum(out)
        except MissingDataError as error:
            raise MissingDataError(
                error.message, store=self._store, handle=str(entry), fix=error.fix
            ) from None
        verify(found, entry, self._store)

    def write_run(
        self, entries: Sequence[Entry], arrays: Sequence[Array], starts: Sequence[int]
    ) -> None:
        """Write several arrays, in one call if their bytes are adjacent."""
        run = self._run(arrays, starts)
        if run is None:
            for each in zip(entries, arrays, starts, strict=True):
                self.write(*each)
            return
        for entry, array in zip(entries, arrays, strict=True):
            if entry.checksum is not None:
                entry.checksum = checksum(array)
        self.file.write_run(run, starts[0])

    def read_run(
        self, entries: Sequence[Entry], outs: Sequence[Array], starts: Sequence[int]
    ) -> None:
        """Fill several arrays, in one call if their bytes are adjacent."""
        run = self._run(outs, starts)
        if run is None:
            for each in zip(entries, outs, starts, strict=True):
                self.read(*each)
            return
        self.file.read_run(run, starts[0])
        for entry, out in zip(entries, outs, strict=True):
            verify(None if entry.checksum is None else checksum(out), entry, self._store)

    def read_part(self, entry: Entry, out: Bytes, start: int, nbytes: int) -> None:
        """Fill whole pages from ``start``; only the first ``nbytes`` must exist in the file."""
        try:
            self.file.read_at(out, start, nbytes)
        except MissingDataError as error:
            raise MissingDataError(
                error.message, store=self._store, handle=str(entry), fix=error.fix
            ) from None

    def close(self) -> None:
        """Close the file; may be called twice."""
        self.file.close()

    def _uncopied(self, array: Array) -> Bytes | None:
        """The bytes of ``array`` as the file takes them without a copy; None if it must copy."""
        if not array.flags.c_contiguous:
            return None
        if not self.file.direct or not array.nbytes:
            return bytes_of(array)
        return BufferPool.padded(array)

    def _run(self, arrays: Sequence[Array], starts: Sequence[int]) -> list[Bytes] | None:
        """The bytes of ``arrays`` as the file takes them, if without copies and gaps."""
        run: list[Bytes] = []
        end = starts[0]
        for array, start in zip(arrays, starts, strict=True):
            data = self._uncopied(array)
            if data is None or start != end:
                return None
            run.append(data)
            end += data.size
        return run

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
