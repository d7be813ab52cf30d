"""What does the Zarr format cost beyond the disk and the codec?

    pytest benchmarks/bench_stores_zarr.py -s -p no:xdist

ZarrStore without a codec is compared with DiskStore; with one, with numcodecs' encode and decode
of the same arrays, at ZarrStore's level and on as many threads, without a disk. Arrays of 64 KB are
also written and read through zarr's own array API: one Zarr array each, with one chunk, no codec
and no search for empty chunks. Rates count uncompressed bytes; the arrays are normally distributed
float32. ``bench_stores.py`` describes the rest.
"""

import itertools
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numcodecs
import pytest
import zarr
from offgrad_storage import (
    BufferPool,
    DiskStore,
    ZarrStore,
    spill_directory,
)

from benchmarks._lib.store_loops import QUICK, TOTAL, report, take_turns
from offgrad.cli.bench_storage.loops import (
    KB,
    MB,
    Array,
    Variants,
    label,
    normal_arrays,
    store_variants,
)

THREADS = 2
SIZES = [64 * KB, MB] if QUICK else [64 * KB, MB, 16 * MB]
CODECS = {
    "blosc-lz4": numcodecs.Blosc("lz4", clevel=1, shuffle=numcodecs.Blosc.SHUFFLE),
    "zstd": numcodecs.Zstd(level=1),
}


def some_arrays(nbytes: int) -> list[Array]:
    """Return fewer small arrays: the reference takes milliseconds for each."""
    return normal_arrays(nbytes, TOTAL // 16 if nbytes == 64 * KB else TOTAL // 2)


@pytest.mark.parametrize("nbytes", SIZES, ids=label)
def test_zarr_store_and_disk_store(nbytes: int, benchmark: Any) -> None:
    arrays = some_arrays(nbytes)
    with (
        DiskStore(threads=THREADS) as disk,
        ZarrStore(codec="none", threads=THREADS) as store,
    ):
        loops = store_variants("DiskStore", disk, arrays)
        turns = take_turns(benchmark, loops | store_variants("ZarrStore", store, arrays))
    references = {f"ZarrStore {verb}": [f"DiskStore {verb}"] for verb in ("put", "get")}
    report(benchmark, f"ZarrStore without codec, {label(nbytes)}", turns, references)


def test_zarr_store_and_array_api(benchmark: Any) -> None:
    arrays = some_arrays(64 * KB)
    fewer = arrays[: len(arrays) // 4]
    with (
        ZarrStore(codec="none", threads=THREADS) as store,
        tempfile.TemporaryDirectory(dir=spill_directory()) as folder,
    ):
        loops = api_variants(folder, fewer) | store_variants("ZarrStore", store, arrays)
        turns = take_turns(benchmark, loops)
    references = {"ZarrStore put": ["API write"], "ZarrStore get": ["API read"]}
    report(benchmark, f"ZarrStore and zarr's array API, {label(64 * KB)}", turns, references)


def api_variants(folder: str, arrays: Sequence[Array]) -> Variants:
    """Return loops over zarr's array API: one array per tensor, a new group each round."""
    rounds = itertools.count()
    groups: list[Any] = []

    def write() -> int:
        group = zarr.open_group(f"{folder}/{next(rounds)}", mode="w", zarr_format=3)
        for index, array in enumerate(arrays):
            stored = group.create_array(
                str(index),
                shape=array.shape,
                dtype=array.dtype,
                chunks=array.shape,
                compressors=None,
                config={"write_empty_chunks": True},
            )
            stored[...] = array
        groups.append(group)
        return sum(array.nbytes for array in arrays)

    def read() -> int:
        group = groups.pop()
        return sum(group[str(index)][...].nbytes for index in reversed(range(len(arrays))))

    return {"API write": write, "API read": read}


@pytest.mark.parametrize("nbytes", SIZES, ids=label)
@pytest.mark.parametrize("codec", CODECS)
def test_zarr_store_and_codec(codec: str, nbytes: int, benchmark: Any) -> None:
    arrays = some_arrays(nbytes)
    with (
        ZarrStore(codec=codec, threads=THREADS) as store,
        ThreadPoolExecutor(THREADS) as threads,
    ):
        loops = codec_variants(CODECS[codec], threads, arrays)
        turns = take_turns(benchmark, loops | store_variants("ZarrStore", store, arrays))
    references = {"ZarrStore put": ["encode"], "ZarrStore get": ["decode"]}
    report(benchmark, f"ZarrStore with {codec}, {label(nbytes)}", turns, references)


def codec_variants(codec: Any, threads: ThreadPoolExecutor, arrays: Sequence[Array]) -> Variants:
    """Return loops that encode all arrays, and that decode them into arrays dropped at once."""
    encoded: list[Any] = []
    pool = BufferPool()

    def encode() -> int:
        encoded[:] = threads.map(codec.encode, arrays)
        return sum(array.nbytes for array in arrays)

    def decode_one(data: Any, array: Array) -> int:
        out = pool.empty(array.shape, array.dtype)
        codec.decode(data, out)
        return out.nbytes

    def decode() -> int:
        return sum(threads.map(decode_one, encoded, arrays))

    return {"encode": encode, "decode": decode}
