"""Rates of a drive, bare and through stores, within a bounded time."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from offgrad_storage import AbstractArrayStore

from offgrad.cli.bench_storage.bare_file import BareFile
from offgrad.cli.bench_storage.loops import MB, Array, Variants, normal_arrays, store_variants
from offgrad.cli.bench_storage.workload import Workload
from offgrad.policies.names import STORES, store_and_codec
from offgrad.session.named_stores import new_store

STORES_MEASURED = (
    *("pool", "disk", "zarr"),
    *("disk:lz4", "disk:zstd", "disk:blosc-lz4-bitshuffle", "disk:sparse"),
    *("disk:bfloat16", "disk:int8", "zarr:blosc-lz4-bitshuffle"),
)
SIZES = (64 << 10, MB, 16 * MB)
"""Bytes of an array, for stores without a codec. The arrays of the workload are for all."""
TOTAL = 64 * MB
_ROUNDS = 5
_MIN_TOTAL = 4 * MB
_BLOCK = 16 * MB
_PROBE_NBYTES = 4 * MB


class Rates(NamedTuple):
    """What a store, or the bare loop, did with some arrays. Bytes count as they are in memory.

    Attributes:
        put: bytes per second written; the median over rounds.
        get: bytes per second read.
        stored_part: bytes in the store, as a part of those of the arrays.
        cpu_seconds: processor time to write and read 10**9 bytes.
    """

    put: float
    get: float
    stored_part: float = 1.0
    cpu_seconds: float = 0.0


class Cell(NamedTuple):
    """One measurement.

    Attributes:
        name: of the store; "bare" for the loop of system calls.
        column: bytes of each array; 0 for the arrays of the workload; for the bare loop, threads.
        rates: None if the time was spent, or the drive cannot do it.
        reason: why there are no rates.
    """

    name: str
    column: int
    rates: Rates | None
    reason: str | None = None


def cells(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return names and columns of all measurements, the most telling first."""
    found = [("bare", 1), ("bare", 2)]
    found += [(name, 0) for name in names]
    found += [(name, size) for name in names if ":" not in name for size in SIZES]
    return found


def measure(
    folder: Path,
    names: Sequence[str],
    workload: Workload,
    seconds: float,
    max_total: int = TOTAL,
) -> Iterator[Cell]:
    """Yield each of `cells` as it is measured; those for which no time is left have no rates.

    Args:
        folder: of the files.
        names: of stores, with codecs.
        workload: its arrays are the column 0.
        seconds: about the time for all.
        max_total: bytes of the arrays of a turn; a slow drive gets fewer.
    """
    end = time.monotonic() + seconds
    plan = cells(names)
    speed = _probe(folder)
    for index, (name, column) in enumerate(plan):
        left = end - time.monotonic()
        if left <= 0:
            yield Cell(name, column, None, "no time was left")
            continue
        share = left / (len(plan) - index)
        # A put and a get, once to warm up and at least once more.
        total = int(min(max_total, max(_MIN_TOTAL, speed * share / 4)))
        try:
            if name == "bare":
                rates = _bare(folder, column, share, max(total // _BLOCK, 1) * _BLOCK)
            else:
                arrays = _first(workload.arrays, total) if not column else _made(column, total)
                rates = _store(folder, name, arrays, share)
            yield Cell(name, column, rates)
        except (OSError, AttributeError) as error:  # no O_DIRECT in this folder, or on this system
            if name != "bare":
                raise
            yield Cell(name, column, None, f"no O_DIRECT: {error}")


def _probe(folder: Path) -> float:
    """Return about how many bytes per second the drive takes, from a small write."""
    began = time.perf_counter()
    with new_store("disk", directory=str(folder)) as store:
        store_variants("", store, normal_arrays(MB, _PROBE_NBYTES))[" put"]()
    return _PROBE_NBYTES / (time.perf_counter() - began)


def _made(nbytes: int, total: int) -> list[Array]:
    return normal_arrays(nbytes, max(total, nbytes))


def _first(arrays: Sequence[Array], total: int) -> list[Array]:
    """Return the first arrays, of about `total` bytes."""
    found: list[Array] = []
    for each in arrays:
        found.append(each)
        total -= each.nbytes
        if total <= 0:
            break
    return found


def _bare(folder: Path, threads: int, seconds: float, nbytes: int) -> Rates:
    with contextlib.closing(BareFile.unnamed(folder, nbytes)) as file:
        loops = file.variants(_BLOCK, threads)
        put, get = (next(each for name, each in loops.items() if verb in name) for verb in _VERBS)
        return _rates(put, get, seconds)


_VERBS = ("write", "read")


def _store(folder: Path, name: str, arrays: Sequence[Array], seconds: float) -> Rates:
    kind, codec = store_and_codec(name, None)
    directory = None if STORES[kind].is_in_memory else str(folder)
    with new_store(kind, codec, directory) as store:
        loops: Variants = store_variants("", store, arrays)
        parts: list[float] = []

        def put() -> int:
            nbytes = loops[" put"]()
            parts.append(_stored_part(store))
            return nbytes

        return _rates(put, loops[" get"], seconds)._replace(stored_part=parts[-1])


def _stored_part(store: AbstractArrayStore) -> float:
    stats = store.stats()
    return stats.stored_nbytes / max(1, stats.logical_nbytes)


def _rates(put: Callable[[], int], get: Callable[[], int], seconds: float) -> Rates:
    """Run both in turn, once without measuring, until the time is spent."""
    end = time.monotonic() + seconds
    puts, gets, cpu = [], [], []
    for index in range(_ROUNDS + 1):
        turns = [_turn(put), _turn(get)]
        is_last = time.monotonic() >= end
        if index or is_last:
            puts.append(turns[0][0])
            gets.append(turns[1][0])
            cpu.append(sum(each[1] for each in turns))
        if is_last:
            break
    return Rates(statistics.median(puts), statistics.median(gets), 1.0, statistics.median(cpu))


def _turn(call: Callable[[], int]) -> tuple[float, float]:
    """Return bytes per second, and processor seconds for 10**9 bytes."""
    began, cpu_began = time.perf_counter(), time.process_time()
    nbytes = call()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    return nbytes / max(seconds, 1e-9), cpu_seconds / nbytes * 1e9
