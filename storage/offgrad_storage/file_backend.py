"""FileBackend: what backends that keep arrays in extents of files have in common."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from .array_file import ArrayFile
from .backend import Backend
from .buffers import round_up
from .entry import Entry
from .errors import StoreFullError

Array = NDArray[Any]


class FileBackend(Backend):
    """The place of an entry is a file and its extent there: start and length, whole pages.

    Attributes:
        files: all of them, with the bytes of the extents in use.
    """

    def __init__(self, name: str, quota: int | None) -> None:
        super().__init__(name, quota)
        self.files: dict[ArrayFile, int] = {}

    def allocate(self, entry: Entry, nbytes: int, files: list[ArrayFile]) -> int:
        """Give ``entry`` an extent in the first of ``files`` that can; return its length.

        Raises:
            QuotaExceededError: all files together would pass the quota.
            StoreFullError: no file system has the room.
        """
        length = round_up(nbytes)
        full: StoreFullError | None = None
        for file in files:
            try:
                start = file.allocate(entry, length, self._limit(file))
            except StoreFullError as error:
                full = error
                continue
            if start is not None:
                entry.place = (file, start, length)
                self.files[file] += length
                return length
        raise full or self.over_quota(entry, length)

    def settle(self, entry: Entry, stored_nbytes: int) -> None:
        """Give back the end of the extent."""
        file, start, length = entry.place
        entry.place = (file, start, stored_nbytes)
        self._give_back(file, start + stored_nbytes, length - stored_nbytes)

    def write(self, entry: Entry, array: Array) -> int:
        """Write ``array`` into the extent; return the bytes of its pages."""
        file, start, _ = entry.place
        file.write(entry, array, start)
        return round_up(array.nbytes)

    def read(self, entry: Entry, out: Array) -> None:
        """Fill ``out`` from the extent."""
        file, start, _ = entry.place
        file.read(entry, out, start)

    def free(self, entry: Entry) -> None:
        """Give the extent back."""
        self._give_back(*entry.place)
        entry.place = None

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()

    def _limit(self, file: ArrayFile) -> int | None:
        """Where ``file`` must end lest all of them take more than the quota."""
        if self.quota is None:
            return None
        return self.quota - sum(each.end for each in self.files if each is not file)

    def _give_back(self, file: ArrayFile, start: int, length: int) -> None:
        file.free(start, length)
        self.files[file] -= length
