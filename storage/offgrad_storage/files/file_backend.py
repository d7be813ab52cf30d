"""FileBackend: base of the backends that keep arrays in extents of files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from offgrad_storage.backend import Backend
from offgrad_storage.entry import Entry
from offgrad_storage.errors import QuotaExceededError, StoreFullError
from offgrad_storage.files.array_file import ArrayFile
from offgrad_storage.memory.buffer_pool import PAGE, BufferPool, round_up

Array = NDArray[Any]


class FileBackend(Backend):
    """The place of an entry is a file and its extent there: start and length, whole pages.

    Attributes:
        files: all of them, with the bytes of the extents in use.
    """

    def __init__(self, name: str, quota: int | None) -> None:
        super().__init__(name, quota)
        self.files: dict[ArrayFile, int] = {}
        self.buffers = BufferPool()

    def reserve(self, entry: Entry) -> int:
        """Give ``entry`` an extent in the file with the least bytes in use; return its length."""
        emptiest_first = sorted(self.files, key=self.files.__getitem__)
        return self.allocate(entry, entry.payload_nbytes, emptiest_first)

    def allocate(self, entry: Entry, nbytes: int, files: list[ArrayFile]) -> int:
        """Give ``entry`` an extent in the first of ``files`` with room; return its length.

        Raises:
            QuotaExceededError: all files together would exceed the quota.
            StoreFullError: no file system has room.
        """
        length = -(-nbytes // PAGE) * PAGE
        if self.quota is not None and sum([*self.files.values()]) + length > self.quota:
            raise self.over_quota(entry, length)
        try:
            return self._allocate(entry, length, files, within_quota=True)
        # Free extents elsewhere in the files, or too small ones, still take space on the disk.
        except StoreFullError:
            self.release_free()
            return self._allocate(entry, length, files, within_quota=True)
        except QuotaExceededError:
            if not all(self.release_each()):
                raise
            return self._allocate(entry, length, files, within_quota=False)

    def shrink(self, entry: Entry, stored_nbytes: int) -> None:
        """Free the end of the extent."""
        file, start, length = entry.place
        entry.place = (file, start, stored_nbytes)
        self._free_range(file, start + stored_nbytes, length - stored_nbytes)

    def extent_nbytes(self, entry: Entry, array: Array) -> int:
        """Bytes of an extent for ``array``, the stored form of ``entry``."""
        return round_up(array.nbytes)

    def write(self, entry: Entry, array: Array) -> int:
        """Write ``array`` into the extent; return the bytes it takes."""
        file, start, _ = entry.place
        file.write(entry, array, start)
        return self.extent_nbytes(entry, array)

    def is_adjacent(self, entry: Entry, following: Entry) -> bool:
        """Whether one extent starts where the other ends."""
        file, start, length = entry.place
        other, begin, _ = following.place
        return file is other and start + length == begin

    def write_run(self, entries: Sequence[Entry], arrays: Sequence[Array]) -> list[int]:
        """Write arrays into adjacent extents; return the bytes of each."""
        file: ArrayFile = entries[0].place[0]
        file.write_run(entries, arrays, [entry.place[1] for entry in entries])
        return [self.extent_nbytes(*each) for each in zip(entries, arrays, strict=True)]

    def read_run(self, entries: Sequence[Entry], outs: Sequence[Array]) -> None:
        """Fill arrays from adjacent extents."""
        file: ArrayFile = entries[0].place[0]
        file.read_run(entries, outs, [entry.place[1] for entry in entries])

    def read(self, entry: Entry, out: Array) -> None:
        """Fill ``out`` from the extent."""
        file, start, _ = entry.place
        file.read(entry, out, start)

    def read_part(self, pack: Entry, out: Array, offset: int, nbytes: int) -> None:
        """Fill the pages of ``out`` that hold ``nbytes`` from ``offset`` on."""
        file, start, _ = pack.place
        begin, end = offset - offset % PAGE, offset + nbytes
        file.read_part(pack, out[begin : round_up(end)], start + begin, end - begin)

    def release_free(self) -> bool:
        """Return the blocks of free extents to the file systems; False if all refuse."""
        return any(self.release_each())

    def release_each(self) -> list[bool]:
        """As ``release_free``; for each file, whether its file system has taken all blocks."""
        return [file.release_free() for file in [*self.files]]

    def free(self, entry: Entry) -> None:
        """Free the extent."""
        self._free_range(*entry.place)
        entry.place = None

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()

    def _allocate(
        self, entry: Entry, length: int, files: list[ArrayFile], within_quota: bool
    ) -> int:
        full: StoreFullError | None = None
        for file in files:
            limit = None
            if within_quota and self.quota is not None:
                limit = self.quota - sum(each.end for each in [*self.files] if each is not file)
            try:
                start = file.allocate(entry, length, limit)
            except StoreFullError as error:
                full = error
                continue
            if start is not None:
                entry.place = (file, start, length)
                self.files[file] += length
                return length
        try:
            raise full or self.over_quota(entry, length)
        finally:
            full = None  # its traceback holds this frame

    def _free_range(self, file: ArrayFile, start: int, length: int) -> None:
        if length:
            file.free(start, length)
            self.files[file] -= length
