"""Write-behind and prefetch, on a backend whose every read and write waits for a permit."""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    Backend,
    BackendStore,
    BufferPool,
    Entry,
    Handle,
    MissingDataError,
    QuotaExceededError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from offgrad_storage.testing import MakeStore, StoreContract, eventually

Array = NDArray[Any]


class GateBackend(Backend):
    """Keeps bytes in a dict; logs each action, then waits for a permit or the open gate."""

    def __init__(self, quota: int | None = None, keeps: bool = False) -> None:
        super().__init__("GateStore", quota)
        self.keeps = keeps
        self.kept: dict[int, bytes] = {}
        self.log: list[str] = []
        self.permits = threading.Semaphore(0)
        self.open = threading.Event()
        self.failures: deque[BaseException] = deque()
        self.closed = 0

    def _pass(self, action: str, entry: Entry) -> None:
        self.log.append(f"{action} {entry.serial}")
        while not self.open.is_set() and not self.permits.acquire(timeout=0.005):
            pass
        if self.failures:
            raise self.failures.popleft()

    def write(self, entry: Entry, array: Array) -> int:
        self._pass("write", entry)
        self.kept[entry.serial] = array.tobytes()
        return array.nbytes // 2

    def read(self, entry: Entry, out: Array) -> None:
        self._pass("read", entry)
        out[...] = np.frombuffer(self.kept[entry.serial], out.dtype).reshape(out.shape)

    def free(self, entry: Entry) -> Callable[[], object]:
        def chore() -> None:
            self.log.append(f"free {entry.serial}")
            self.kept.pop(entry.serial, None)

        return chore

    def close(self) -> None:
        self.closed += 1


class TestGateStore(StoreContract):
    """A store of a few lines keeps the whole contract."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        def make(**options: Any) -> BackendStore:
            backend = GateBackend()
            backend.open.set()
            return BackendStore(backend, **options)

        return make


class Setup:
    def __init__(self, threads: int = 1, inflight: int = 1000, **options: Any) -> None:
        self.backend = GateBackend(**options)
        self.pool = BufferPool()
        self.store = BackendStore(
            self.backend, threads=threads, inflight_nbytes=inflight, allocate=self.pool.empty
        )

    def put(self, value: int, nbytes: int = 100) -> Handle:
        array = self.pool.empty(nbytes, np.uint8)
        array[:] = value
        return self.store.put(array)

    def started(self, what: str) -> None:
        eventually(lambda: what in self.backend.log)


@pytest.fixture
def setups() -> Iterator[list[Setup]]:
    made: list[Setup] = []
    yield made
    for setup in made:
        setup.backend.open.set()
        setup.store.close()
        assert setup.backend.closed


@pytest.fixture
def setup(setups: list[Setup]) -> Setup:
    setups.append(Setup())
    return setups[0]


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_put_returns_before_the_write_and_get_reads_the_source(setup: Setup) -> None:
    first, second = setup.put(1), setup.put(2)
    setup.started("write 0")
    assert not first.captured
    assert not second.captured
    assert (first.get() == 1).all()
    assert (second.get() == 2).all()
    assert setup.backend.log == ["write 0"]
    assert setup.store.stats().inflight_nbytes == 200
    setup.backend.permits.release()
    first.wait_captured()
    assert setup.pool.in_use_nbytes == 100
    assert setup.store.stats().inflight_nbytes == 100
    assert first.stored_nbytes == 50
    setup.backend.open.set()
    assert (first.get() == 1).all()
    assert "read 0" in setup.backend.log


def test_put_blocks_when_the_bytes_in_flight_are_spent(setup: Setup) -> None:
    first = setup.put(1, 600)
    second = setup.put(2, 400)
    thread, results = in_thread(lambda: setup.put(3, 100))
    eventually(lambda: setup.store._executor._write_waiters == 1)
    assert not results
    assert setup.store.stats().inflight_nbytes == 1000
    setup.backend.permits.release()
    thread.join()
    assert isinstance(results[0], Handle)
    assert first.captured
    assert not second.captured
    assert setup.store.stats().put_stall_seconds > 0
    setup.backend.open.set()


def test_an_array_larger_than_the_bound_goes_alone(setup: Setup) -> None:
    large = setup.put(1, 5000)
    thread, results = in_thread(lambda: setup.put(2, 1))
    eventually(lambda: setup.store._executor._write_waiters == 1)
    setup.backend.open.set()
    thread.join()
    assert isinstance(results[0], Handle)
    assert large.captured


def test_a_dropped_handle_cancels_its_write(setup: Setup) -> None:
    first, second, third = setup.put(1), setup.put(2), setup.put(3)
    setup.started("write 0")
    del second
    assert setup.pool.in_use_nbytes == 200
    assert setup.store.stats().inflight_nbytes == 200
    setup.backend.open.set()
    third.wait_captured()
    eventually(lambda: sorted(setup.backend.log) == ["free 1", "write 0", "write 2"])
    assert first.captured


def test_a_handle_dropped_during_its_write_is_freed_after_it(setup: Setup) -> None:
    handle = setup.put(1)
    setup.started("write 0")
    del handle
    assert setup.pool.in_use_nbytes == 100
    setup.backend.open.set()
    eventually(lambda: setup.backend.log == ["write 0", "free 0"])
    eventually(lambda: not setup.backend.kept)
    assert setup.pool.in_use_nbytes == 0
    assert setup.store.stats().stored_nbytes == 0


def test_a_drop_lets_a_blocked_put_go_on(setup: Setup) -> None:
    first, second = setup.put(1, 500), setup.put(2, 500)
    setup.started("write 0")
    thread, results = in_thread(lambda: setup.put(3, 500))
    eventually(lambda: setup.store._executor._write_waiters == 1)
    del second
    thread.join()
    assert isinstance(results[0], Handle)
    assert not first.captured


def test_a_write_that_someone_waits_for_goes_first(setup: Setup) -> None:
    handles = [setup.put(number) for number in range(4)]
    setup.started("write 0")
    thread, _ = in_thread(handles[3].wait_captured)
    eventually(lambda: setup.store._executor._write_waiters == 1)
    setup.backend.permits.release(2)
    thread.join()
    assert setup.backend.log[:2] == ["write 0", "write 3"]
    assert not handles[1].captured


def test_prefetches_go_before_writes_that_nobody_waits_for(setup: Setup) -> None:
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
    eventually(lambda: setup.store._executor._write_waiters == 1)
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


def test_a_failed_write_is_raised_by_every_get_and_then_not_by_close(setup: Setup) -> None:
    other = setup.put(2)
    setup.backend.permits.release()
    other.wait_captured()
    setup.backend.failures.append(OSError(errno.ENOSPC, "No space left on device"))
    handle = setup.put(1)
    setup.backend.open.set()
    handle.wait_captured()
    assert setup.pool.in_use_nbytes == 0
    for _ in range(2):
        with pytest.raises(
            StoreFullError, match=r"GateStore, array 1 .*writing failed.*No space.*Free"
        ):
            handle.get()
        handle.prefetch()
    assert (other.get() == 2).all()
    with pytest.raises(StoreFullError):
        handle.get()
    setup.store.close()


def test_a_failed_write_that_nobody_got_is_raised_by_close(setups: list[Setup]) -> None:
    setup = Setup()
    setup.backend.failures += [OSError(errno.EIO, "Input/output error"), ValueError("odd")]
    handles = [setup.put(1), setup.put(2)]
    setup.backend.open.set()
    for handle in handles:
        handle.wait_captured()
    del handle, handles
    with pytest.raises(StoreError, match="drive reports") as caught:
        setup.store.close()
    assert isinstance(caught.value.__cause__, OSError)
    assert "odd" in caught.value.__notes__[0]
    assert setup.backend.closed
    setup.store.close()


def test_a_failed_prefetch_is_raised_by_get_and_then_forgotten(setup: Setup) -> None:
    setup.backend.open.set()
    handle = setup.put(1)
    handle.wait_captured()
    setup.backend.failures.append(FileNotFoundError(errno.ENOENT, "gone"))
    handle.prefetch()
    setup.started("read 0")
    with pytest.raises(MissingDataError, match="gone"):
        handle.get()
    assert (handle.get() == 1).all()
    assert setup.pool.in_use_nbytes == 0


def test_a_failed_prefetch_that_nobody_got_is_raised_by_close(setups: list[Setup]) -> None:
    setup = Setup()
    setup.backend.open.set()
    handle = setup.put(1)
    handle.wait_captured()
    setup.backend.failures.append(RuntimeError("odd"))
    handle.prefetch()
    eventually(lambda: setup.store._executor._undelivered)
    with pytest.raises(StoreError, match="odd"):
        setup.store.close()


def test_errors_keep_no_arrays_alive(setup: Setup) -> None:
    setup.backend.open.set()
    setup.backend.failures.append(RuntimeError("odd"))
    handle = setup.put(1)
    handle.wait_captured()
    gc.disable()
    try:
        with pytest.raises(StoreError) as caught:
            handle.get()
        del caught
        assert setup.pool.in_use_nbytes == 0
        reference = weakref.ref(handle)
        del handle
        assert reference() is None
    finally:
        gc.enable()


def test_close_cancels_what_is_queued_and_waits_for_what_runs(setup: Setup) -> None:
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
    eventually(lambda: setup.store._executor._write_waiters == 1)
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
    eventually(lambda: setup.store._executor._closed)
    assert not setup.backend.closed
    setup.backend.open.set()
    reading.join()
    closing.join()
    assert isinstance(results[0], np.ndarray)


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


def test_the_quota_waits_for_writes_that_turn_out_smaller(setups: list[Setup]) -> None:
    setups.append(setup := Setup(quota=150))
    first = setup.put(1)
    thread, results = in_thread(lambda: setup.put(2))
    eventually(lambda: setup.store._executor._write_waiters == 1)
    setup.backend.open.set()
    thread.join()
    assert isinstance(results[0], Handle)
    results[0].wait_captured()
    with pytest.raises(QuotaExceededError, match="GateStore, array 2"):
        setup.put(3)
    assert setup.store.stats().stored_nbytes == 100
    assert (first.get() == 1).all()


def test_bad_options() -> None:
    for options in ({"threads": -1}, {"inflight_nbytes": -1}):
        with pytest.raises(ValueError, match="at least 0"):
            BackendStore(backend := GateBackend(), **options)  # type: ignore[arg-type]
        assert backend.closed
    with pytest.raises(ValueError, match="quota"):
        GateBackend(quota=-1)
