"""DiskStore: arrays in spill files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from offgrad_storage._checks import check_count
from offgrad_storage.backend_store import BackendStore
from offgrad_storage.base import Allocate
from offgrad_storage.codecs import Codec
from offgrad_storage.errors import as_store_error
from offgrad_storage.files.array_file import ArrayFile
from offgrad_storage.files.direct_file import DirectFile
from offgrad_storage.files.file_backend import FileBackend
from offgrad_storage.files.spill_directory import PathLike, spill_directory


class DiskStore(BackendStore):
    """Keeps arrays in an unnamed file, bypassing the page cache where the file system allows it.

    >>> with DiskStore() as store:
    ...     handle = store.put([0, 1, 2, 3])  # written in the background
    ...     handle.get()
    array([0, 1, 2, 3])

    Arrays from a BufferPool are written from, and read into, their own memory; others are copied
    through a buffer of a few MB. Small arrays are packed.

    Args:
        directory: of the file; None for ``spill_directory()``. For a sequence of directories, on
            different drives, there is a file in each; an array goes to the file with the fewest
            bytes.
        quota: bound of the bytes of all files; None for none. It counts whole pages of 4 KiB, and
            whole packs, which are freed with their last array.
        inflight_nbytes: bound of the bytes of arrays with a pending write; ``put`` waits when it is
            reached.
        threads: bound of the I/O threads of each directory. With 0, ``put`` encodes and writes
            before it returns, ``prefetch`` does nothing, and there are no packs.
        codec: encodes arrays (see ``codec``), in the I/O threads.
        seed: of codecs that round at random: bits depend on the array and the seed alone.
        pack_below_nbytes: arrays of fewer bytes are packed into writes of a few MB; 0 for none.
        direct: bypass the page cache, by O_DIRECT where the file system supports it; False to use
            the cache, and drop written pages from it.
        allocate: allocates arrays that are read back; None for a separate BufferPool.
        hold: allocates the memory of packs, and copies of arrays whose write failed; None for a
            separate BufferPool.
        max_pack_nbytes: bound of the bytes of a pack; 0 for no packs.
        timeout_seconds: ``close`` gives up after so many seconds in which no read or write has
            ended.

    Attributes:
        directories: of the files, as a list of absolute paths.

    Raises:
        StoreError: a directory cannot be made, or is not writeable.
        StoreFullError: there is no space for a new file.
        ValueError: no directory, a negative argument, or an unknown codec.
        ImportError: the codec needs numcodecs, which is not installed.
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
        hold: Allocate | None = None,
        max_pack_nbytes: int = 4 << 20,
        timeout_seconds: float = 60.0,
    ) -> None:
        check_count("threads", threads)
        check_count("pack_below_nbytes", pack_below_nbytes)
        if directory is None or isinstance(directory, (str, os.PathLike)):
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
            hold=hold,
            max_pack_nbytes=max_pack_nbytes,
            timeout_seconds=timeout_seconds,
        )


class _DiskBackend(FileBackend):
    def __init__(self, directories: Sequence[Path], quota: int | None, direct: bool) -> None:
        if not directories:
            raise ValueError("directory must not be empty; pass None for spill_directory()")
        super().__init__(f"DiskStore in {', '.join(map(str, directories))}", quota)
        try:
            for each in directories:
                self.files[ArrayFile(DirectFile.unnamed(each, direct), self.name, self.buffers)] = 0
        except BaseException:
            self.close()
            raise
