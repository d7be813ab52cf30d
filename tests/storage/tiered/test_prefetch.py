"""Prefetches from lower tiers into RAM or into an array of the user."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from offgrad_storage import (
    MissingDataError,
    StoreError,
    TieredStore,
)
from offgrad_storage.testing import eventually

from tests.storage.gate import Setup
from tests.storage.tiered.gated import Gated, below_and_written, holds, places, put


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


def test_a_prefetch_into_an_array_in_ram_is_taken_by_get(gated: Gated) -> None:
    handle = put(gated.store, 5)
    target = np.empty(100, np.uint8)
    handle.prefetch(target)
    assert handle.get() is target
    assert (target == 5).all()
    handle.prefetch(target)
    gated.store.cancel_prefetch(handle)
    assert handle.get() is not target
