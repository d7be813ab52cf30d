"""The memory of a BufferPool: cut from huge pages, returned, and never used twice."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from offgrad_storage import BufferPool
from offgrad_storage.memory import blocks, extents
from offgrad_storage.memory.buffer_pool import PAGE, size_class
from offgrad_storage.testing.helpers import run_in_fork

from tests.interrupts import Code, Points
from tests.storage.faults import Unsupported, address_space, isolated, limit, linux_only, take_all

Bytes = NDArray[np.uint8]

MIB = 1 << 20
SIZES = [1, PAGE, PAGE + 1, 9 * PAGE, 64 << 10, 1_000_000, MIB, 2 * MIB - PAGE]
SIZES += [2 * MIB - PAGE + 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 8 * MIB, 8 * MIB + 1]


class Kept:
    """Arrays of a pool, with the number of the array in each page."""

    def __init__(self, pool: BufferPool) -> None:
        self.pool = pool
        self.arrays: dict[int, Bytes] = {}
        self._numbers = itertools.count(1)

    def take(self, nbytes: int) -> None:
        array: Bytes = self.pool.empty(nbytes, np.uint8)
        number = next(self._numbers)
        array[::PAGE] = array[-1] = number % 251
        self.arrays[number] = array

    def drop(self, which: int) -> None:
        if self.arrays:
            del self.arrays[list(self.arrays)[which % len(self.arrays)]]

    def assert_right(self) -> None:
        """Arrays are at page boundaries, disjoint, and unchanged."""
        spans = sorted((address(each), size_class(each.nbytes)) for each in self.arrays.values())
        assert not any(start % PAGE for start, _ in spans)
        assert all(
            start + nbytes <= following
            for (start, nbytes), (following, _) in itertools.pairwise(spans)
        )
        for number, array in self.arrays.items():
            assert (array[::PAGE] == number % 251).all()
            assert array[-1] == number % 251

    def assert_counted(self) -> None:
        stats = self.pool.stats()
        sizes = [array.nbytes for array in self.arrays.values()]
        assert (stats.in_use_nbytes, stats.arrays) == (sum(sizes), len(sizes))
        assert stats.reserved_nbytes == sum(map(size_class, sizes))
        total = stats.reserved_nbytes + stats.cached_nbytes
        assert self.pool.capacity is None or total <= self.pool.capacity


def address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def memory(field: str) -> int:
    """Bytes of ``VmSize`` (mapped) or ``RssAnon`` (really there)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(field)


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


# ---- disjoint memory


Actions = list[tuple[str, int]]
ACTIONS: st.SearchStrategy[Actions] = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.sampled_from(SIZES)),
        st.tuples(st.just("take"), st.integers(1, 20 * PAGE)),
        st.tuples(st.just("drop"), st.integers(0, 100)),
        st.tuples(st.just("trim"), st.sampled_from([0, 1, PAGE, MIB, 1 << 40])),
    ),
    min_size=20,
    max_size=60,
)


@pytest.mark.parametrize("huge_page", [0, 2 * MIB, 8 * MIB])  # none; aligned by the kernel; not so
@settings(deadline=None, max_examples=40)
@given(actions=ACTIONS, capacity=st.none() | st.just(12 * MIB))
def test_memory_is_aligned_disjoint_and_kept_when_neighbours_die(
    huge_page: int, actions: Actions, capacity: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_HAS_HUGE_PAGES", huge_page > 0)
        patch.setattr(blocks, "_HUGE_PAGE", huge_page or 2 * MIB)
        pool = BufferPool(capacity)
        kept = Kept(pool)
        for action, number in actions:
            if action == "take":
                reserved = pool.stats().reserved_nbytes + size_class(number)
                if capacity is not None and reserved > capacity:
                    with pytest.raises(MemoryError, match="capacity"):
                        pool.empty(number, np.uint8)
                else:
                    kept.take(number)
            elif action == "drop":
                kept.drop(number)
            else:
                cached = pool.cached_nbytes
                freed = pool.trim(number)
                assert min(number, cached) <= freed == cached - pool.cached_nbytes
            kept.assert_right()
            kept.assert_counted()
        kept.arrays.clear()
        cached = pool.cached_nbytes
        assert pool.trim() == cached
        assert pool.cached_nbytes == pool.stats().reserved_nbytes == 0


@pytest.mark.parametrize("pages", [1, 3, 300])
def test_a_capacity_is_filled_to_the_last_page(pages: int) -> None:
    count = 20
    pool = BufferPool(size_class(pages * PAGE) * count)
    for _ in range(2):
        kept = Kept(pool)
        for _ in range(count):
            kept.take(pages * PAGE)
        with pytest.raises(MemoryError, match="capacity"):
            pool.empty(1, np.uint8)
        kept.assert_right()
        kept.arrays.clear()
        whole: Bytes = pool.empty(size_class(pages * PAGE) * 16, np.uint8)  # unmaps cached buffers
        del whole


def test_threads_take_drop_and_trim_without_touching_each_other() -> None:
    pool = BufferPool()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            choose = random.Random(seed)
            kept = Kept(pool)
            for _ in range(300):
                kept.take(choose.choice(SIZES[:8]))
                if choose.random() < 0.6:
                    kept.drop(choose.randrange(100))
                if choose.random() < 0.3:
                    pool.trim(choose.choice([1, MIB, None]))
                if choose.random() < 0.1:
                    kept.assert_right()
            kept.assert_right()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    pool.trim()
    stats = pool.stats()
    assert (stats.in_use_nbytes, stats.reserved_nbytes, stats.cached_nbytes) == (0, 0, 0)


# ---- memory returned to the system


def unmap_all(size: str) -> None:
    nbytes = int(size)
    for measured in (False, True):  # the first time, the interpreter's own memory grows
        before = memory("VmSize")
        pool = BufferPool()
        kept = Kept(pool)
        for _ in range(64 * MIB // size_class(nbytes)):
            kept.take(nbytes)
        if measured:
            assert memory("VmSize") - before >= 60 * MIB
        random.Random(nbytes).shuffle(order := list(kept.arrays))
        for number in order:
            del kept.arrays[number]
        pool.trim()
    assert memory("VmSize") - before < 8 * MIB


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("nbytes", [PAGE, 100_000, 2 * MIB - PAGE, 2 * MIB])
def test_all_memory_is_unmapped_once_all_arrays_have_died_and_were_trimmed(nbytes: int) -> None:
    isolated(unmap_all, nbytes)  # since memory of other tests is returned at any time


def give_back_beside_living_arrays() -> None:
    pool = BufferPool()
    before = memory("RssAnon")
    kept = Kept(pool)
    for _ in range(64):
        for _ in range(15):
            kept.take(128 << 10)
        kept.take(PAGE)
    assert memory("RssAnon") - before >= 110 * MIB
    small = {number: array for number, array in kept.arrays.items() if array.nbytes == PAGE}
    kept.arrays = small
    assert pool.trim() == 64 * 15 * (128 << 10)
    assert memory("RssAnon") - before < 16 * MIB
    kept.assert_right()


@linux_only
def test_memory_beside_living_arrays_goes_back_to_the_system() -> None:
    isolated(give_back_beside_living_arrays)


def take_many_small_arrays() -> None:
    pool = BufferPool()
    before = mappings()
    arrays: list[Bytes] = []
    for number in range(70_000):  # more than the system's default for vm.max_map_count
        arrays.append(pool.empty(PAGE, np.uint8))
        arrays[-1][:4] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
    assert mappings() - before < 200
    del arrays[::2]
    pool.trim()
    assert mappings() - before < 200
    for number, array in zip(range(1, 70_000, 2), arrays, strict=True):
        assert array[:4].tobytes() == number.to_bytes(4, "little")


@pytest.mark.slow
@linux_only
def test_many_small_arrays_take_few_mappings() -> None:
    isolated(take_many_small_arrays)


def leave_memory_to_living_arrays() -> None:
    before = memory("VmData")
    pool = BufferPool()
    kept = Kept(pool)
    for number in range(640):
        kept.take(200_000 if number % 10 else 2 * MIB)
    dead = weakref.ref(pool)
    arrays = kept.arrays
    for number in list(arrays):
        if number % 40:
            del arrays[number]
    kept = Kept(BufferPool())
    kept.arrays = arrays
    del pool
    gc.collect()
    kept.assert_right()
    assert dead() is not None  # an array keeps the blocks of its pool
    arrays.clear()
    assert dead() is None
    assert memory("VmData") - before < 16 * MIB


@linux_only
def test_a_pool_that_dies_leaves_its_memory_to_its_living_arrays_and_no_longer() -> None:
    isolated(leave_memory_to_living_arrays)


def take_the_last_memory() -> None:
    import resource

    pool = BufferPool()
    kept = Kept(pool)
    room = 60 * MIB
    with limit(resource.RLIMIT_AS, address_space() + room):
        with pytest.raises(MemoryError, match="the system gives no"):
            take_all(lambda: kept.take(64 << 10), [])
        assert pool.stats().reserved_nbytes > room - 4 * MIB, "there was memory left"
        kept.assert_right()
        kept.assert_counted()
        for _ in range(40):
            kept.drop(7)
        for _ in range(40):
            kept.take(64 << 10)
        kept.assert_right()
        kept.arrays.clear()
        pool.trim()
        kept.take(40 * MIB)


@linux_only
def test_arrays_are_had_until_memory_is_really_spent() -> None:
    isolated(take_the_last_memory)


def lock_all_memory() -> None:
    import ctypes

    if ctypes.CDLL(None).mlockall(1 | 2):  # MCL_CURRENT, MCL_FUTURE
        raise Unsupported("cannot lock memory here")
    kept = Kept(BufferPool())
    in_pieces(kept)
    kept.pool.trim()
    in_pieces(kept)
    kept.assert_right()
    kept.assert_counted()
    kept.arrays.clear()
    assert kept.pool.trim()
    assert not kept.pool.cached_nbytes


@linux_only
def test_memory_that_is_locked_can_be_trimmed() -> None:
    isolated(lock_all_memory)


# ---- in the middle of things


def in_the_middle(work: Callable[[], object]) -> Points:
    """Call ``work`` at each line of the code that cuts memory, as a signal or finalizer may."""
    return Points(lambda frame: work(), Code(blocks, extents), "lines")


def in_pieces(kept: Kept) -> None:
    """Leave holes of several sizes in the memory of a pool, and some cached."""
    for number in range(60):
        kept.take(PAGE * (1 + number % 8))
    for which in range(0, 40, 2):
        kept.drop(which)
    kept.pool.trim(10 * PAGE)


def test_finalizers_may_take_and_trim_in_the_middle_of_it() -> None:
    kept = Kept(BufferPool())
    in_pieces(kept)
    choose = random.Random(0)
    hits = itertools.count()

    def work() -> None:
        next(hits)
        kept.take(PAGE * choose.randint(1, 9))
        if choose.random() < 0.5:
            kept.drop(choose.randrange(1000))
        kept.pool.trim(choose.choice([0, PAGE, 5 * PAGE]))

    for number in range(30):
        with in_the_middle(work):
            kept.take(PAGE * (1 + number % 9))
            kept.pool.trim(PAGE)
        kept.drop(number)
        kept.drop(2 * number)
    assert next(hits) > 300
    kept.assert_right()
    kept.assert_counted()
    kept.arrays.clear()
    kept.pool.trim()
    in_pieces(kept)
    kept.assert_right()


@pytest.mark.slow
@linux_only
def test_a_child_forked_in_the_middle_of_it_has_a_pool_that_works() -> None:
    kept = Kept(BufferPool())
    in_pieces(kept)
    codes: list[int] = []

    def use() -> None:
        in_pieces(kept)
        kept.assert_right()
        kept.assert_counted()
        kept.arrays.clear()
        kept.pool.trim()
        in_pieces(kept)
        kept.assert_right()

    with in_the_middle(lambda: codes.append(run_in_fork(use))):
        kept.take(9 * PAGE)
        kept.pool.trim(PAGE)
    assert len(codes) > 30
    assert not any(codes)
    use()
