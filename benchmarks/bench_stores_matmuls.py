"""How much does spilling slow concurrent matmuls?

    pytest benchmarks/bench_stores_matmuls.py -s -p no:xdist

Matmuls on two threads run alone, while another thread puts arrays into a DiskStore at 1 GB/s, while
it gets them, and while a bare loop of 16 MB blocks writes and reads at that rate. The benchmark
prints, and adds to ``extra_info``, medians over the rounds with quartiles: the rate of matmuls, its
ratio to matmuls alone in the same round, and the rate of the load, which is below 1 GB/s where the
store cannot keep up. OFFGRAD_BENCH_STORES=quick shortens it. No time is asserted.
"""

import itertools
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pytest
from offgrad_storage import (
    AbstractArrayStore,
    DiskStore,
    Handle,
    spill_directory,
)
from threadpoolctl import threadpool_limits

from benchmarks._lib.store_loops import GB, QUICK, ROUNDS, WARMUP_ROUNDS, quartiles
from offgrad.cli.bench_storage.bare_file import BareFile
from offgrad.cli.bench_storage.loops import (
    KB,
    MB,
    Array,
    label,
    normal_arrays,
    read_back,
    wait_written,
)

ORDER, MATMULS = (1024, 4) if QUICK else (2048, 8)
BYTES_PER_SECOND = 1e9
SIZES = [MB] if QUICK else [64 * KB, MB, 16 * MB]
ROUND_TRIP = 256 * MB
"""Bytes of arrays, and of the bare file, that a load cycles through: more than the reads ahead."""

Item = TypeVar("Item")


class Pace:
    """Limits a load to BYTES_PER_SECOND until it is stopped.

    Attributes:
        nbytes: bytes passed so far.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._stopped = threading.Event()

    def limit(self, items: Iterable[Item], nbytes: int) -> Iterator[Item]:
        """Yield each item of `nbytes` bytes when it is due."""
        began = time.perf_counter()
        for item in items:
            delay = began + self.nbytes / BYTES_PER_SECOND - time.perf_counter()
            if delay > 0.002:  # shorter sleeps take far longer than requested
                self._stopped.wait(delay)
            if self._stopped.is_set():
                return
            yield item
            self.nbytes += nbytes

    def stop(self) -> None:
        """End the load."""
        self._stopped.set()


Load = Callable[[Pace], object]


def bare_load(file: BareFile, call: Callable[[int, int], None]) -> Load:
    """Return a load of blocks of 16 MB that cycles through the file."""
    starts = range(0, file.nbytes, 16 * MB)

    def run(pace: Pace) -> None:
        for start in pace.limit(itertools.cycle(starts), 16 * MB):
            call(start, 16 * MB)

    return run


def put_load(store: AbstractArrayStore, arrays: list[Array]) -> Load:
    """Return a load that puts the arrays in a cycle and keeps one handle per array alive."""
    handles: deque[Handle] = deque(maxlen=len(arrays))
    handles.extend(store.put(array) for array in [*arrays, *arrays])

    def run(pace: Pace) -> None:
        for array in pace.limit(itertools.cycle(arrays), arrays[0].nbytes):
            handles.append(store.put(array))
        wait_written(store, handles)

    return run


def get_load(store: AbstractArrayStore, arrays: list[Array]) -> Load:
    """Return a load that gets the arrays in a cycle, last first, while reads run ahead."""
    handles = [store.put(array) for array in arrays]
    wait_written(store, handles)

    def run(pace: Pace) -> None:
        read_back(pace.limit(itertools.cycle(reversed(handles)), arrays[0].nbytes))

    return run


@dataclass(frozen=True)
class Turn:
    """Rates of the matmuls, per second, and of the load beside them, in GB/s."""

    matmuls: float
    load: float


def matmuls_beside(load: Load | None, thread: ThreadPoolExecutor) -> Turn:
    """Run matmuls while `load` runs in `thread`."""
    pace = Pace()
    left, right, out = np.ones((3, ORDER, ORDER), np.float32)
    running = None if load is None else thread.submit(load, pace)
    np.matmul(left, right, out=out)
    before, began = pace.nbytes, time.perf_counter()
    for _ in range(MATMULS):
        np.matmul(left, right, out=out)
    seconds, loaded = time.perf_counter() - began, pace.nbytes - before
    pace.stop()
    if running is not None:
        running.result()
    return Turn(MATMULS / seconds, loaded / GB / seconds)


@pytest.mark.parametrize("nbytes", SIZES, ids=label)
def test_matmuls_beside_a_disk_store(nbytes: int, benchmark: Any) -> None:
    try:
        file = BareFile.unnamed(spill_directory(), ROUND_TRIP)
    except (OSError, AttributeError) as error:
        pytest.skip(f"no O_DIRECT in {spill_directory()}: {error}")
    arrays = normal_arrays(nbytes, ROUND_TRIP)
    turns: dict[str, list[Turn]] = {}
    with (
        DiskStore() as putting,
        DiskStore() as getting,
        ThreadPoolExecutor(1) as thread,
        threadpool_limits(2, "blas"),
    ):
        loads = {
            "alone": None,
            "bare write": bare_load(file, file.write),
            "bare read": bare_load(file, file.read),
            "DiskStore put": put_load(putting, arrays),
            "DiskStore get": get_load(getting, arrays),
        }

        def every_load() -> None:
            for name, load in loads.items():
                turns.setdefault(name, []).append(matmuls_beside(load, thread))

        benchmark.pedantic(every_load, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
        loads.clear()
    file.close()
    print(f"\nMatmuls of order {ORDER} beside arrays of {label(nbytes)}")
    # With --benchmark-disable there is one round and no warm-up.
    warm = slice(WARMUP_ROUNDS if len(turns["alone"]) > WARMUP_ROUNDS else 0, None)
    for name, row in turns.items():
        rate = statistics.median(turn.matmuls for turn in row[warm])
        beside = zip(row[warm], turns["alone"][warm], strict=True)
        low, ratio, high = quartiles([turn.matmuls / alone.matmuls for turn, alone in beside])
        load_rate = statistics.median(turn.load for turn in row[warm])
        benchmark.extra_info[name] = {
            "median_matmuls_per_s": rate,
            "ratio_to_alone": ratio,
            "quartiles_ratio": [low, high],
            "median_load_GB_per_s": load_rate,
        }
        print(
            f"  {name:16} {rate:6.2f} matmuls/s, {ratio:.3f} ({low:.3f} to {high:.3f}) of alone, "
            f"at {load_rate:.2f} GB/s"
        )
