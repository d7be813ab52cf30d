"""Errors of I/O threads: who is told, and what they keep alive."""

from __future__ import annotations

import errno
import gc
import weakref

import pytest
from offgrad_storage import MissingDataError, StoreError, StoreFullError
from offgrad_storage.testing import eventually

from tests.storage.gate import Setup


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
