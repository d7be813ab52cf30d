"""TieredStore against the contract, and its tiers."""

from __future__ import annotations

import dataclasses
import errno
import functools
import gc
import itertools
import os
import random
import signal
import threading
import weakref
from collections.abc import Iterator, Mapping
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
from numpy.typing import ArrayLike, NDArray
from offgrad_storage import (
    AbstractArrayStore,
    BufferPool,
    DiskStore,
    ForkedStoreError,
    Handle,
    MemoryCounter,
    MissingDataError,
    PoolStore,
    QuotaExceededError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreStats,
    TieredStore,
)
from offgrad_storage.testing import MakeStore, StoreContract, eventually
from offgrad_storage.testing.helpers import run_in_fork
from offgrad_storage.tiered.invariants import check_invariants
from offgrad_storage.tiered.ram import RamTier
from offgrad_storage.tiered.states import TierEntry

from tests.storage.gate import Setup, in_thread
from tests.storage.tiered.waiting import waits

Array = NDArray[Any]


@pytest.mark.parametrize("nbytes", [0, 5000, 1 << 30])
class TieredContract(StoreContract):
    """Budgets that hold nothing, little and everything."""


class TestTieredStoreOverPool(TieredContract):
    @pytest.fixture
    def make_store(self, nbytes: int) -> MakeStore:
        return lambda **options: TieredStore(nbytes, PoolStore(**options), **options)


class TestTieredStoreOverDisk(TieredContract):
    @pytest.fixture
    def make_store(self, nbytes: int, tmp_path: Path) -> MakeStore:
        return lambda **options: TieredStore(nbytes, DiskStore(tmp_path), **options)


class TestTieredStoreOverTieredStore(TieredContract):
    @pytest.fixture
    def make_store(self, nbytes: int, tmp_path: Path) -> MakeStore:
        return lambda **options: TieredStore(
            nbytes, TieredStore(20_000, DiskStore(tmp_path)), **options
        )


class Gated:
    """A TieredStore over a store behind a gate, and perhaps over others."""

    def __init__(self, nbytes: int, *others: AbstractArrayStore) -> None:
        self.gate = Setup()
        self.pool = BufferPool()
        self.store = TieredStore(
            nbytes, self.gate.store, *others, allocate=self.pool.empty, hold=self.pool.empty
        )

    def fail(self, number: int) -> None:
        self.gate.backend.failures.append(OSError(number, "injected"))


@pytest.fixture
def gated() -> Iterator[Gated]:
    """Room for three arrays of 100 bytes over a gate."""
    gated = Gated(300)
    yield gated
    gated.gate.backend.open.set()
    gated.store.close()


def put(store: AbstractArrayStore, value: int, nbytes: int = 100) -> Handle:
    return store.put(np.full(nbytes, value, np.uint8))


def holds(handle: Handle, value: int) -> bool:
    return bool((handle.get() == value).all())


def places(*handles: Handle) -> list[str]:
    return [handle._entry.tier_state.name for handle in handles]  # type: ignore[attr-defined]


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


# ---- the bound


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


# ---- the choice of evicted arrays


def test_arrays_that_fit_stay_in_ram(gated: Gated) -> None:
    handles = [put(gated.store, number) for number in range(3)]
    assert places(*handles) == ["ram"] * 3
    assert all(handle.captured for handle in handles)
    assert gated.pool.in_use_nbytes == gated.store.stats().stored_nbytes == 300
    assert all(holds(handle, number) for number, handle in enumerate(handles))
    assert gated.gate.store.stats().puts == 0


def test_the_oldest_moves_down_without_a_plan() -> None:
    with TieredStore(300, PoolStore()) as store:
        first, second, third = (put(store, number) for number in range(3))
        fourth = put(store, 3)
        assert places(first, second, third, fourth) == ["lower", "ram", "ram", "ram"]
        assert store.stats().stored_nbytes == 400
        del second
        fifth = put(store, 4)
        assert places(first, third, fourth, fifth) == ["lower", "ram", "ram", "ram"]
        sixth, seventh = put(store, 5), put(store, 6, 150)
        kept = (first, third, fourth, fifth, sixth, seventh)
        assert places(*kept) == ["lower"] * 4 + ["ram"] * 2
        assert [int(handle.get()[0]) for handle in kept] == [0, 2, 3, 4, 5, 6]


def test_the_furthest_planned_use_is_evicted_first() -> None:
    with TieredStore(300, PoolStore()) as store:
        a, b, c = (put(store, number) for number in range(3))
        store.plan([b, a, c])
        d = put(store, 3)
        assert places(a, b, c, d) == ["ram", "ram", "ram", "lower"]
        store.plan([d, b])
        e = put(store, 4)
        assert places(a, b, c, d, e) == ["lower", "ram", "ram", "lower", "ram"]
        store.plan([c, b, c])
        assert holds(c, 2)
        f = put(store, 5)
        assert places(b, c, e, f) == ["ram", "ram", "lower", "ram"]
        assert all(holds(handle, value) for value, handle in enumerate((a, b, c, d, e, f)))


def test_an_array_larger_than_ram_goes_below_at_once(gated: Gated) -> None:
    kept, large = put(gated.store, 1), put(gated.store, 2, 301)
    assert places(kept, large) == ["ram", "lower"]
    assert not large.captured
    assert holds(large, 2)
    gated.gate.backend.open.set()
    large.wait_captured()
    assert large.captured
    assert (kept.stored_nbytes, large.stored_nbytes) == (100, 150)


def test_a_plan_takes_handles_of_this_store_only() -> None:
    with TieredStore(300) as store, PoolStore() as other:
        mine, strange = put(store, 0), put(other, 0)
        with pytest.raises(ValueError, match="another store"):
            store.plan([mine, strange])
        other.plan([mine, strange])


def test_a_budget_is_not_negative() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        TieredStore(-1)


# ---- waiting


def test_put_waits_only_for_the_write_that_makes_its_room(gated: Gated) -> None:
    handles = [put(gated.store, number) for number in range(3)]
    thread, results = in_thread(lambda: put(gated.store, 3))
    gated.gate.started("write 0")
    assert not results
    assert holds(handles[0], 0)
    gated.gate.backend.permits.release()
    thread.join()
    gated.gate.started("write 1")  # ahead of the next put
    assert places(*handles) == ["lower", "writing", "ram"]
    assert holds(handles[1], 1)
    gated.gate.backend.permits.release()
    eventually(lambda: gated.gate.store.stats().inflight_nbytes == 0)
    handles.append(put(gated.store, 4))
    assert places(*handles) == ["lower", "lower", "writing", "ram"]
    assert gated.pool.in_use_nbytes == 300


def test_memory_of_a_dead_array_counts_while_it_is_being_written(gated: Gated) -> None:
    handles = [put(gated.store, number) for number in range(3)]
    thread, _ = in_thread(lambda: handles.append(put(gated.store, 3)))
    gated.gate.started("write 0")
    eventually(lambda: waits(thread.ident or 0))
    del handles[0]
    assert gated.pool.in_use_nbytes == gated.store._tiers.used_nbytes == 300
    gated.gate.backend.permits.release()
    thread.join()
    assert gated.pool.in_use_nbytes == 300
    gated.gate.backend.open.set()
    handles.clear()
    eventually(lambda: gated.pool.in_use_nbytes == 0)
    assert holds(put(gated.store, 4, 300), 4)
    assert gated.store._tiers.used_nbytes == 0 or gated.pool.in_use_nbytes == 0


def test_close_ends_a_put_that_waits(gated: Gated) -> None:
    handles = [put(gated.store, number) for number in range(3)]
    thread, results = in_thread(lambda: put(gated.store, 3))
    gated.gate.started("write 0")
    closing, _ = in_thread(gated.store.close)
    eventually(lambda: gated.store._tiers.closed)
    gated.gate.backend.open.set()
    thread.join()
    closing.join()
    assert isinstance(results.pop(), StoreError)
    assert gated.pool.in_use_nbytes == 0
    assert all(handle.captured for handle in handles)
    gated.store._check()


# ---- flush


def test_flush_waits_for_puts_below(gated: Gated) -> None:
    handle = put(gated.store, 1, 400)
    thread, results = in_thread(gated.store.flush)
    eventually(lambda: gated.gate.store._executor._table.write_waiters)
    assert not results
    gated.gate.backend.open.set()
    thread.join()
    assert results == [None]
    assert handle.captured
    assert gated.gate.backend.log == ["write 0"]


def test_flush_waits_for_evictions(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = [put(gated.store, value, nbytes) for value, nbytes in ((0, 300), (1, 400), (2, 400))]
    below = gated.gate.store
    puts, made = in_thread(lambda: put(gated.store, 3, 300))
    eventually(lambda: below._executor._table.write_waiters)  # the first does not fit in flight now
    entry: Any = handles[0]._entry
    assert entry.tier_state.is_moving
    seen: list[bool] = []
    flush = below.flush

    def look_and_flush() -> None:
        seen.append(entry.tier_state.is_moving)
        flush()

    monkeypatch.setattr(below, "flush", look_and_flush)
    thread, results = in_thread(gated.store.flush)
    gated.gate.backend.permits.release()
    gated.gate.started("write 1")
    eventually(lambda: seen)
    assert seen == [False]
    assert not results
    gated.gate.backend.open.set()
    thread.join()
    puts.join()
    assert results == [None]
    assert holds(handles[0], 0)
    assert isinstance(made[0], Handle)


def test_flush_ends_with_the_store(gated: Gated) -> None:
    gated.gate.backend.open.set()
    gated.store.close()
    with pytest.raises(StoreClosedError):
        gated.store.flush()


# ---- full and failing tiers


def test_full_tiers_are_passed_over() -> None:
    pool = BufferPool()
    with TieredStore(100, PoolStore(quota=250), PoolStore(quota=100), hold=pool.empty) as store:

        def figures() -> StoreStats:
            return dataclasses.replace(store.stats(), put_stall_seconds=0)

        handles = [put(store, number) for number in range(4)]
        assert [tier.stats().live_handles for tier in store.below] == [2, 1]
        before = figures(), places(*handles)
        with pytest.raises(QuotaExceededError, match=r"TieredStore, array 3 .*100 bytes") as error:
            put(store, 4)
        assert "while making room for array 4" in error.value.__notes__[0]
        assert before == (figures(), places(*handles))
        with pytest.raises(QuotaExceededError, match=r"TieredStore, array 5 .*PoolStore"):
            put(store, 5, 101)
        assert before == (figures(), places(*handles))
        assert all(holds(handle, number) for number, handle in enumerate(handles))
        del handles[0]
        assert holds(put(store, 6), 6)
        assert all(holds(handle, number) for number, handle in enumerate(handles, 1))
        assert pool.in_use_nbytes <= 100


def test_without_tiers_below_the_budget_is_a_quota() -> None:
    with TieredStore(100) as store:
        handle = put(store, 1)
        assert not store.reads_ahead
        with pytest.raises(QuotaExceededError, match=r"no tier below.*Raise nbytes"):
            put(store, 2)
        assert holds(handle, 1)


def test_a_tier_that_turns_out_full_while_writing_is_passed_over() -> None:
    gated = Gated(300, PoolStore())
    gated.fail(errno.ENOSPC)
    gated.gate.backend.open.set()
    handles = [put(gated.store, number) for number in range(4)]
    assert gated.store.below[1].stats().live_handles == 1
    assert all(holds(handle, number) for number, handle in enumerate(handles))
    gated.store.close()  # the error of the full disk was handled


def test_a_failed_write_is_raised_by_the_put_that_needs_the_room(gated: Gated) -> None:
    handles = [put(gated.store, number) for number in range(3)]
    gated.fail(errno.EIO)
    gated.gate.backend.open.set()
    with pytest.raises(StoreError, match=r"^TieredStore, array 0 .*GateStore.*injected"):
        put(gated.store, 3)
    assert places(*handles) == ["ram"] * 3
    assert all(holds(handle, number) for number, handle in enumerate(handles))
    assert gated.store.stats().live_handles == 3
    handles.append(put(gated.store, 3))
    assert all(holds(handle, number) for number, handle in enumerate(handles))


def test_a_failed_write_two_stores_down_loses_nothing() -> None:
    gate = Setup()
    gate.backend.failures.append(OSError(errno.EIO, "injected"))
    gate.backend.open.set()
    with TieredStore(300, TieredStore(0, gate.store)) as store:
        handles = [put(store, number) for number in range(3)]
        with pytest.raises(StoreError, match=r"^TieredStore, array 0 .*GateStore.*injected"):
            put(store, 3)
        assert all(holds(handle, number) for number, handle in enumerate(handles))


def test_a_tier_that_stays_full_leaves_everything_readable(gated: Gated) -> None:
    handles = [put(gated.store, number) for number in range(3)]
    gated.gate.backend.open.set()
    for _ in range(3):
        gated.fail(errno.ENOSPC)
        with pytest.raises(StoreFullError, match=r"^TieredStore, array 0 "):
            put(gated.store, 9)
    assert gated.pool.in_use_nbytes == 300
    assert all(holds(handle, number) for number, handle in enumerate(handles))


def test_a_failed_write_of_an_array_that_went_below_is_raised_by_check(gated: Gated) -> None:
    kept = put(gated.store, 0)
    gated.fail(errno.EIO)
    gated.gate.backend.open.set()
    lost = put(gated.store, 1, 400)
    lost.wait_captured()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"^TieredStore, array 1 .*GateStore, array 0 "):
            lost.check()
    assert holds(lost, 1)
    assert holds(kept, 0)


def test_an_unreported_error_of_a_failed_write_is_raised_by_close() -> None:
    gated = Gated(300)
    gated.fail(errno.EIO)
    gated.gate.backend.open.set()
    handle = put(gated.store, 1, 400)
    handle.wait_captured()
    with pytest.raises(StoreError, match=r"GateStore, array 0 .*injected"):
        gated.store.close()
    gated.store.close()


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


# ---- prefetch


def below_and_written(gated: Gated, *values: int) -> list[Handle]:
    """Arrays of 100 bytes, below alone."""
    gated.gate.backend.permits.release(len(values))
    stored = [put(gated.store, 0) for _ in range(3)]
    gated.store.plan(stored)
    handles = [put(gated.store, value) for value in values]
    for handle in handles:
        handle.wait_captured()
    assert places(*handles) == ["lower"] * len(values)
    return handles


def test_a_prefetch_takes_memory_until_its_get(gated: Gated) -> None:
    (handle,) = below_and_written(gated, 7)
    assert gated.store._tiers.used_nbytes == 0
    handle.prefetch()
    assert places(handle) == ["prefetching"]
    assert gated.pool.in_use_nbytes == gated.store._tiers.used_nbytes == 100
    gated.gate.backend.open.set()
    array = handle.get()
    assert gated.pool.owns(array)
    assert (array == 7).all()
    assert (gated.store.stats().prefetch_hits, gated.store._tiers.used_nbytes) == (1, 0)
    assert places(handle) == ["lower"]


def test_a_cancelled_prefetch_gives_its_room_back(gated: Gated) -> None:
    first, second = below_and_written(gated, 7, 8)
    for handle in (first, second):
        handle.prefetch()
    gated.gate.started("read 0")
    gated.store.cancel_prefetch(second)
    assert (gated.pool.in_use_nbytes, gated.store._tiers.used_nbytes) == (100, 100)
    del first, handle
    assert gated.store._tiers.used_nbytes == gated.pool.in_use_nbytes == 100  # being filled
    gated.gate.backend.open.set()
    eventually(lambda: gated.pool.in_use_nbytes == 0)
    assert holds(second, 8)


def test_a_prefetch_without_room_is_left_to_get(gated: Gated) -> None:
    handles = below_and_written(gated, 7, 8, 9, 10)
    for handle in handles:
        handle.prefetch()
    assert places(*handles) == ["prefetching"] * 3 + ["lower"]
    gated.gate.backend.open.set()
    assert all(holds(handle, value) for value, handle in enumerate(handles, 7))


def test_a_prefetched_array_is_evicted_for_a_sooner_use(gated: Gated) -> None:
    handles = below_and_written(gated, 7, 8, 9, 10)
    gated.store.plan(handles)
    gated.gate.backend.open.set()
    for handle in handles[::-1]:
        handle.prefetch()
    assert places(*handles) == ["prefetching"] * 3 + ["lower"]
    assert all(holds(handle, value) for value, handle in enumerate(handles, 7))
    assert gated.store._tiers.used_nbytes == 0


def test_an_array_in_ram_is_evicted_for_a_prefetch_used_sooner(gated: Gated) -> None:
    (handle,) = below_and_written(gated, 7)
    others = [put(gated.store, value) for value in range(3)]
    gated.gate.backend.open.set()
    gated.store.plan([others[0], handle, others[2], others[1]])
    handle.prefetch()
    assert places(*others) == ["ram", "writing", "ram"]
    eventually(lambda: gated.gate.store.stats().inflight_nbytes == 0)
    handle.prefetch()
    assert places(handle, *others) == ["prefetching", "ram", "lower", "ram"]
    gated.store.plan([*others, handle])
    gated.store.cancel_prefetch(handle)
    handle.prefetch()
    assert places(handle, *others) == ["prefetching", "ram", "lower", "ram"]
    assert holds(handle, 7)
    assert all(holds(other, value) for value, other in enumerate(others))


def test_prefetched_arrays_stay_longer(gated: Gated) -> None:
    (handle,) = below_and_written(gated, 7)
    gated.gate.backend.open.set()
    others = [put(gated.store, value) for value in range(2)]
    handle.prefetch()
    others[0].prefetch()
    new = [put(gated.store, value) for value in range(2, 4)]
    assert places(handle, *others, *new) == ["prefetching", "ram", "lower", "lower", "ram"]
    assert holds(handle, 7)
    assert all(holds(other, value) for value, other in enumerate(others + new))


def test_a_prefetch_without_room_below_for_its_victim_is_left_to_get() -> None:
    gate = Setup(quota=100)
    with TieredStore(100, gate.store) as store:
        gate.backend.open.set()
        large = put(store, 1)
        store.plan([large])
        handle = put(store, 2)
        assert places(large, handle) == ["ram", "lower"]
        handle.wait_captured()
        store.plan([handle, large])
        blocker = gate.store.put(np.zeros(50, np.uint8))
        handle.prefetch()
        assert places(large, handle) == ["ram", "lower"]
        assert holds(handle, 2)
        assert holds(large, 1)
        del blocker


def test_a_failed_write_is_not_for_a_prefetch_to_raise(gated: Gated) -> None:
    (handle,) = below_and_written(gated, 7)
    others = [put(gated.store, value) for value in range(3)]
    gated.store.plan([handle])
    handle.prefetch()  # the first of the others begins to leave
    gated.gate.started("write 1")
    gated.fail(errno.EIO)
    gated.gate.backend.open.set()
    eventually(lambda: gated.gate.store.stats().inflight_nbytes == 0)
    handle.prefetch()
    assert places(handle, *others) == ["lower", "ram", "ram", "ram"]
    with pytest.raises(StoreError, match=r"^TieredStore, array 4 .*injected"):
        put(gated.store, 9)
    assert holds(handle, 7)
    assert all(holds(other, value) for value, other in enumerate(others))


def test_the_last_target_of_a_prefetch_is_filled(gated: Gated) -> None:
    (handle,) = below_and_written(gated, 7)
    gated.gate.backend.open.set()
    handle.prefetch()
    first, second = np.empty(100, np.uint8), np.empty(100, np.uint8)
    handle.prefetch(first)
    assert gated.pool.in_use_nbytes == gated.store._tiers.used_nbytes == 0
    handle.prefetch(second)
    handle.prefetch()
    assert handle.get() is second
    assert (second == 7).all()


# ---- lifetimes


def test_a_handle_that_dies_while_its_array_moves_frees_the_memory() -> None:
    doomed: list[Handle] = []

    class Spy(TieredStore):
        """A lower tier in whose put the handle of the evicted array dies."""

        def put(
            self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None
        ) -> Handle:
            doomed.clear()
            return super().put(array, attributes=attributes)

    gate, pool = Setup(), BufferPool()
    with TieredStore(300, Spy(0, gate.store), allocate=pool.empty, hold=pool.empty) as store:
        gate.backend.permits.release()
        store.plan(full := [put(store, value) for value in range(3)])
        below = put(store, 7)
        below.wait_captured()
        del full
        doomed.append(put(store, 9))
        kept = [put(store, value) for value in range(2)]
        store.plan([below, *kept])
        below.prefetch()  # makes the doomed one move
        assert not doomed
        assert store.stats().live_handles == 3
        gate.backend.open.set()
        assert (below.get(np.empty(100, np.uint8)) == 7).all()
        eventually(lambda: pool.in_use_nbytes == 200)
        assert all(holds(handle, value) for value, handle in enumerate(kept))


def test_close_ends_a_put_that_is_blocked_below() -> None:
    gated = Gated(1200)
    handles = [put(gated.store, value, 600) for value in range(2)]
    threads = [in_thread(lambda: put(gated.store, 2, 1200))]
    gated.gate.started("write 0")  # the second does not fit in flight
    eventually(lambda: gated.gate.store._executor._table.write_waiters)
    assert places(*handles) == ["writing", "evicting"]
    closing, _ = in_thread(gated.store.close)
    eventually(lambda: gated.store._tiers.closed)
    gated.gate.backend.open.set()
    closing.join()
    for thread, results in threads:
        thread.join()
        assert isinstance(results[0], StoreError)
    assert gated.pool.in_use_nbytes == 0


def test_an_error_that_is_kept_keeps_no_array_of_the_store() -> None:
    pool = BufferPool()
    with TieredStore(100, PoolStore(quota=0), hold=pool.empty) as store:
        handle = put(store, 1)
        with pytest.raises(QuotaExceededError) as caught:
            put(store, 2)
        del handle
        assert pool.in_use_nbytes == 0
        del caught


def test_a_failed_prefetch_is_raised_by_get_and_then_forgotten(gated: Gated) -> None:
    (handle,) = below_and_written(gated, 7)
    gated.gate.backend.open.set()
    gated.gate.backend.failures.append(FileNotFoundError(errno.ENOENT, "gone"))
    handle.prefetch()
    gated.gate.started("read 0")
    with pytest.raises(MissingDataError, match=r"^TieredStore, array 3 .*gone"):
        handle.get()
    assert holds(handle, 7)
    assert gated.pool.in_use_nbytes == gated.store._tiers.used_nbytes == 0


def test_a_prefetch_into_an_array_in_ram_is_taken_by_get(gated: Gated) -> None:
    handle = put(gated.store, 5)
    target = np.empty(100, np.uint8)
    handle.prefetch(target)
    assert handle.get() is target
    assert (target == 5).all()
    handle.prefetch(target)
    gated.store.cancel_prefetch(handle)
    assert handle.get() is not target


def test_an_unclosed_store_dies_at_once() -> None:
    pool = BufferPool()
    gc.disable()
    try:
        store = TieredStore(300, PoolStore(hold=pool.empty), hold=pool.empty)
        handles = [put(store, value) for value in range(5)]
        references = weakref.ref(store), weakref.ref(store.below[0])
        del store, handles
        assert [reference() for reference in references] == [None, None]
        assert pool.in_use_nbytes == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("nbytes", [0, 1000])
def test_a_store_that_only_takes_arrays_forgets_the_dead_ones(nbytes: int) -> None:
    with TieredStore(nbytes, PoolStore()) as store:
        for value in range(50):
            put(store, value)
        assert len(store._tiers.ram.live) <= 2
        assert store.stats().live_handles == 0


def test_close_frees_the_memory_of_living_handles(gated: Gated) -> None:
    handles = [put(gated.store, value) for value in range(3)]
    gated.gate.backend.open.set()
    handles.append(put(gated.store, 3))
    gated.store.close()
    assert gated.pool.in_use_nbytes == gated.store._tiers.used_nbytes == 0
    stats = gated.store.stats()
    assert (stats.puts, stats.live_handles, stats.stored_nbytes) == (4, 0, 0)


# ---- the states


def test_an_illegal_transition_is_refused() -> None:
    tier = RamTier(100)
    entry = TierEntry(0, np.zeros(100, np.uint8), {})
    with pytest.raises(RuntimeError, match="it is new, so it cannot become ram"):
        tier.on_copied(entry, np.zeros(100, np.uint8))
    tier.begin_copy(entry)
    with pytest.raises(RuntimeError, match="it is copying in, so it cannot become copying in"):
        tier.begin_copy(entry)
    check_invariants(tier)
    assert tier.budget.used_nbytes == 100
    tier.on_copy_failed(entry)
    check_invariants(tier)
    assert tier.budget.used_nbytes == 0


def test_the_check_notices_a_wrong_figure(gated: Gated) -> None:
    handle = put(gated.store, 0)
    gated.store._check()
    tier = gated.store._tiers.ram
    tier.budget.resident_nbytes += 1
    with pytest.raises(AssertionError):
        gated.store._check()
    tier.budget.resident_nbytes -= 1
    tier.order.discard(handle._entry.serial)
    with pytest.raises(AssertionError):
        gated.store._check()
    tier.order.add(handle._entry.serial)
    gated.store._check()


# ---- memory below, and of packs


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


def test_packs_below_are_counted_and_trimmed(tmp_path: Path) -> None:
    disk, other = DiskStore(tmp_path), DiskStore(tmp_path)
    with TieredStore(0, TieredStore(0, disk), PoolStore(), other) as store:
        handle = put(store, 1, 5000)
        kept = other.put(np.zeros(5000, np.uint8))
        assert disk.packs_nbytes >= 5000
        assert store.packs_nbytes == disk.packs_nbytes + other.packs_nbytes
        store.trim()
        assert store.packs_nbytes == 0
        assert holds(handle, 1)
        del kept


# ---- the end


@pytest.mark.parametrize("dead", [False, True])
def test_an_unreported_error_of_a_failed_eviction_is_raised_by_close(dead: bool) -> None:
    gated = Gated(300)
    handles = below_and_written(gated, 7) + [put(gated.store, value) for value in range(3)]
    gated.store.plan(handles[:1])
    handles[0].prefetch()  # evicts the first of the others
    gated.gate.started("write 1")
    gated.fail(errno.EIO)
    gated.gate.backend.open.set()
    eventually(lambda: gated.gate.store.stats().inflight_nbytes == 0)
    handles[0].prefetch()  # finds the failure, and raises nothing
    assert places(*handles) == ["lower", "ram", "ram", "ram"]
    if dead:
        del handles[1]
    with pytest.raises(StoreError, match="injected"):
        gated.store.close()
    gated.store.close()
    gated.store._check()


def test_close_waits_a_bounded_time_and_says_for_what() -> None:
    pool, go_on, began = BufferPool(), threading.Event(), threading.Event()

    def hold(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        began.set()
        go_on.wait(60)
        return pool.empty(shape, dtype)

    store = TieredStore(300, PoolStore(), hold=hold, timeout_seconds=0.05)
    thread, results = in_thread(lambda: put(store, 1))
    began.wait(60)
    with pytest.raises(StoreError, match=r"waited 0\.05 s .*array 0 .* \(copying in\)"):
        store.close()
    store.close()
    assert not go_on.is_set()
    go_on.set()
    thread.join()
    assert isinstance(results[0], StoreClosedError)
    store._check()
    assert pool.in_use_nbytes == store._tiers.used_nbytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_drops_and_closes_an_inherited_store_without_waiting(gated: Gated) -> None:
    handles = [put(gated.store, value) for value in range(3)]
    putting, results = in_thread(lambda: put(gated.store, 3))
    gated.gate.started("write 0")
    held, go_on = threading.Event(), threading.Event()

    def hold_lock() -> None:
        with gated.store._tiers.lock:
            held.set()
            go_on.wait(60)

    holder, _ = in_thread(hold_lock)
    held.wait(60)

    def child() -> None:
        signal.alarm(30)  # ends a child that waits
        for _ in range(2):
            with pytest.raises(ForkedStoreError):
                handles[0].get()
            with pytest.raises(ForkedStoreError):
                handles[0].check()
            handles[0].wait_captured()
            handles.pop()
            gated.store.close()
        handles.clear()
        gc.collect()

    try:
        assert run_in_fork(child) == 0
    finally:
        go_on.set()
        holder.join()
    gated.gate.backend.open.set()
    putting.join()
    assert isinstance(results[0], Handle)
    assert all(holds(handle, value) for value, handle in enumerate(handles))


def test_a_dying_handle_frees_its_memory_while_another_thread_holds_the_lock() -> None:
    pool, held, go_on = BufferPool(), threading.Event(), threading.Event()
    lower = PoolStore(hold=pool.empty)
    with TieredStore(100, lower, allocate=pool.empty, hold=pool.empty) as store:
        small, large = put(store, 1, 50), put(store, 2, 200)
        prefetched = put(store, 3, 100)
        store.plan([prefetched])

        def hold_lock() -> None:
            with store._tiers.lock:
                held.set()
                go_on.wait(60)

        holder, results = in_thread(hold_lock)
        held.wait(60)
        try:
            assert pool.in_use_nbytes == 350
            del small, large, prefetched
            assert pool.in_use_nbytes == 0
        finally:
            go_on.set()
            holder.join()
        assert results == [None]
        store._check()
        assert store.stats().live_handles == lower.stats().live_handles == 0
