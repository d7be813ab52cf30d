"""Failures of runs: only the affected arrays raise errors, and no array is lost."""

from __future__ import annotations

import errno
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    AbstractArrayStore,
    CorruptionError,
    MissingDataError,
    QuotaExceededError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from offgrad_storage.testing import assert_same

from tests.storage.faults import files_under, flip, linux_only, open_files
from tests.storage.faults import place_of as find
from tests.storage.gate import in_thread
from tests.storage.runs import (
    KINDS,
    MIB,
    POOL,
    Calls,
    assert_readable,
    held,
    make,
    outcomes,
    place_of,
    pooled,
    prefetch_run,
    put_run,
    until,
    writes,
)

pytestmark = linux_only

Array = NDArray[Any]


def begun(calls: Calls, kind: str, count: int) -> None:
    """Wait until so many arrays are in a call that waits at the gate."""
    until(lambda: calls.of(kind) and len(calls.of(kind)[-1]) == count)


def in_use_nbytes() -> int:
    """Of reachable arrays."""
    gc.collect()
    return POOL.in_use_nbytes


# ---- less than asked


SHORT: dict[str, Callable[[str, int, int], int]] = {
    "half": lambda kind, offset, nbytes: max(nbytes // 2, 4096),
    "a few bytes less": lambda kind, offset, nbytes: max(nbytes - 7, 4096),
    "to the end of an array": lambda kind, offset, nbytes: min(nbytes, MIB),
    "into the second": lambda kind, offset, nbytes: min(nbytes, MIB + 8192),
}


@pytest.mark.parametrize("part", list(SHORT))
@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_a_short_call_is_moved_as_well(
    kind: str, part: str, tmp_path: Path, calls: Calls
) -> None:
    calls.fault = SHORT[part]
    with make(kind, tmp_path) as store:
        stored = put_run(calls, store, 6)
        assert max(map(len, calls.of("write"))) == 5
        prefetch_run(calls, stored)
        until(lambda: max(map(len, calls.of("read"))) == 5)
        assert_readable(stored)
        calls.heal()
        assert_readable(stored)


# ---- input/output errors


@pytest.mark.parametrize("where", [0, 3 * MIB + 5])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kind", KINDS)
def test_a_place_that_cannot_be_written_fails_its_array_alone(
    kind: str, code: int, where: int, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        stored = held(calls, store, [pooled(MIB, seed) for seed in range(6)])
        calls.fail_at("write", place_of(calls, 1) + where, code)
        calls.open.set()
        store.flush()
        assert max(map(len, calls.of("write"))) == 5
        bad = StoreFullError if code == errno.ENOSPC else StoreError
        expected = [bad if number == 1 + where // MIB else None for number in range(6)]
        assert writes(stored) == expected
        prefetch_run(
            calls, [pair for pair, error in zip(stored, expected, strict=True) if not error]
        )
        assert writes(stored) == expected
        calls.heal()
        assert writes(stored) == expected
        assert_readable(put_run(calls, store, 3))
        assert writes(stored) == [None] * 6, "a flush did not write what had failed"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_call_for_all_is_none_of_any_that_can_be_written(
    kind: str, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        for code in (errno.EIO, errno.ENOSPC, errno.EINVAL, errno.ENOMEM):
            stored = held(calls, store, [pooled(MIB, seed) for seed in range(4)])
            last = len(calls.log)
            calls.fault = _fail_runs(code)
            calls.open.set()
            store.flush()
            prefetch_run(calls, stored)
            assert_readable(stored)
            assert {len(each) for _, _, each in calls.log[last:]} >= {1, 3}
            calls.heal()


def _fail_runs(code: int) -> Callable[[str, int, int], None]:
    def fault(kind: str, offset: int, nbytes: int) -> None:
        if nbytes > MIB:
            raise OSError(code, os.strerror(code))

    return fault


@pytest.mark.parametrize("kind", KINDS)
def test_an_unreported_error_of_a_run_is_raised_by_close(
    kind: str, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        stored = held(calls, store, [pooled(MIB, seed) for seed in range(4)])
        calls.fail_at("write", place_of(calls, 2), errno.EIO)
        calls.open.set()
        store.flush()
        handles = [handle for handle, _ in stored]
        with pytest.raises(StoreError, match="Input/output error") as caught:
            store.close()
        assert caught.value.handle in repr(handles[2])
        assert not getattr(caught.value, "__notes__", [])
        store.close()


@pytest.mark.parametrize("where", [MIB - 1, 3 * MIB])
@pytest.mark.parametrize("kind", KINDS)
def test_a_place_that_cannot_be_read_fails_its_array_alone(
    kind: str, where: int, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        stored = put_run(calls, store, 6)
        calls.fail_at("read", place_of(calls, 1) + where, errno.EIO)
        expected = [StoreError if number == 1 + where // MIB else None for number in range(6)]
        for ordered, errors in ((stored, expected), (stored[::-1], expected[::-1])):
            prefetch_run(calls, ordered)
            until(lambda: max(map(len, calls.of("read"))) == 5)
            assert outcomes(ordered) == errors
        calls.heal()
        assert_readable(stored)


# ---- files changed by other programs


@pytest.mark.parametrize("bad", [2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_corrupts_its_array_alone(
    kind: str, bad: int, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        stored = put_run(calls, store, 6)
        place = find(stored[bad][1], tmp_path)
        assert place is not None
        flip(place[0], place[1] + MIB - 1)
        expected = [CorruptionError if number == bad else None for number in range(6)]
        for ordered, errors in ((stored, expected), (stored[::-1], expected[::-1])):
            prefetch_run(calls, ordered)
            until(lambda: max(map(len, calls.of("read"))) == 5)
            assert outcomes(ordered) == errors
        flip(place[0], place[1] + MIB - 1)
        assert_readable(stored)


@pytest.mark.parametrize("cut", [1, 3 * MIB, 4 * MIB - 4096])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_a_truncated_file_is_read(
    kind: str, cut: int, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        stored = put_run(calls, store, 6)
        (file,) = [path for path in files_under(tmp_path) if path.stat().st_size >= 6 * MIB]
        os.truncate(file, place_of(calls, 6) - cut)
        whole = 6 - -(-cut // MIB)
        expected = [None if number < whole else MissingDataError for number in range(6)]
        prefetch_run(calls, stored)
        until(lambda: max(map(len, calls.of("read"))) == 5)
        assert outcomes(stored) == expected
        assert outcomes(stored) == expected


# ---- concurrent changes


@pytest.mark.parametrize("kind", KINDS)
def test_handles_dropped_while_their_run_is_written_free_their_space(
    kind: str, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path, quota=8 * MIB) as store:
        stored = held(calls, store, [pooled(MIB, seed) for seed in range(8)])
        calls.permits.release()
        begun(calls, "write", 7)
        del stored[1::2]
        assert_readable(stored)  # from their sources
        calls.open.set()
        store.flush()
        assert store.stats().stored_nbytes == store.stats().logical_nbytes == 4 * MIB
        assert_readable(stored)
        stored += [(store.put(array), array) for array in (pooled(MIB, 10 + k) for k in range(4))]
        with pytest.raises(QuotaExceededError):
            store.put(pooled(MIB, 20))
        prefetch_run(calls, stored)
        assert_readable(stored)


@pytest.mark.parametrize("kind", KINDS)
def test_handles_dropped_while_their_run_is_read_free_their_space_and_memory(
    kind: str, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        stored = put_run(calls, store, 8)
        before = in_use_nbytes()
        calls.open.clear()
        stored[0][0].prefetch()
        begun(calls, "read", 1)
        for handle, _ in stored[1:]:
            handle.prefetch()
        calls.permits.release()
        begun(calls, "read", 7)
        assert in_use_nbytes() == before + 8 * MIB
        del handle
        del stored[1::2]  # the sources of four arrays die as well
        cancelling, _ = in_thread(lambda: store.cancel_prefetch(stored[2][0]))
        assert store.stats().stored_nbytes == 8 * MIB  # a read is under way there
        calls.open.set()
        cancelling.join()
        until(lambda: store.stats().stored_nbytes == 4 * MIB)
        assert_readable(put_run(calls, store, 4))
        assert_readable(stored)
        assert in_use_nbytes() == before - 4 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_may_change_once_it_is_captured_in_a_run(
    kind: str, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        stored = held(calls, store, [pooled(MIB, seed) for seed in range(8)])
        assert not any(handle.captured for handle, _ in stored)
        copies = [array.copy() for _, array in stored]
        waiting, _ = in_thread(stored[4][0].wait_captured)
        calls.open.set()
        waiting.join()
        stored[4][1][:] = 0
        store.flush()
        for (handle, array), copy in zip(stored, copies, strict=True):
            assert handle.captured
            array[:] = 1
            assert_same(handle.get(), copy)


@pytest.mark.parametrize("kind", KINDS)
def test_close_from_several_threads_waits_for_the_runs_under_way(
    kind: str, tmp_path: Path, calls: Calls
) -> None:
    before = in_use_nbytes()
    store = make(kind, tmp_path)
    stored = held(calls, store, [pooled(MIB, seed) for seed in range(6)])
    calls.permits.release()
    begun(calls, "write", 5)
    late = [(store.put(array), array) for array in (pooled(MIB, 9), pooled(MIB, 10))]
    closing = [in_thread(store.close) for _ in range(4)]
    until(lambda: late[1][0].captured)  # cancelled
    assert all(thread.is_alive() for thread, _ in closing)
    assert open_files(tmp_path)
    calls.open.set()
    for thread, _ in closing:
        thread.join()
    assert [results for _, results in closing] == [[None]] * 4
    assert not open_files(tmp_path)
    assert set(outcomes(stored + late)) == {StoreClosedError}
    stored.clear()
    late.clear()
    assert in_use_nbytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_close_while_a_run_is_read_and_one_of_it_is_waited_for(
    kind: str, tmp_path: Path, calls: Calls
) -> None:
    store = make(kind, tmp_path)
    stored = put_run(calls, store, 6)
    calls.open.clear()
    stored[0][0].prefetch()
    begun(calls, "read", 1)
    for handle, _ in stored[1:]:
        handle.prefetch()
    calls.permits.release()
    begun(calls, "read", 5)
    getting, results = in_thread(stored[3][0].get)
    closing, closed = in_thread(store.close)
    calls.open.set()
    getting.join()
    closing.join()
    assert closed == [None]
    (found,) = results
    if isinstance(found, np.ndarray):
        assert_same(found, stored[3][1])
    else:
        assert isinstance(found, StoreClosedError)


def test_a_background_error_is_raised_by_one_close_of_many(tmp_path: Path, calls: Calls) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            store = make("disk", tmp_path)
            calls.fail_at("write", 0, errno.EIO)
            handle = store.put(pooled(MIB, 0))
            store.flush()
            calls.heal()
            together = threading.Barrier(8)
            closing = [in_thread(functools.partial(_close, store, together)) for _ in range(8)]
            for thread, _ in closing:
                thread.join()
            raised = [results[0] for _, results in closing if results[0] is not None]
            assert len(raised) == 1
            assert isinstance(raised[0], StoreError)
            assert raised[0].handle in repr(handle)
    finally:
        sys.setswitchinterval(interval)


def _close(store: AbstractArrayStore, together: threading.Barrier) -> None:
    together.wait()
    store.close()


# ---- prefetch of packed arrays


def test_a_packed_prefetch_allocates_in_get(tmp_path: Path) -> None:
    taken: list[int] = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if refuse:
            raise MemoryError("not now")
        taken.append(1)
        return np.empty(shape, dtype)

    refuse = False
    with make("disk", tmp_path, allocate=allocate) as store:
        stored = [(store.put(array), array) for array in (pooled(1000, k) for k in range(50))]
        store.flush()
        for handle, _ in stored:
            handle.prefetch()
        assert not taken
        refuse = True
        with pytest.raises(MemoryError, match="not now"):
            stored[0][0].get()
        target = np.empty(1000, np.uint8)
        stored[1][0].prefetch(target)
        assert stored[1][0].get() is target
        assert_same(target, stored[1][1])
        assert_same(stored[2][0].get(target), stored[2][1])
        refuse = False
        store.cancel_prefetch(stored[3][0])
        del stored[10:20], handle
        assert_readable(stored)
        assert len(taken) == 40
        assert store.stats().gets == 42
