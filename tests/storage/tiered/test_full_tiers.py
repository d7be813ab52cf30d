"""Lower tiers that are full or fail: no array is lost, and the right put raises."""

from __future__ import annotations

import dataclasses
import errno

import pytest
from offgrad_storage import (
    BufferPool,
    PoolStore,
    QuotaExceededError,
    StoreError,
    StoreFullError,
    StoreStats,
    TieredStore,
)

from tests.storage.gate import Setup
from tests.storage.tiered.gated import Gated, holds, places, put


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
