"""A drive that does not answer: close and the exit give up, and say what they waited for."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from offgrad_storage import BackendStore, Entry, Handle, StoreClosedError, StoreError
from offgrad_storage.testing import eventually

from tests.storage.conftest import RunPython
from tests.storage.gate import GateBackend, in_thread

SECONDS = 0.3


def silent(threads: int = 1, keeps: bool = False) -> tuple[BackendStore, GateBackend]:
    backend = GateBackend(keeps=keeps)
    return BackendStore(backend, threads=threads, timeout_seconds=SECONDS), backend


@pytest.mark.parametrize("keeps", [False, True])
def test_close_gives_up_and_names_what_it_waited_for(keeps: bool) -> None:
    store, backend = silent(keeps=keeps)
    handles = [store.put(np.full(100, number, np.uint8)) for number in range(3)]
    eventually(lambda: backend.log)
    with pytest.raises(
        StoreError, match=r"GateStore: the drive has not answered for \d+ seconds"
    ) as (caught):
        store.close()
    assert "GateStore I/O 0 has been writing array 0 (uint8 (100,), 100 bytes)" in str(caught.value)
    assert ("2 writes wait" in str(caught.value)) is keeps
    assert "timeout_seconds" in caught.value.fix
    assert not backend.closed, "the thread may still use it"
    store.close()
    with pytest.raises(StoreClosedError):
        handles[0].get()
    for handle in handles[1:]:
        with pytest.raises(StoreClosedError):
            handle.get()
    backend.open.set()  # the drive answers after all
    eventually(lambda: backend.closed)
    eventually(lambda: not [each for each in threading.enumerate() if "GateStore" in each.name])


def test_calls_that_wait_end_with_close() -> None:
    store, backend = silent()
    handle = store.put(np.zeros(100))
    eventually(lambda: backend.log)
    waiting = [in_thread(each) for each in (store.flush, handle.wait_captured, store.trim)]
    eventually(lambda: store._executor._table.write_waiters >= 2)
    with pytest.raises(StoreError, match="not answered"):
        store.close()
    for thread, results in waiting:
        thread.join(60)
        assert not thread.is_alive()
        assert results[0] is None or isinstance(results[0], StoreError)
    backend.open.set()
    eventually(lambda: backend.closed)


def test_a_get_of_a_prefetch_that_never_ends_ends_with_close() -> None:
    store, backend = silent()
    handle = store.put(np.zeros(100))
    backend.permits.release()
    handle.wait_captured()
    handle.prefetch()
    eventually(lambda: "read 0" in backend.log)
    thread, results = in_thread(handle.get)
    with pytest.raises(StoreError, match=r"has been reading array 0"):
        store.close()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(results[0], StoreClosedError)
    backend.open.set()
    eventually(lambda: backend.closed)


def test_close_gives_up_on_a_write_of_another_caller() -> None:
    store, backend = silent(threads=0)
    writer, results = in_thread(lambda: store.put(np.zeros(100)))
    eventually(lambda: backend.log)
    closer, raised = in_thread(store.close)
    closer.join(60)
    assert not closer.is_alive()
    assert "has been writing array 0" in str(raised[0])
    backend.open.set()
    writer.join(60)
    assert isinstance(results[0], Handle)
    assert backend.closed == 1, "by the last one who used it"


def test_close_gives_up_on_a_read_of_another_caller() -> None:
    store, backend = silent()
    handle = store.put(np.ones(100))
    backend.permits.release()
    handle.wait_captured()
    reader, results = in_thread(handle.get)
    eventually(lambda: "read 0" in backend.log)
    closer, raised = in_thread(store.close)
    closer.join(60)
    assert "has been reading array 0" in str(raised[0])
    assert not backend.closed
    backend.open.set()
    reader.join(60)
    assert (np.asarray(results[0]) == 1).all()
    eventually(lambda: backend.closed == 1)


@pytest.mark.parametrize("threads", [0, 1])
def test_close_gives_up_on_a_close_of_another_thread(threads: int) -> None:
    store, backend = silent(threads)
    may_close = threading.Event()
    backend.open.set()
    store.put(np.zeros(100))
    began, end = threading.Event(), backend.close

    def close_slowly() -> None:
        began.set()
        may_close.wait(60)
        end()

    backend.close = close_slowly  # type: ignore[method-assign]
    first, results = in_thread(store.close)
    began.wait(60)
    second, raised = in_thread(store.close)
    second.join(10)
    hangs = second.is_alive()
    may_close.set()
    first.join(60)
    second.join(60)
    assert not hangs
    assert isinstance(raised[0], StoreError)
    assert "has been closing" in str(raised[0])
    assert results == [None]
    assert backend.closed == 1


def test_close_gives_up_on_a_reservation_that_does_not_end() -> None:
    store, backend = silent()
    backend.open.set()
    began, may_end, reserve = threading.Event(), threading.Event(), backend.reserve

    def reserve_slowly(entry: Entry) -> int:
        began.set()
        may_end.wait(60)
        return reserve(entry)

    backend.reserve = reserve_slowly  # type: ignore[method-assign]
    writer, results = in_thread(lambda: store.put(np.ones(100)))
    began.wait(60)
    closer, raised = in_thread(store.close)
    closer.join(10)
    hangs = closer.is_alive()
    may_end.set()
    closer.join(60)
    writer.join(60)
    assert not hangs
    assert "waits for it in a call of the backend" in str(raised[0])
    (handle,) = results
    assert isinstance(handle, Handle)
    assert (handle.get() == 1).all(), "the store was not closed"
    store.close()
    assert backend.closed == 1


def test_a_timeout_may_be_infinite() -> None:
    backend = GateBackend()
    backend.open.set()
    BackendStore(backend, timeout_seconds=float("inf")).close()
    assert backend.closed == 1


def test_a_slow_drive_that_answers_is_waited_for() -> None:
    store, backend = silent(keeps=True)
    handles = [store.put(np.full(100, number, np.uint8)) for number in range(4)]
    thread, results = in_thread(store.close)
    for number in range(4):
        eventually(lambda number=number: f"write {number}" in backend.log)  # type: ignore[misc]
        threading.Event().wait(SECONDS / 2)
        backend.permits.release()
    thread.join(60)
    assert results == [None]
    assert len(backend.kept) == 4
    del handles


def test_the_exit_of_the_interpreter_gives_up(run_python: RunPython) -> None:
    ran = run_python(
        """
        import sys, threading
        import numpy as np
        from tests.storage.gate import GateBackend
        from offgrad_storage import BackendStore
        stores = [BackendStore(GateBackend(), timeout_seconds=0.3) for _ in range(3)]
        handles = [store.put(np.zeros(100)) for store in stores]
        while not all(store._executor.backend.log for store in stores):
            pass
        locked = BackendStore(GateBackend(), timeout_seconds=0.3)
        locked._executor._table.lock.acquire()  # as a call of the backend that does not end
        sys.kept = stores, handles, locked
        """
    )
    assert ran.returncode == 0
    lines = ran.stderr.strip().splitlines()
    assert len(lines) == 4
    for line in lines:
        assert "offgrad_storage: at exit: GateStore: the drive has not answered" in line
    assert sum("writing array 0" in line for line in lines) == 3


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_timeout_is_positive(seconds: float) -> None:
    backend = GateBackend()
    with pytest.raises(ValueError, match="timeout_seconds must be positive"):
        BackendStore(backend, timeout_seconds=seconds)
    assert backend.closed
