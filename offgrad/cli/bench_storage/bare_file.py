"""The bare loop that stores are compared with: the fastest known system calls, same folder."""

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import xxhash
from numpy.typing import NDArray
from offgrad_storage import DiskStore

from offgrad.cli.bench_storage.loops import MB, Variants, normal_arrays

Bytes = NDArray[np.uint8]


class BareFile:
    """Loops over a file whose extents were written before.

    The loops call pwritev and preadv with O_DIRECT, from and into huge pages that were touched
    before. The write buffer has the size of the file; each thread reads into one block.

    Args:
        descriptor: the file, open with O_DIRECT.
        nbytes: bytes of the file that the loops use, from its start; a multiple of 16 MB.
        max_threads: upper bound of the threads of a loop.

    Raises:
        OSError: the file does not take direct writes.
    """

    def __init__(self, descriptor: int, nbytes: int, max_threads: int = 2) -> None:
        self.nbytes = nbytes
        self._descriptor = os.dup(descriptor)
        self._threads = ThreadPoolExecutor(max_threads)
        self._source = _huge_pages(nbytes)
        self._read_buffers = [_huge_pages(16 * MB) for _ in range(max_threads)]
        pattern = normal_arrays(nbytes, nbytes)[0]
        self._source[:] = pattern.view(np.uint8)
        try:
            self.variants(16 * MB, 1)["bare write, 1 thread"]()
        except OSError:  # some file systems take the flag and refuse the write
            self.close()
            raise

    @classmethod
    def unnamed(cls, directory: Path, nbytes: int) -> Self:
        """Make loops over a new file without a name.

        Raises:
            OSError: the directory is on a file system without O_TMPFILE or O_DIRECT.
        """
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
        try:
            return cls(descriptor, nbytes)
        finally:
            os.close(descriptor)

    @classmethod
    def of(cls, store: DiskStore, nbytes: int) -> Self:
        """Make loops over the spill file of an empty store.

        Parts of a drive differ in speed by up to a third, so a store and the loop that it is
        compared with must use the same part.
        """
        (file,) = store._executor.backend.files  # type: ignore[attr-defined]
        return cls(file.file.fileno(), nbytes)

    def variants(self, block: int, *thread_counts: int) -> Variants:
        """Return loops that write and read the whole file in blocks, per number of threads."""
        made: Variants = {}
        for count in thread_counts:
            text = f"{count} thread{'s' * (count > 1)}"
            made[f"bare write, {text}"] = partial(self._spread, self.write, block, count)
            made[f"bare read, {text}"] = partial(self._spread, self.read, block, count)
        return made

    def hashed_variants(self, block: int) -> Variants:
        """Return loops on one thread while another thread hashes as many bytes with XXH3."""

        def beside(call: Callable[[int, int, int], None]) -> int:
            hashing = self._threads.submit(self._hash, block)
            nbytes = self._spread(call, block, 1)
            hashing.result()
            return nbytes

        return {
            "bare write, and hashing": partial(beside, self.write),
            "bare read, and hashing": partial(beside, self.read),
        }

    def write(self, start: int, nbytes: int, thread: int = 0) -> None:
        """Write one block."""
        data = self._source[start : start + nbytes]
        if os.pwritev(self._descriptor, [data.data], start) != nbytes:
            raise OSError("a short write")

    def read(self, start: int, nbytes: int, thread: int = 0) -> None:
        """Read one block."""
        out = self._read_buffers[thread][:nbytes]
        if os.preadv(self._descriptor, [out.data], start) != nbytes:
            raise OSError("a short read")

    def close(self) -> None:
        """Close the file and end the threads."""
        self._threads.shutdown()
        os.close(self._descriptor)

    def _hash(self, block: int) -> None:
        for start in range(0, self.nbytes, block):
            xxhash.xxh3_64_intdigest(self._source[start : start + block].data)

    def _spread(self, call: Callable[[int, int, int], None], block: int, threads: int) -> int:
        starts = iter(range(0, self.nbytes, block))

        def work(thread: int) -> None:
            for start in starts:
                call(start, block, thread)

        for done in [self._threads.submit(work, thread) for thread in range(threads)]:
            done.result()
        return self.nbytes


def _huge_pages(nbytes: int) -> Bytes:
    """Return touched memory, in huge pages where the kernel provides them."""
    huge = 2 * MB
    memory = mmap.mmap(-1, nbytes + huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    begin = -whole.ctypes.data % huge
    aligned = whole[begin : begin + nbytes]
    aligned[:] = 1
    return aligned
