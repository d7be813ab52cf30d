"""The close of a TieredStore, and a forked child that inherits one."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    BufferPool,
    ForkedStoreError,
    Handle,
    PoolStore,
    StoreClosedError,
    StoreError,
    TieredStore,
)
from offgrad_storage.testing import eventually
from offgrad_storage.testing.helpers import run_in_fork

from tests.storage.gate import in_thread
from tests.storage.tiered.gated import Gated, below_and_written, holds, places, put

Array = NDArray[Any]


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


def test_close_frees_the_memory_of_living_handles(gated: Gated) -> None:
    handles = [put(gated.store, value) for value in range(3)]
    gated.gate.backend.open.set()
    handles.append(put(gated.store, 3))
    gated.store.close()
    assert gated.pool.in_use_nbytes == gated.store._tiers.used_nbytes == 0
    stats = gated.store.stats()
    assert (stats.puts, stats.live_handles, stats.stored_nbytes) == (4, 0, 0)


def test_an_unreported_error_of_a_failed_write_is_raised_by_close() -> None:
    gated = Gated(300)
    gated.fail(errno.EIO)
    gated.gate.backend.open.set()
    handle = put(gated.store, 1, 400)
    handle.wait_captured()
    with pytest.raises(StoreError, match=r"GateStore, array 0 .*injected"):
        gated.store.close()
    gated.store.close()


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
