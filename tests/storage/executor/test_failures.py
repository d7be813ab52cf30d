"""Errors of I/O threads: the calls that raise them, and the arrays they keep alive."""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from offgrad_storage import (
    DiskStore,
    Entry,
    MissingDataError,
    StoreError,
    StoreFullError,
)
from offgrad_storage.testing import eventually

from tests.storage.gate import Setup, in_thread


def test_a_failed_write_loses_nothing_and_the_next_put_raises_it(setup: Setup) -> None:
    other = setup.put(2)
    setup.backend.permits.release()
    other.wait_captured()
    setup.backend.failures.append(OSError(errno.ENOSPC, "No space left on device"))
    handle = setup.put(1)
    setup.backend.permits.release()
    setup.failed(handle)
    assert not handle.captured
    assert (handle.get() == 1).all()
    with pytest.raises(StoreFullError, match=r"array 2 .*writing failed.*No space.*Free"):
        setup.put(3)
    setup.backend.open.set()
    third = setup.put(3)
    for _ in range(2):
        with pytest.raises(
            StoreFullError, match=r"GateStore, array 1 .*writing failed.*No space.*Free"
        ):
            handle.check()
        handle.prefetch()
        assert (handle.get() == 1).all()
    assert (third.get() == 3).all()
    assert (other.get() == 2).all()
    setup.store.close()  # raises nothing: a put did


def test_an_array_whose_write_failed_is_copied_by_wait_captured(setup: Setup) -> None:
    setup.backend.failures.append(OSError(errno.EIO, "Input/output error"))
    array = np.full(100, 7, np.uint8)
    handle = setup.store.put(array)
    setup.backend.open.set()
    handle.wait_captured()
    assert handle.captured
    array[:] = 0
    assert (handle.get() == 7).all()
    with pytest.raises(StoreError, match="Input/output"):
        handle.check()


def test_an_array_whose_write_failed_is_written_at_flush(setup: Setup) -> None:
    setup.backend.failures.append(OSError(errno.EIO, "Input/output error"))
    handle = setup.put(1)
    setup.backend.open.set()
    setup.failed(handle)
    assert setup.backend.kept == {}
    setup.store.flush()
    handle.check()
    assert handle.captured
    assert setup.pool.in_use_nbytes == 0
    assert setup.backend.kept[0] == bytes([1] * 100)
    assert (setup.put(2).get() == 2).all()  # no error is left


@pytest.mark.parametrize("fails_again", [False, True])
def test_close_of_a_kept_store_raises_what_is_missing_only(
    setups: list[Setup], fails_again: bool
) -> None:
    """A put raises the error of a failed write, then flush writes the array, or fails again."""
    setup = Setup(keeps=True)
    error = OSError(errno.EIO, "Input/output error")
    setup.backend.failures.append(error)
    handle = setup.put(1)
    setup.backend.open.set()
    setup.failed(handle)
    with pytest.raises(StoreError, match="Input/output"):
        setup.put(2)
    setup.backend.failures += [error] * fails_again
    setup.store.flush()
    assert handle.captured != fails_again
    with pytest.raises(StoreError, match="Input/output") if fails_again else nullcontext():
        setup.store.close()


def test_a_write_that_fails_twice_during_a_read_is_in_flight_once(setup: Setup) -> None:
    setup.backend.failures += [OSError(errno.EIO, "Input/output error")] * 2
    handle = setup.put(1)
    table = setup.store._executor._table
    with table.lock:
        source = table.begin_read(handle._entry)
    setup.backend.open.set()
    setup.failed(handle)
    flushing, _ = in_thread(setup.store.flush)
    eventually(lambda: not setup.backend.failures)
    setup.failed(handle)
    assert source is not None
    with table.lock:
        table.end_read(handle._entry, pinned=True)
    flushing.join()
    setup.store._check()
    assert setup.store.stats().inflight_nbytes == 0
    with pytest.raises(StoreError, match="Input/output"):
        handle.check()


def test_arrays_whose_writes_failed_stay_within_the_bytes_in_flight(setup: Setup) -> None:
    setup.backend.failures += [OSError(errno.EIO, "Input/output error")] * 50
    setup.backend.open.set()
    handles, errors = [], 0
    for number in range(30):
        try:
            handles.append(setup.put(number, 300))
        except StoreError:
            errors += 1
        assert setup.pool.in_use_nbytes <= 1000
    assert errors >= 10
    for handle in handles:
        assert len({*handle.get().tolist()}) == 1
    del handle, handles
    setup.backend.failures.clear()
    assert (setup.put(1, 900).get() == 1).all()
    setup.store.close()  # puts have raised all errors


def test_an_unreported_error_of_a_write_is_raised_by_close(setups: list[Setup]) -> None:
    setup = Setup()
    setup.backend.failures += [OSError(errno.EIO, "Input/output error"), ValueError("odd")]
    handles = [setup.put(1), setup.put(2)]
    setup.backend.open.set()
    for handle in handles:
        setup.failed(handle)
    del handle, handles
    with pytest.raises(StoreError, match="drive reports") as caught:
        setup.store.close()
    assert isinstance(caught.value.__cause__, OSError)
    assert "odd" in caught.value.__notes__[0]
    assert setup.backend.closed
    setup.store.close()


def test_an_array_dies_while_its_failed_write_is_tried_again(setup: Setup) -> None:
    setup.backend.failures += [OSError(errno.EIO, "Input/output error")] * 2
    handle = setup.put(1)
    setup.backend.permits.release()
    setup.failed(handle)
    with pytest.raises(StoreError, match="Input/output"):
        setup.put(2)
    flushing, _ = in_thread(setup.store.flush)
    eventually(lambda: setup.backend.log.count("write 0") == 2)
    del handle
    gc.collect()
    assert setup.store.stats().live_handles == 0
    setup.backend.open.set()
    flushing.join()
    assert not setup.backend.failures
    setup.store.close()  # raises nothing: a put did


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


def test_an_unreported_error_of_a_prefetch_is_raised_by_close(setups: list[Setup]) -> None:
    setup = Setup()
    setup.backend.open.set()
    handle = setup.put(1)
    handle.wait_captured()
    setup.backend.failures.append(RuntimeError("odd"))
    handle.prefetch()
    eventually(lambda: setup.store._executor._table.errors.unreported)
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
            handle.check()
        del caught
        assert setup.pool.in_use_nbytes == 0
        reference = weakref.ref(handle)
        del handle
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["free", "shrink"])
def test_an_error_of_freeing_harms_no_array_that_is_being_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("odd")

    store = DiskStore(tmp_path, codec="zstd", pack_below_nbytes=1 << 20 if method == "free" else 0)
    monkeypatch.setattr(store._executor.backend, method, fail)
    handle = store.put(np.zeros(1 << 18))
    handle.wait_captured()
    assert (handle._entry.pack is not None) is (method == "free")
    assert not handle.get().any()
    with pytest.raises(StoreError, match=r"array 0 .*freeing space failed.*odd"):
        store.close()


def test_the_free_job_of_an_array_that_moves_into_a_pack_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DiskStore(tmp_path, codec="zstd") as store:
        backend = store._executor.backend
        free = backend.free
        done: list[int] = []

        def free_later(entry: Entry) -> Callable[[], None]:
            free(entry)
            return lambda: done.append(entry.serial)

        monkeypatch.setattr(backend, "free", free_later)
        handle = store.put(np.zeros(1 << 18))
        eventually(lambda: done == [0])
        assert not handle.get().any()


@pytest.mark.parametrize("keeps", [False, True])
def test_a_put_without_a_thread_leaves_nothing(
    keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    setup = Setup(keeps=keeps)
    setup.backend.open.set()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreError, match="starting an I/O thread failed") as caught:
            setup.put(1)
        stats = setup.store.stats()
        assert (stats.puts, stats.live_handles, stats.logical_nbytes) == (0, 0, 0)
        assert (stats.stored_nbytes, stats.inflight_nbytes) == (0, 0)
        del caught
    handle = setup.put(2)
    assert (handle.get() == 2).all()
    assert setup.store.stats().live_handles == 1
    setup.store.close()


def test_an_error_in_making_room_names_its_cause(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.backend.open.set()
    failure = OSError(errno.EMFILE, "Too many open files")

    def fail(entry: Entry) -> int:
        raise failure

    for method in ("reserve", "prepare"):
        with monkeypatch.context() as patched:
            patched.setattr(setup.backend, method, fail)
            with pytest.raises(StoreError, match=r"array \d .*making room.*ulimit") as caught:
                setup.put(1)
        assert caught.value.__cause__ is failure
    assert (setup.put(2).get() == 2).all()
    assert setup.store.stats().puts == 1
