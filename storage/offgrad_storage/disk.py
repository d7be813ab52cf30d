"""DiskStore: arrays in spill files, written from and read into their own memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .array_file import ArrayFile
from .backend import Backend
from .base import Allocate
from .buffers import round_up
from .codecs import Codec
from .direct_file import DirectFile
from .directory import PathLike, spill_directory
from .entry import Entry
from .errors import StoreFullError, as_store_error
from .store import BackendStore

Array = NDArray[Any]


class DiskStore(BackendStore):
    """Keeps arrays in a file without a name, past the page cache where the file system allows it.

    Arrays from a BufferPool are written from, and read into, their own memory; others are copied
    through a buffer of a few MB. Small ones are gathered.

    Args:
        directory: where the file is; None for ``spill_directory()``. Several directories, on
            different drives, have a file each, and each array goes to that with the least bytes.
        quota: most bytes of all files; None for no bound.
        inflight_nbytes: most bytes of arrays whose write is pending; ``put`` waits when spent.
        threads: most I/O threads, for each directory.
        codec: what arrays are encoded with (see ``codec``), in the I/O threads.
        gather_nbytes: arrays of fewer bytes are gathered into writes of a few MB.
        direct: False keeps from trying O_DIRECT.
        allocate: where arrays that are read back come from; None for a BufferPool of its own.
    """

    def __init__(
        self,
        directory: PathLike | Sequence[PathLike] | None = None,
        *,
        quota: int | None = None,
        inflight_nbytes: int = 64 << 20,
        threads: int = 2,
        codec: str | Codec = "none",
        gather_nbytes: int = 1 << 20,
        direct: bool = True,
        allocate: Allocate | None = None,
    ) -> None:
        if directory is None or isinstance(directory, str | os.PathLike):
            chosen: Sequence[PathLike | None] = [directory]
        else:
            chosen = directory
        try:
            self.directories = [spill_directory(each) for each in chosen]
            backend = _DiskBackend(self.directories, quota, direct)
        except OSError as error:
            raise as_store_error(error, "opening the spill file", store="DiskStore") from error
        backend.gathers_below = gather_nbytes
        super().__init__(
            backend,
            threads=threads * len(self.directories),
            inflight_nbytes=inflight_nbytes,
            codec=codec,
            allocate=allocate,
        )


class _DiskBackend(Backend):
    """The place of an entry is a file and its extent there: start and length, whole pages."""

    def __init__(self, directories: Sequence[Path], quota: int | None, direct: bool) -> None:
        if not directories:
            raise ValueError("a DiskStore needs a directory at least, got an empty sequence")
        super().__init__(f"DiskStore in {', '.join(map(str, directories))}", quota)
        self.files: list[ArrayFile] = []
        self._used: dict[ArrayFile, int] = {}
        try:
            for each in directories:
                self.files.append(ArrayFile(DirectFile.unnamed(each, direct), self.name))
        except BaseException:
            self.close()
            raise
        self._used = dict.fromkeys(self.files, 0)

    def reserve(self, entry: Entry) -> int:
        length = round_up(entry.payload_nbytes)
        ends = sum(file.end for file in self.files)
        full: StoreFullError | None = None
        for file in sorted(self.files, key=lambda file: self._used[file]):
            limit = None if self.quota is None else self.quota - ends + file.end
            try:
                start = file.allocate(entry, length, limit)
            except StoreFullError as error:
                full = error
                continue
            if start is not None:
                entry.place = (file, start, length)
                self._used[file] += length
                return length
        raise full or self.over_quota(entry, length)

    def settle(self, entry: Entry, stored_nbytes: int) -> None:
        file, start, length = entry.place
        entry.place = (file, start, stored_nbytes)
        self._give_back(file, start + stored_nbytes, length - stored_nbytes)

    def write(self, entry: Entry, array: Array) -> int:
        file, start, _ = entry.place
        file.write(entry, array, start)
        return round_up(array.nbytes)

    def read(self, entry: Entry, out: Array) -> None:
        file, start, _ = entry.place
        file.read(entry, out, start)

    def free(self, entry: Entry) -> None:
        self._give_back(*entry.place)
        entry.place = None

    def close(self) -> None:
        for file in self.files:
            file.close()

    def _give_back(self, file: ArrayFile, start: int, length: int) -> None:
        file.free(start, length)
        self._used[file] -= length
