"""The end of a store: completed and cancelled jobs, and waiting threads."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
from offgrad_storage import StoreClosedError
from offgrad_storage.testing import eventually

from tests.storage.gate import Setup, in_thread


def test_close_cancels_queued_jobs_and_waits_for_running_ones(setup: Setup) -> None:
    handles = [setup.put(number) for number in range(3)]
    setup.started("write 0")
    thread, results = in_thread(setup.store.close)
    eventually(lambda: handles[2].captured)
    assert not handles[0].captured
    assert thread.is_alive()
    setup.backend.open.set()
    thread.join()
    assert results == [None]
    assert setup.backend.log == ["write 0"]
    assert setup.pool.in_use_nbytes == 0


def test_close_writes_everything_that_is_to_be_kept(setups: list[Setup]) -> None:
    setups.append(setup := Setup(keeps=True))
    handles = [setup.put(number) for number in range(3)]
    del handles[1:]
    thread, _ = in_thread(setup.store.close)
    setup.backend.open.set()
    thread.join()
    assert setup.backend.log == ["write 0", "write 1", "write 2"]
    assert len(setup.backend.kept) == 3


def test_close_wakes_a_blocked_put(setup: Setup) -> None:
    first = setup.put(1, 900)
    thread, results = in_thread(lambda: setup.put(2, 900))
    eventually(lambda: setup.store._executor._table.write_waiters == 1)
    closing, _ = in_thread(setup.store.close)
    thread.join()
    assert isinstance(results[0], StoreClosedError)
    setup.backend.open.set()
    closing.join()
    assert first.captured


def test_close_waits_for_readers(setup: Setup) -> None:
    handle = setup.put(1)
    setup.backend.permits.release()
    handle.wait_captured()
    reading, results = in_thread(handle.get)
    setup.started("read 0")
    closing, _ = in_thread(setup.store.close)
    eventually(lambda: setup.store._executor._table.closed)
    assert not setup.backend.closed
    setup.backend.open.set()
    reading.join()
    closing.join()
    assert isinstance(results[0], np.ndarray)


def test_a_prefetch_that_close_cancelled_may_be_cancelled_again(setup: Setup) -> None:
    """An interrupted backward pass cancels its prefetches after its store was closed."""
    setup.backend.permits.release(2)
    handles = [setup.put(number) for number in range(2)]
    setup.store.flush()
    for handle in handles:
        handle.prefetch(setup.pool.empty(100, np.uint8))
    setup.started("read 0")
    closing, _ = in_thread(setup.store.close)
    eventually(lambda: setup.store._executor._table.closed)
    setup.backend.open.set()
    closing.join()
    cancel = setup.store.cancel_prefetch
    cancelling = threading.Thread(target=lambda: list(map(cancel, handles)), daemon=True)
    cancelling.start()
    cancelling.join(10)
    assert not cancelling.is_alive()
    assert "read 1" not in setup.backend.log
    assert setup.pool.in_use_nbytes == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_an_unclosed_store_ends_its_work_and_closes_the_backend(threads: int) -> None:
    setup = Setup(threads)
    handles = [setup.put(number) for number in range(5)]
    setup.started("write 0")
    before = [thread for thread in threading.enumerate() if "GateStore" in thread.name]
    assert len(before) == threads
    del handles
    reference = weakref.ref(setup.store)
    del setup.store
    assert reference() is None
    setup.backend.open.set()
    eventually(lambda: setup.backend.closed == 1)
    for thread in before:
        thread.join()
    assert len(setup.backend.log) <= 2 * threads
    assert setup.pool.in_use_nbytes == 0
