"""Prefetches: their order, their gets, and their cancellation."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import BufferPool, DiskStore
from offgrad_storage.executor.scheduler import IOScheduler
from offgrad_storage.testing import eventually

from tests.storage.gate import Setup, in_thread


def test_prefetches_go_before_writes_that_no_thread_waits_for(setup: Setup) -> None:
    stored = [setup.put(number) for number in range(2)]
    setup.backend.permits.release(2)
    stored[1].wait_captured()
    writes = [setup.put(number) for number in (2, 3)]
    setup.started("write 2")
    for handle in stored:
        handle.prefetch()
    setup.backend.open.set()
    writes[1].wait_captured()
    assert (stored[0].get() == 0).all()
    assert setup.backend.log[2] == "write 2"
    assert setup.backend.log.index("read 0") < 5


def test_awaited_writes_go_before_prefetches(setup: Setup) -> None:
    stored = [setup.put(number) for number in range(2)]
    setup.backend.permits.release(2)
    stored[1].wait_captured()
    writes = [setup.put(number) for number in (2, 3)]
    setup.started("write 2")
    for handle in stored:
        handle.prefetch()
    thread, _ = in_thread(writes[1].wait_captured)
    eventually(lambda: setup.store._executor._table.write_waiters == 1)
    setup.backend.permits.release(2)
    thread.join()
    assert setup.backend.log[2:4] == ["write 2", "write 3"]


def test_get_takes_over_a_prefetch_that_has_not_begun(setup: Setup) -> None:
    first, second = setup.put(1), setup.put(2)
    setup.backend.permits.release(2)
    second.wait_captured()
    first.prefetch()
    setup.started("read 0")
    target = np.empty(100, np.uint8)
    second.prefetch(target)
    thread, results = in_thread(second.get)
    setup.started("read 1")
    setup.backend.open.set()
    thread.join()
    assert results[0] is target
    assert (target == 2).all()
    assert (first.get() == 1).all()
    assert setup.backend.log.count("read 1") == setup.backend.log.count("read 0") == 1
    assert setup.store.stats().prefetch_hits == 1


def test_get_waits_for_a_prefetch_under_way(setup: Setup) -> None:
    handle = setup.put(1)
    setup.backend.permits.release()
    handle.wait_captured()
    target = np.empty(100, np.uint8)
    handle.prefetch(target)
    setup.started("read 0")
    thread, results = in_thread(handle.get)
    assert not results
    setup.backend.open.set()
    thread.join()
    assert results[0] is target
    assert setup.backend.log.count("read 0") == 1
    assert setup.store.stats().get_stall_seconds > 0


def test_two_gets_never_share_one_prefetched_array(setup: Setup) -> None:
    handle = setup.put(1)
    setup.backend.permits.release()
    handle.wait_captured()
    handle.prefetch()
    setup.started("read 0")
    waiting = [in_thread(handle.get) for _ in range(3)]
    setup.backend.open.set()
    for thread, _ in waiting:
        thread.join()
    arrays = [results[0] for _, results in waiting]
    assert all(isinstance(array, np.ndarray) and (array == 1).all() for array in arrays)
    assert len({id(array) for array in arrays}) == 3
    assert setup.pool.stats().arrays == 3


def test_a_cancelled_prefetch_gives_its_memory_back(setup: Setup) -> None:
    handle, blocker = setup.put(1), setup.put(2)
    setup.backend.permits.release(2)
    blocker.wait_captured()
    blocker.prefetch()
    setup.started("read 1")
    handle.prefetch()
    assert setup.pool.in_use_nbytes == 200
    del handle
    assert setup.pool.in_use_nbytes == 100


def test_a_thread_that_has_read_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the get may run late."""
    notified, late = threading.Event(), threading.Event()
    fetch = IOScheduler._fetch_run

    def descheduled(self: Any, run: list[Any], job: Any) -> None:
        fetch(self, run, job)
        notified.set()
        late.wait(60)

    monkeypatch.setattr(IOScheduler, "_fetch_run", descheduled)
    pool = BufferPool()
    with DiskStore(tmp_path, allocate=pool.empty) as store:
        first, second = (store.put(np.arange(1 << 20)) for _ in range(2))
        store.flush()
        first.prefetch()
        assert notified.wait(60)
        assert first.get()[5] == 5
        assert not pool.in_use_nbytes
        late.set()
        second.prefetch()
        assert second.get()[7] == 7
