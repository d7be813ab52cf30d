"""MemoryCounter: exact whenever it is read, and after SIGINT, collections and forks."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from offgrad_storage import BufferPool, MemoryCounter
from offgrad_storage.memory import blocks, buffer_pool, counter
from offgrad_storage.testing.helpers import run_in_fork

from tests.interrupts import interrupt_everywhere


class Owner:
    """An object that can die, also with a cycle."""

    def __init__(self) -> None:
        self.other: object = None


@pytest.fixture
def _eager_collection() -> Iterator[None]:
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(1, 1, 1)
    sys.setswitchinterval(1e-6)
    yield
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval)


def test_deaths_count_at_once() -> None:
    meter = MemoryCounter()
    owners = [Owner() for _ in range(3)]
    for owner in owners:
        meter.add(owner, 10)
    assert (meter.allocated, meter.peak) == (30, 30)
    del owner, owners[0]
    assert (meter.allocated, meter.peak) == (20, 30)
    meter.reset_peak()
    assert meter.peak == 20
    owners.clear()
    assert meter.allocated == 0
    assert not meter._live


def test_an_owner_that_dies_in_a_cycle_counts_until_it_is_collected() -> None:
    meter = MemoryCounter()
    owner = Owner()
    owner.other = owner
    meter.add(owner, 10)
    del owner
    assert meter.allocated == 10
    gc.collect()
    assert meter.allocated == 0


def test_a_dead_object_makes_room_for_the_next() -> None:
    meter = MemoryCounter()
    meter.limit = 10
    for _ in range(5):
        owner = Owner()
        meter.add(owner, 10)
        with pytest.raises(MemoryError, match="limited to 10 bytes: 1 more"):
            meter.add(Owner(), 1)
        del owner
    assert (meter.allocated, meter.peak) == (0, 10)


def test_moved_bytes_count_until_the_successor_dies() -> None:
    meter = MemoryCounter()
    first, second, third = Owner(), Owner(), Owner()
    meter.add(first, 10)
    meter.move(first, second)
    meter.move(first, third)  # no longer counted
    del first
    assert meter.allocated == 10
    del second
    assert meter.allocated == 0
    assert not meter._live


@pytest.mark.usefixtures("_eager_collection")
def test_counts_are_exact_while_collections_run_everywhere() -> None:
    meter = MemoryCounter()
    pool = BufferPool(counter=meter)
    failures: list[BaseException] = []
    kept: list[list[Any]] = [[] for _ in range(4)]

    def work(seed: int) -> None:
        choose = random.Random(seed)
        mine = kept[seed]
        try:
            for _ in range(150):
                owner: Any = Owner()
                size = choose.randrange(1, 9000)
                if choose.random() < 0.5:
                    meter.add(owner, size)
                else:
                    owner = pool.empty(size, np.uint8)
                cycle = [owner] if choose.random() < 0.5 else []
                cycle.append(cycle)
                mine.append((owner, size))
                del owner
                if len(mine) > 6:
                    del mine[choose.randrange(len(mine))]
                assert meter.allocated >= sum(nbytes for _, nbytes in mine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    gc.collect()
    assert meter.allocated == sum(nbytes for mine in kept for _, nbytes in mine)
    assert pool.stats().arrays == sum(isinstance(each, np.ndarray) for m in kept for each, _ in m)
    kept.clear()
    assert meter.allocated == pool.in_use_nbytes == pool.stats().reserved_nbytes == 0
    assert meter.peak > 0


def test_sigint_at_each_check_point_leaves_counts_and_buffers_right() -> None:
    meter = MemoryCounter()
    pool = BufferPool(counter=meter)
    kept = Owner()
    meter.add(kept, 7)
    pool.empty(5000)  # a cached buffer

    def action() -> None:
        owner, other = Owner(), Owner()
        meter.add(owner, 100)
        meter.move(owner, other)
        first = pool.empty(5000)
        second = pool.empty(5000)
        del owner, other, first
        pool.trim()
        assert meter.allocated == 7 + second.nbytes

    def check() -> None:
        assert meter.allocated == 7
        assert len(meter._live) == 1
        stats = pool.stats()
        assert (stats.in_use_nbytes, stats.arrays, stats.reserved_nbytes) == (0, 0, 0)
        assert not pool._live
        assert not pool._map_lock.is_owned
        pool.trim()
        assert pool._mapped_nbytes == 0
        assert not pool._blocks._slabs
        pool.empty(5000)

    assert interrupt_everywhere([counter, buffer_pool, blocks], action, check) >= 60


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_goes_on_counting() -> None:
    meter = MemoryCounter()
    owned = [Owner(), Owner()]
    for owner in owned:
        meter.add(owner, 10)
    del owner, owned[0]

    def use() -> None:
        other = Owner()
        meter.add(other, 5)
        assert meter.allocated == 15
        owned.clear()
        assert meter.allocated == 5

    assert run_in_fork(use) == 0
    assert meter.allocated == 10
