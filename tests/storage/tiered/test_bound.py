"""The memory of a TieredStore stays within its budget."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray
from offgrad_storage import (
    AbstractArrayStore,
    BufferPool,
    DiskStore,
    Handle,
    MemoryCounter,
    PoolStore,
    TieredStore,
)

from tests.storage.gate import in_thread
from tests.storage.tiered.gated import holds, places, put

Array = NDArray[Any]


class Meter:
    """Two pools whose bytes are added up."""

    def __init__(self) -> None:
        self.counter = MemoryCounter()
        self.hold = BufferPool(counter=self.counter)
        self.rising = BufferPool(counter=self.counter)
        self.callers = BufferPool()
        self.getting = threading.local()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory of the store, unless a get asks: that is the caller's."""
        pool = self.callers if getattr(self.getting, "now", False) else self.rising
        return pool.empty(shape, dtype)

    def get(self, handle: Handle, out: Array | None = None) -> Array:
        self.getting.now = True
        try:
            return handle.get(out)
        finally:
            self.getting.now = False

    def most(self) -> int:
        return self.counter.peak


class BoundMachine(RuleBasedStateMachine):
    """A TieredStore against a dict, and its memory against its budget."""

    directory: Path

    @initialize(
        nbytes=st.sampled_from([0, 400, 1000, 5000]), tiers=st.sampled_from(["p", "d", "pd"])
    )
    def start(self, nbytes: int, tiers: str) -> None:
        self.nbytes = nbytes
        self.meter = Meter()
        below: list[AbstractArrayStore] = []
        if tiers == "pd":
            below.append(PoolStore(quota=1500))
        below.append(PoolStore() if tiers == "p" else DiskStore(self.directory))
        self.store = TieredStore(
            nbytes, *below, allocate=self.meter.allocate, hold=self.meter.hold.empty
        )
        self.model: dict[int, tuple[Handle, Array]] = {}
        self.count = 0

    @rule(size=st.integers(0, 600))
    def put(self, size: int) -> None:
        self.count += 1
        array = np.full(size, self.count % 251, np.uint8)
        self.model[self.count] = self.store.put(array), array

    def any_of(self, data: st.DataObject) -> tuple[Handle, Array]:
        return self.model[data.draw(st.sampled_from(sorted(self.model)))]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), into=st.booleans())
    def get(self, data: st.DataObject, into: bool) -> None:
        handle, expected = self.any_of(data)
        found = self.meter.get(handle, np.empty_like(expected) if into else None)
        assert np.array_equal(found, expected)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), into=st.booleans())
    def prefetch(self, data: st.DataObject, into: bool) -> None:
        handle, expected = self.any_of(data)
        handle.prefetch(np.empty_like(expected) if into else None)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def cancel_prefetch(self, data: st.DataObject) -> None:
        self.store.cancel_prefetch(self.any_of(data)[0])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        order = data.draw(st.lists(st.sampled_from(sorted(self.model)), max_size=20))
        self.store.plan([self.model[key][0] for key in order])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def wait_captured(self, data: st.DataObject) -> None:
        handle, _ = self.any_of(data)
        handle.wait_captured()
        assert handle.captured

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        del self.model[data.draw(st.sampled_from(sorted(self.model)))]

    @invariant()
    def bounds_hold(self) -> None:
        if hasattr(self, "store"):
            assert self.meter.most() <= self.nbytes
            assert self.meter.counter.allocated <= self.store._tiers.used_nbytes <= self.nbytes
            self.store._check()
            stats = self.store.stats()
            assert stats.live_handles == len(self.model)
            assert stats.logical_nbytes == sum(array.nbytes for _, array in self.model.values())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for handle, expected in self.model.values():
                assert np.array_equal(self.meter.get(handle), expected)
            self.store.close()
            assert self.meter.most() <= self.nbytes
            assert self.meter.counter.allocated == 0
            assert self.store._tiers.used_nbytes == 0


def test_the_bound_holds_under_any_actions(tmp_path: Path) -> None:
    class Machine(BoundMachine):
        directory = tmp_path

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


def test_the_bound_holds_with_many_threads(tmp_path: Path) -> None:
    meter = Meter()
    store = TieredStore(20_000, DiskStore(tmp_path), allocate=meter.allocate, hold=meter.hold.empty)
    shared = store.put(np.full(3000, 99, np.uint8))

    def work(number: int) -> None:
        chance = random.Random(number)
        mine: list[tuple[Handle, Array]] = []
        for _ in range(150):
            array = np.full(chance.randrange(6000), chance.randrange(250), np.uint8)
            mine.append((store.put(array), array))
            handle, expected = chance.choice(mine)
            if chance.random() < 0.5:
                handle.prefetch()
                shared.prefetch()
            if chance.random() < 0.2:
                store.cancel_prefetch(shared)
            if chance.random() < 0.1:
                store.plan([each for each, _ in chance.sample(mine, len(mine))])
            assert np.array_equal(handle.get(np.empty_like(expected)), expected)
            assert (shared.get(np.empty(3000, np.uint8)) == 99).all()
            del handle
            if chance.random() < 0.7:
                del mine[chance.randrange(len(mine))]

    threads = [in_thread(functools.partial(work, number)) for number in range(4)]
    for thread, results in threads:
        thread.join()
        assert results == [None]
    assert meter.most() <= 20_000
    assert store.stats().live_handles == 1
    store.close()
    assert meter.counter.allocated == store._tiers.used_nbytes == 0


def test_hold_may_cut_its_arrays_from_one_large_one() -> None:
    arena = np.empty(2000, np.uint8)
    offsets = itertools.count(0, 100)

    def cut(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.ndarray(shape, dtype, arena, next(offsets))

    with TieredStore(100, hold=cut) as store:
        for value in range(20):
            assert holds(put(store, value), value)


def test_memory_error_of_hold_stores_nothing() -> None:
    pool = BufferPool(capacity=4096)
    with TieredStore(10_000, PoolStore(), hold=pool.empty) as store:
        first = put(store, 1)
        with pytest.raises(MemoryError, match="capacity"):
            put(store, 2, 5000)
        assert (store.stats().live_handles, store._tiers.used_nbytes) == (1, 100)
        assert holds(first, 1)


def test_a_put_whose_eviction_finds_no_memory_below_loses_nothing() -> None:
    lower = BufferPool(capacity=4096)
    with TieredStore(6000, PoolStore(hold=lower.empty)) as store:
        first, second = put(store, 1, 5000), put(store, 2, 100)
        with pytest.raises(MemoryError, match="capacity"):
            put(store, 3, 5000)
        store._check()
        store.plan([second, first])
        small = put(store, 4, 2000)  # used last
        assert places(first, second, small) == ["ram", "ram", "lower"]
        store.plan([small, second, first])
        small.prefetch()  # `first` finds no memory below
        assert places(first, second, small) == ["ram", "ram", "lower"]
        store._check()
        assert holds(first, 1)
        assert holds(second, 2)
        assert holds(small, 4)
