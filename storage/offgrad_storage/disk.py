"""DiskStore: arrays in spill files, written from and read into their own memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from offgrad_storage.backend_store import BackendStore
from offgrad_storage.base import Allocate
from offgrad_storage.checks import check_count
from offgrad_storage.codecs import Codec
from offgrad_storage.errors import as_store_error
from offgrad_storage.files.array_file import ArrayFile
from offgrad_storage.files.direct_file import DirectFile
from offgrad_storage.files.file_backend import FileBackend
from offgrad_storage.files.spill_directory import PathLike, spill_directory


class DiskStore(BackendStore):
    """Keeps arrays in a file without a name, past the page cache where the file system allows it.

    Arrays from a BufferPool are written from, and read into, their own memory; others are copied
    through a buffer of a few MB. Small ones are gathered.

    Args:
        directory: where the file is; None for ``spill_directory()``. Several directories, on
            different drives, have a file each, and each array goes to that with the least bytes.
        quota: most bytes of all files; None for no bound. It counts what they are made of: pages of
            4 KiB, and packs of gathered arrays, which are free when their last array is.
        inflight_nbytes: most bytes of arrays whose write is pending; ``put`` waits when spent.
        threads: most I/O threads, for each directory. With 0, ``put`` encodes and writes before it
            returns, ``prefetch`` does nothing, and nothing is gathered.
        codec: what arrays are encoded with (see ``codec``), in the I/O threads.
        seed: of codecs that round at random: the same array and seed give the same bits.
        pack_below_nbytes: arrays of fewer bytes are gathered into writes of a few MB.
        direct: go past the page cache, by O_DIRECT where the file system takes it; False to go
            through it, as other programs do, and have it dropped behind.
        allocate: where arrays that are read back come from; None for a BufferPool of its own.

    Attributes:
        directories: where the files are, as a list of absolute paths.

    Raises:
        StoreError: a directory cannot be made, or is not to be written to.
        StoreFullError: there is no room for as much as a new file.
        ValueError: no directory, an argument below 0, or a codec that does not exist.
        ImportError: of a codec that needs numcodecs, which is not installed.
    """

    def __init__(
        self,
        directory: PathLike | Sequence[PathLike] | None = None,
        *,
        quota: int | None = None,
        inflight_nbytes: int = 128 << 20,
        threads: int = 3,
        codec: str | Codec = "none",
        seed: int = 0,
        pack_below_nbytes: int = 1 << 20,
        direct: bool = True,
        allocate: Allocate | None = None,
    ) -> None:
        check_count("threads", threads)
        check_count("pack_below_nbytes", pack_below_nbytes)
        if directory is None or isinstance(directory, str | os.PathLike):
            chosen: Sequence[PathLike | None] = [directory]
        else:
            chosen = directory
        try:
            self.directories = [spill_directory(each) for each in chosen]
            backend = _DiskBackend(self.directories, quota, direct)
        except OSError as error:
            failure = as_store_error(
                error, "opening the spill file", store="DiskStore", opening=True
            )
            raise failure from error
        backend.packs_below = pack_below_nbytes
        super().__init__(
            backend,
            threads=threads * len(self.directories),
            inflight_nbytes=inflight_nbytes,
            codec=codec,
            seed=seed,
            allocate=allocate,
        )


class _DiskBackend(FileBackend):
    def __init__(self, directories: Sequence[Path], quota: int | None, direct: bool) -> None:
        if not directories:
            raise ValueError("a DiskStore needs a directory at least, got an empty sequence")
        super().__init__(f"DiskStore in {', '.join(map(str, directories))}", quota)
        try:
            for each in directories:
                self.files[ArrayFile(DirectFile.unnamed(each, direct), self.name, self.buffers)] = 0
        except BaseException:
            self.close()
            raise
