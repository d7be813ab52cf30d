"""BufferPool: alignment, reuse, exact accounting, and safety in odd moments."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time
from types import FrameType
from typing import Any

import numpy as np
import pytest
from offgrad_storage import BufferPool, MemoryCounter
from offgrad_storage.memory.buffer_pool import PAGE, round_up, size_class
from offgrad_storage.testing.helpers import run_in_fork


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def test_size_classes_waste_at_most_an_eighth() -> None:
    for nbytes in [*range(1, 600_000, 977), 2**21 + 1, 2**24 + 1, 10**8 + 1, 3 * 2**30 + 5]:
        size = size_class(nbytes)
        assert size % PAGE == 0
        assert nbytes <= size <= round_up(nbytes) * 1.125
        assert size_class(size) == size


@pytest.mark.parametrize(
    "dtype", ["f4", "?", ">i2", "c16", "M8[ns]", "U3", [("a", "i2"), ("b", "f8")]]
)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (), (2, 1, 4)])
def test_arrays_are_ordinary(dtype: object, shape: tuple[int, ...]) -> None:
    pool = BufferPool()
    array = pool.empty(shape, dtype)  # type: ignore[arg-type]
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))  # type: ignore[call-overload]
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert address(array) % PAGE == 0
    array[...] = np.zeros(shape, dtype)  # type: ignore[call-overload]


def test_large_arrays_sit_on_huge_pages() -> None:
    array = BufferPool().empty((5 << 20,), np.float32)
    assert address(array) % (2 << 20) == 0
    array[::1024] = 1
    assert array[-1024] == 1


def test_memory_returns_with_the_last_view_and_is_used_again() -> None:
    pool = BufferPool()
    array = pool.empty((100, 100))
    where = address(array)
    view = array[10:20].view(np.int32).T
    assert pool.owns(array)
    assert pool.owns(view)
    del array
    assert pool.in_use_nbytes == 40_000
    del view
    assert pool.in_use_nbytes == 0
    assert pool.cached_nbytes == size_class(40_000)
    array = pool.empty((99, 100))
    assert address(array) == where
    stats = pool.stats()
    assert (stats.takes, stats.maps, stats.arrays, stats.cached_nbytes) == (2, 1, 1, 0)
    assert (stats.in_use_nbytes, stats.reserved_nbytes) == (39_600, size_class(39_600))


def test_memoryviews_keep_memory() -> None:
    pool = BufferPool()
    buffer = pool.empty((10,), np.uint8).data
    copy = np.frombuffer(buffer, np.uint8)
    del buffer
    assert pool.owns(copy)
    assert pool.in_use_nbytes == 10


def test_not_owned() -> None:
    pool = BufferPool()
    assert not pool.owns(np.empty(5))
    assert not pool.owns(BufferPool().empty(5))
    assert not pool.owns(pool.empty((0, 5)))


def test_empty_arrays_and_bad_arguments() -> None:
    pool = BufferPool()
    assert pool.empty((0, 5)).shape == (0, 5)
    assert pool.empty(np.int64(3)).shape == (3,)  # type: ignore[arg-type]
    assert pool.in_use_nbytes == 0
    with pytest.raises(TypeError, match="Python objects"):
        pool.empty(3, object)
    for shape in [(-1,), (-2, -3), (-1, 0)]:
        with pytest.raises(ValueError, match="negative"):
            pool.empty(shape)
    assert pool.in_use_nbytes == 0
    with pytest.raises(ValueError, match="capacity"):
        BufferPool(capacity=-1)


def test_padded() -> None:
    pool = BufferPool()
    array = pool.empty((1000, 3), np.float32)
    padded = BufferPool.padded(array)
    assert padded is not None
    assert padded.shape == (12288,)
    assert padded.dtype == np.uint8
    assert address(padded) == address(array)
    array[0, 0] = 1.5
    assert padded[:4].tobytes() == np.float32(1.5).tobytes()
    del array
    assert pool.in_use_nbytes == 12_000
    del padded
    assert pool.in_use_nbytes == 0


def test_padded_never_reaches_into_other_memory() -> None:
    pool = BufferPool()
    array = pool.empty((4096 * 3,), np.uint8)
    assert BufferPool.padded(array[:100]) is None
    assert BufferPool.padded(array[1:4097]) is None
    assert BufferPool.padded(array[::2]) is None
    assert BufferPool.padded(array[:0]) is None
    assert BufferPool.padded(np.empty(4096, np.uint8)) is None
    inner = BufferPool.padded(array[4096:8192])
    assert inner is not None
    assert address(inner) == address(array) + 4096
    assert inner.nbytes == 4096


def test_a_counter_is_exact() -> None:
    counter = MemoryCounter()
    pool, other = BufferPool(counter=counter), BufferPool(counter=counter)
    array, second = pool.empty((3, 5), np.int16), other.empty(10, np.uint8)
    pool.empty((0,))
    assert counter.allocated == 40
    del array
    assert counter.allocated == second.nbytes == 10
    assert counter.peak == 40
    del second
    assert counter.allocated == 0


def test_observers_of_a_counter_get_each_change() -> None:
    counter = MemoryCounter()
    seen: list[tuple[int, int]] = []
    counter.observers["test"] = lambda count, _, nbytes: seen.append((count, nbytes))
    pool = BufferPool(counter=counter)
    array = pool.empty((3, 5), np.int16)
    pool.empty((0,))
    del array
    counter.settle()
    assert seen == [(30, 30), (0, -30)]


def test_a_counter_may_refuse() -> None:
    counter = MemoryCounter()
    counter.limit = 100
    pool = BufferPool(counter=counter)
    array = pool.empty(25)
    with pytest.raises(MemoryError, match="limited to 100 bytes: 104 more"):
        pool.empty(26)
    assert pool.in_use_nbytes == counter.allocated == array.nbytes == 100
    assert pool.stats().takes == 1


def test_no_memory_takes_nothing_and_trims_first() -> None:
    counter = MemoryCounter()
    pool = BufferPool(counter=counter)
    pool.empty(1000, np.uint8)
    assert pool.cached_nbytes == PAGE
    for nbytes in (1 << 60, 1 << 70):
        with pytest.raises(MemoryError, match="the system gives no"):
            pool.empty(nbytes, np.uint8)
    assert counter.allocated == 0
    assert pool.stats().arrays == pool.cached_nbytes == 0


def test_capacity_counts_buffers_and_cache() -> None:
    pool = BufferPool(capacity=4 * PAGE)
    first = pool.empty(2 * PAGE, np.uint8)
    del first
    assert pool.cached_nbytes == 2 * PAGE
    second = pool.empty(3 * PAGE, np.uint8)
    assert pool.cached_nbytes == 0
    with pytest.raises(MemoryError, match="capacity of 16384"):
        pool.empty(2 * PAGE, np.uint8)
    assert pool.empty(PAGE, np.uint8).nbytes + second.nbytes == 4 * PAGE


def test_trim_gives_memory_back_oldest_first() -> None:
    pool = BufferPool()
    arrays = [pool.empty(pages * PAGE, np.uint8) for pages in (1, 2, 3)]
    while arrays:
        arrays.pop(0)
    assert pool.trim(1) == PAGE
    assert pool.trim(PAGE + 1) == 2 * PAGE
    assert pool.trim() == 3 * PAGE
    assert pool.trim() == pool.cached_nbytes == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc here")
def test_trim_really_unmaps() -> None:
    def mapped() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * PAGE

    pool = BufferPool()
    array = pool.empty(256 << 20, np.uint8)
    before = mapped()
    del array
    pool.trim()
    assert before - mapped() > 200 << 20


def test_the_cache_is_bounded() -> None:
    pool = BufferPool()
    for pages in range(1, 200):
        pool.empty(pages * 512 * PAGE, np.uint8)
    assert pool.cached_nbytes <= 200 * 512 * PAGE * 33 / 32 + (8 << 20)


def test_neighbours_are_joined_and_the_rest_is_cached() -> None:
    pool = BufferPool()
    whole = pool.empty(8 << 20, np.uint8)
    start = address(whole)
    del whole
    parts = [pool.empty(2 << 20, np.uint8) for _ in range(4)]
    assert sorted(address(each) - start for each in parts) == [each << 20 for each in (0, 2, 4, 6)]
    assert (pool.stats().maps, pool.cached_nbytes) == (1, 0)
    parts.sort(key=address)
    for each in parts:
        each[:] = 1
    del parts[1:3], each
    joined = pool.empty((7 << 20) // 2, np.uint8)
    assert address(joined) == start + (2 << 20)
    assert (pool.stats().maps, pool.cached_nbytes) == (1, 1 << 19)
    joined[:] = 2
    assert all((each == 1).all() for each in parts)
    del joined, parts
    assert address(pool.empty(8 << 20, np.uint8)) == start
    assert pool.stats().maps == 1
    assert pool.trim() == 8 << 20


def test_the_buffer_that_fits_best_is_cut() -> None:
    pool = BufferPool()
    large, small = pool.empty(16 << 20, np.uint8), pool.empty(6 << 20, np.uint8)
    where = address(small)
    del large, small
    array = pool.empty(5 << 20, np.uint8)
    assert address(array) == where
    assert pool.cached_nbytes == 17 << 20


def test_a_steady_step_maps_nothing_and_caches_little() -> None:
    pool = BufferPool()

    def step() -> int:
        """Take and drop arrays of several sizes, in another order than they were taken."""
        held = [pool.empty(nbytes << 20, np.uint8) for nbytes in (4, 12, 4, 16) * 4]
        peak = pool.in_use_nbytes
        while held:
            held.pop(len(held) // 3)
            extra = pool.empty(len(held) << 20, np.uint8)
            peak = max(peak, pool.in_use_nbytes)
            del extra
        return peak

    peak = max(step() for _ in range(3))
    maps = pool.stats().maps
    step()
    assert pool.stats().maps == maps
    assert pool.cached_nbytes <= peak * 33 / 32 + (8 << 20)


def test_views_that_die_in_the_garbage_collector_of_any_thread() -> None:
    counter = MemoryCounter()
    pool = BufferPool(counter=counter)

    def work() -> None:
        for number in range(400):
            cycle: list[object] = [pool.empty(number + 1, np.uint8)]
            cycle.append(cycle)
            other = pool.empty(100)
            other[:] = number
            assert (other == number).all()

    thresholds = gc.get_threshold()
    gc.set_threshold(3, 2, 2)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert pool.in_use_nbytes == counter.allocated == 0
    assert pool.stats().takes == 3200


def test_no_two_living_arrays_share_memory() -> None:
    pool = BufferPool()
    arrays = [pool.empty(1000 + 7 * number, np.int32) for number in range(50)]
    for number, array in enumerate(arrays):
        array[:] = number
    del arrays[::3]
    arrays += [pool.empty(900, np.int32) for _ in range(20)]
    spans = sorted((address(array), array.nbytes) for array in arrays)
    for (start, nbytes), (following, _) in itertools.pairwise(spans):
        assert start + nbytes <= following


def test_arrays_outlive_their_pool() -> None:
    array = BufferPool().empty(1000)
    gc.collect()
    array[:] = 5
    assert array.sum() == 5000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_in_the_middle_of_things() -> None:
    pool = BufferPool()
    array = pool.empty(10_000, np.uint8)
    array[:] = 1
    owned = [array]
    del array

    def use() -> None:
        owned[0][:] = 2
        other = pool.empty(1 << 20)  # needs the lock that another process holds
        other[:] = 3
        owned.clear()
        assert pool.in_use_nbytes == 4 << 20

    with pool._map_lock:
        assert run_in_fork(use) == 0
    (array,) = owned
    assert (array == 1).all()
    assert pool.in_use_nbytes == 10_000


def test_living_arrays_at_exit() -> None:
    code = """
    import offgrad_storage, sys
    pool = offgrad_storage.BufferPool(counter=offgrad_storage.MemoryCounter())
    cycle = [pool.empty(100)]; cycle.append(cycle)
    sys.kept = pool.empty(100)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_threads_that_a_debugger_steps_through_share_no_memory() -> None:
    pool = BufferPool()
    shared: list[int] = []

    def step(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != BufferPool.empty.__code__.co_filename:
            return None
        time.sleep(0)  # another thread runs between any two lines
        return step

    def use(number: int) -> None:
        sys.settrace(step)
        for _ in range(300):
            array = pool.empty(PAGE, np.uint8)
            array[:] = number
            time.sleep(0)
            shared.extend(array[array != number])
            del array

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not shared
    assert pool.in_use_nbytes == 0
