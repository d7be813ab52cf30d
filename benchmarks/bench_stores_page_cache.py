"""Does spilling fill the page cache?

    pytest benchmarks/bench_stores_page_cache.py -s -p no:xdist

The benchmark counts, with mincore, the bytes of a store's files in the page cache after all writes
and after all reads. The count is exact under any other load. A file written through the page cache
serves as the reference. Medians are printed and added to ``extra_info``. OFFGRAD_BENCH_STORES=quick
shortens it. Nothing is asserted.
"""

import contextlib
import ctypes
import mmap
import os
import stat
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import (
    AbstractArrayStore,
    DiskStore,
    ZarrStore,
    spill_directory,
)

from benchmarks._lib.store_loops import TOTAL
from offgrad.cli.bench_storage.loops import MB, Array, label, normal_arrays, read_back, wait_written

ROUNDS = 3
FDS = Path("/proc/self/fd")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mincore and /proc are Linux's")


def regular_files(folder: Path | None = None) -> dict[tuple[int, int], Path]:
    """Map inodes to paths of the files that this process has open and of those in `folder`."""
    paths = [FDS / descriptor for descriptor in os.listdir(FDS)]
    if folder is not None:
        paths += [Path(at, name) for at, _, names in os.walk(folder) for name in names]
    found = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor is closed
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                found[status.st_dev, status.st_ino] = path
    return found


def cached_nbytes(paths: Iterable[Path]) -> tuple[int, int]:
    """Return the bytes of these files in the page cache, and all their bytes."""
    cached = total = 0
    for path in paths:
        nbytes = path.stat().st_size
        if nbytes:
            total += nbytes
            cached += _resident_nbytes(path, nbytes)
    return cached, total


def _resident_nbytes(path: Path, nbytes: int) -> int:
    pages = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), nbytes, prot=mmap.PROT_READ) as memory:
        view = np.frombuffer(memory, np.uint8)
        address = ctypes.c_void_p(view.ctypes.data)
        del view  # the map cannot be closed while it lives
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mincore(address, ctypes.c_size_t(nbytes), ctypes.c_void_p(pages.ctypes.data)):
            raise OSError(ctypes.get_errno(), "mincore")
    return int(np.count_nonzero(pages & 1)) * mmap.PAGESIZE


def through_store(make: Callable[[], AbstractArrayStore], arrays: list[Array]) -> dict[str, int]:
    """Put all arrays, get them back, and return the bytes cached after each."""
    before = regular_files()
    with make() as store:
        handles = [store.put(array) for array in arrays]
        wait_written(store, handles)
        files = regular_files(getattr(store, "path", None))
        paths = [path for key, path in files.items() if key not in before]
        written, total = cached_nbytes(paths)
        read_back(handles)
        read, _ = cached_nbytes(paths)
    return {"file_nbytes": total, "cached_once_written": written, "cached_once_read": read}


def through_page_cache(arrays: list[Array]) -> dict[str, int]:
    """Write all arrays to a file through the page cache, and read it."""
    with tempfile.TemporaryFile(dir=spill_directory()) as file:
        for array in arrays:
            file.write(array.data)
        file.flush()
        path = FDS / str(file.fileno())
        written, total = cached_nbytes([path])
        file.seek(0)
        while file.read(16 * MB):
            pass
        read, _ = cached_nbytes([path])
    return {"file_nbytes": total, "cached_once_written": written, "cached_once_read": read}


def test_page_cache(benchmark: Any) -> None:
    arrays = normal_arrays(MB, TOTAL)
    variants: dict[str, Callable[[], dict[str, int]]] = {
        "DiskStore": lambda: through_store(DiskStore, arrays),
        "DiskStore, not direct": lambda: through_store(lambda: DiskStore(direct=False), arrays),
        "ZarrStore": lambda: through_store(lambda: ZarrStore(codec="none"), arrays),
        "ordinary file": lambda: through_page_cache(arrays),
    }
    rows: dict[str, list[dict[str, int]]] = {name: [] for name in variants}

    def every_variant() -> None:
        for name, run in variants.items():
            rows[name].append(run())

    benchmark.pedantic(every_variant, rounds=ROUNDS)
    print(f"\nPage cache after {label(TOTAL)} in arrays of {label(MB)}")
    for name, row in rows.items():
        figures = {key: statistics.median(each[key] for each in row) for key in row[0]}
        benchmark.extra_info[name] = figures
        size, written, read = (value / MB for value in figures.values())
        print(
            f"  {name:22} {written:7.1f} MB after writes, {read:7.1f} after reads, "
            f"of {size:.1f} in files"
        )
