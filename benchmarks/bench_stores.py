"""How close do the stores come to the machine's limits, and how do they compare with torch.save?

    pytest benchmarks/bench_stores.py -s -p no:xdist

DiskStore is compared with a bare loop of system calls on its own file (in ``spill_directory()``),
in blocks of 16 MB, or of 4 MB for arrays under 1 MB, on one thread or two, whichever is faster. The
same loop also runs while another thread hashes as many bytes, to show the cost of the checksum by
itself. DiskStore is also compared with torch.save and torch.load to one file per tensor, the
example of PyTorch's documentation; PoolStore with copies between warm buffers.

Arrays come from a BufferPool. A put ends when everything is written. A get starts with the last
array while reads run ahead, and drops each array and its handle. Variants take turns in one
process; all file space and memory has been used before. The benchmark prints, and adds to
``extra_info``, medians over the rounds with quartiles: GB/s, CPU seconds per GB, and the ratio to
the reference. OFFGRAD_BENCH_STORES=quick shortens it. No time is asserted.
"""

import contextlib
import os
import tempfile
import uuid
from typing import Any

import numpy as np
import pytest
from offgrad_storage import (
    BufferPool,
    DiskStore,
    PoolStore,
    spill_directory,
)

from benchmarks._lib.store_loops import QUICK, SIZES, TOTAL, report, take_turns
from offgrad.cli.bench_storage.bare_file import BareFile
from offgrad.cli.bench_storage.loops import KB, MB, Variants, label, normal_arrays, store_variants

# Arrays of 64 KB are numerous: a round of fewer bytes is long enough.
SMALL_TOTAL = TOTAL // 4
TORCH_SIZES = [64 * KB, MB] if QUICK else [64 * KB, MB, 16 * MB]


@pytest.mark.parametrize("nbytes", SIZES, ids=label)
def test_disk_store_and_bare_loop(nbytes: int, benchmark: Any) -> None:
    arrays = normal_arrays(nbytes, SMALL_TOTAL if nbytes == 64 * KB else TOTAL)
    block = 16 * MB if nbytes >= MB else 4 * MB
    with DiskStore() as store:
        variants = store_variants("DiskStore", store, arrays)
        for run in variants.values():  # the store allocates the extents of the file
            run()
        try:
            bare = BareFile.of(store, TOTAL)
        except OSError as error:
            pytest.skip(f"no O_DIRECT in {spill_directory()}: {error}")
        with contextlib.closing(bare):
            loops = bare.variants(block, 1, 2)
            turns = take_turns(benchmark, loops | bare.hashed_variants(block) | variants)
    references = {
        name: [each for each in loops if each.startswith(f"bare {call}")]
        for verb, call in (("put", "write"), ("get", "read"))
        for name in (f"DiskStore {verb}", f"bare {call}, and hashing")
    }
    title = f"DiskStore, arrays of {label(nbytes)}; the bare loop by blocks of {label(block)}"
    report(benchmark, title, turns, references)


@pytest.mark.parametrize("nbytes", TORCH_SIZES, ids=label)
def test_disk_store_and_torch_save(nbytes: int, benchmark: Any) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    arrays = normal_arrays(nbytes, SMALL_TOTAL)
    fewer = arrays[: max(1, len(arrays) // 4)]
    with (
        DiskStore() as store,
        tempfile.TemporaryDirectory(dir=spill_directory()) as folder,
    ):
        loops = store_variants("DiskStore", store, arrays) | torch_variants(torch, folder, fewer)
        turns = take_turns(benchmark, loops)
    references = {"DiskStore put": ["torch.save"], "DiskStore get": ["torch.load"]}
    report(benchmark, f"DiskStore and torch.save, {label(nbytes)}", turns, references)


class _File:
    """A file that is removed with the last reference to it."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, str(uuid.uuid4()))

    def __del__(self) -> None:
        os.remove(self.path)


def torch_variants(torch: Any, folder: str, arrays: list[Any]) -> Variants:
    """Return loops that save each tensor to a file, and that load and remove the files."""
    tensors = [torch.from_numpy(array) for array in arrays]
    files: list[_File] = []

    def save() -> int:
        for tensor in tensors:
            files.append(_File(folder))
            torch.save(tensor, files[-1].path)
        return sum(array.nbytes for array in arrays)

    def load() -> int:
        nbytes = 0
        while files:
            file = files.pop()
            nbytes += torch.load(file.path).nbytes
        return nbytes

    return {"torch.save": save, "torch.load": load}


@pytest.mark.parametrize("nbytes", SIZES, ids=label)
def test_pool_store_and_memcpy(nbytes: int, benchmark: Any) -> None:
    arrays = normal_arrays(nbytes, SMALL_TOTAL if nbytes == 64 * KB else TOTAL)
    held = normal_arrays(nbytes, sum(array.nbytes for array in arrays))
    pool = BufferPool()

    def copy() -> int:
        for array, place in zip(arrays, held, strict=True):
            np.copyto(place, array)
        return sum(array.nbytes for array in arrays)

    def copy_back() -> int:
        out = pool.empty(arrays[0].shape, arrays[0].dtype)
        for place in reversed(held):
            np.copyto(out, place)
        return sum(array.nbytes for array in arrays)

    with PoolStore() as store:
        loops: Variants = {"memcpy": copy, "memcpy back": copy_back}
        turns = take_turns(benchmark, loops | store_variants("PoolStore", store, arrays))
    references = {"PoolStore put": ["memcpy"], "PoolStore get": ["memcpy back"]}
    report(benchmark, f"PoolStore, arrays of {label(nbytes)}", turns, references)
