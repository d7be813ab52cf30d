"""Tests of the lifetimes of handles, stores, threads and processes."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offgrad_storage.base import AbstractArrayStore, Handle
from offgrad_storage.entry import Entry
from offgrad_storage.errors import ForkedStoreError, StoreClosedError, StoreError
from offgrad_storage.memory.buffer_pool import BufferPool
from offgrad_storage.testing.helpers import (
    MakeStore,
    StoreFixtures,
    assert_same,
    backends_of,
    eventually,
    run_in_fork,
    sample,
)

Array = NDArray[Any]


class LifetimeContract(StoreFixtures):
    """Tests of freeing, of use after close, of threads and of fork."""

    # ---- lifetimes

    def test_dead_handles_free_their_space(self, store: AbstractArrayStore) -> None:
        array = sample(np.float32, (1000,))
        handles = [store.put(array) for _ in range(10)]
        stats = store.stats()
        assert (stats.live_handles, stats.logical_nbytes) == (10, 40_000)
        for handle in handles[::2]:
            handle.wait_captured()
        del handle, handles[::2]
        assert all(each.get().tobytes() == array.tobytes() for each in handles)
        eventually(lambda: store.stats().live_handles == 5)
        handles.clear()
        eventually(lambda: not (store.stats().stored_nbytes or store.stats().inflight_nbytes))
        stats = store.stats()
        assert (stats.live_handles, stats.logical_nbytes) == (0, 0)
        assert stats.puts == 10

    def test_memory_comes_back(self, make_store: MakeStore) -> None:
        pool = BufferPool()
        with make_store(allocate=pool.empty) as store:
            for _ in range(20):
                array = pool.empty((30_000,))
                array.fill(3)
                handle = store.put(array)
                del array
                handle.prefetch()
                handle.get()
                handle.wait_captured()
                assert pool.in_use_nbytes == 0
            array = pool.empty((30_000,))
            handle = store.put(array)
            handle.prefetch()
            del array, handle
            eventually(lambda: pool.in_use_nbytes == 0)
            handles = [store.put(pool.empty((30_000,))) for _ in range(20)]
        assert pool.in_use_nbytes == 0
        del handles

    def test_handles_cannot_be_copied(self, store: AbstractArrayStore) -> None:
        handle = store.put(np.zeros(3))
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="Handle"):
                duplicate(handle)

    def test_handle_of_another_store(
        self, make_store: MakeStore, store: AbstractArrayStore
    ) -> None:
        with make_store() as other:
            handle = other.put(np.zeros(3))
            with pytest.raises(ValueError, match="another store"):
                store.get(handle)

    def test_python_objects_are_refused(self, store: AbstractArrayStore) -> None:
        for dtype in (object, [("a", "i4"), ("b", object)]):
            with pytest.raises(TypeError, match="Python objects"):
                store.put(np.zeros(3, dtype))
        assert store.stats().live_handles == 0

    def test_flush(self, store: AbstractArrayStore) -> None:
        array = sample(np.float32, (30_000,))
        handles = [store.put(array) for _ in range(10)]
        store.flush()
        assert all(handle.captured for handle in handles)
        assert store.stats().inflight_nbytes == 0
        assert_same(handles[3].get(), array)

    def test_a_failed_write_is_raised_by_check_and_loses_nothing(
        self, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed: list[Entry] = []

        def fail(entry: Entry, array: Array) -> int:
            failed.append(entry)
            raise OSError(errno.EIO, "injected")

        store = make_store()
        good = store.put(sample(np.float32, (500_000,)))
        store.flush()
        for backend in backends_of(store):
            monkeypatch.setattr(backend, "write", fail)
        array = sample(np.float32, (500_000,), 1)
        try:
            bad = store.put(array)
            store.flush()
        except StoreError:
            assert failed  # the put failed itself, so there is no handle
        else:
            if failed:
                with pytest.raises(StoreError, match="injected"):
                    bad.check()
            assert_same(bad.get(), sample(np.float32, (500_000,), 1))
            bad.wait_captured()
            array[:] = 0
            assert_same(bad.get(), sample(np.float32, (500_000,), 1))
        good.check()
        assert_same(good.get(), sample(np.float32, (500_000,)))
        store.close()

    # ---- close

    def test_use_after_close(self, make_store: MakeStore) -> None:
        store = make_store()
        handles = [store.put(sample(np.float32, (1000,))) for _ in range(10)]
        handles[0].prefetch()
        store.close()
        store.close()
        assert all(handle.captured for handle in handles)
        handle = handles[0]
        for use in (handle.get, handle.prefetch, lambda: store.put(np.zeros(3)), store.__enter__):
            with pytest.raises(StoreClosedError, match="closed"):
                use()
        handle.wait_captured()
        assert store.stats().puts == 10
        del handle, handles
        gc.collect()

    def test_close_keeps_the_first_error(self, make_store: MakeStore) -> None:
        def fail_within() -> None:
            with make_store() as store:
                store.put(np.zeros(1000))
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fail_within()

    def test_close_raises_errors_of_freeing(
        self, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed: list[Entry] = []
        unraisable: list[object] = []

        def fail(entry: Entry) -> None:
            failed.append(entry)
            raise OSError(errno.EIO, "injected")

        store = make_store()
        array = sample(np.float32, (500_000,))
        dying, living = store.put(array), store.put(array)
        store.flush()
        monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
        for backend in backends_of(store):
            monkeypatch.setattr(backend, "free", fail)
        del dying
        eventually(lambda: store.stats().live_handles == 1)
        eventually(lambda: store.stats().stored_nbytes == living.stored_nbytes)
        assert not unraisable
        assert_same(living.get(), array)
        assert_same(store.put(array[::2]).get(), array[::2])
        if failed:
            with pytest.raises(StoreError, match=r"freeing space failed.*injected"):
                store.close()
        store.close()

    def test_unclosed_store_dies(self, make_store: MakeStore) -> None:
        before = set(threading.enumerate())
        store = make_store()
        handle = store.put(sample(np.float32, (100_000,)))
        del store
        assert handle.get().shape == (100_000,)
        del handle
        eventually(lambda: not _own_threads(before))

    def test_close_joins_the_threads(self, make_store: MakeStore) -> None:
        before = set(threading.enumerate())
        store = make_store()
        handles = [store.put(sample(np.float32, (1000,))) for _ in range(10)]
        store.close()
        assert not _own_threads(before)
        del handles

    # ---- threads and processes

    def test_many_threads(self, store: AbstractArrayStore) -> None:
        errors: list[BaseException] = []
        shared: list[Handle] = [store.put(np.full(5000, 99))]

        def work(number: int) -> None:
            try:
                random = np.random.default_rng(number)
                mine: list[tuple[Handle, Array]] = []
                for _ in range(25):
                    array = sample(np.uint16, (int(random.integers(1, 20_000)),), number)
                    mine.append((store.put(array), array))
                    handle, expected = mine[int(random.integers(len(mine)))]
                    if random.random() < 0.4:
                        handle.prefetch()
                    assert_same(handle.get(), expected)
                    shared[0].prefetch()
                    assert (shared[0].get() == 99).all()
                    if random.random() < 0.3:
                        del mine[int(random.integers(len(mine)))]
                    del handle
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        eventually(lambda: store.stats().live_handles == 1)

    def test_handles_die_in_the_garbage_collector(self, store: AbstractArrayStore) -> None:
        class Cycle:
            def __init__(self, handle: Handle) -> None:
                self.handle = handle
                self.itself = self

        gc.set_threshold(5, 2, 2)
        try:
            for number in range(100):
                Cycle(store.put(np.full(500, number))).handle.get()
        finally:
            gc.set_threshold(700, 10, 10)
        eventually(lambda: store.stats().stored_nbytes == 0)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_forked_child(self, store: AbstractArrayStore) -> None:
        array = sample(np.float32, (1000,))
        handle = store.put(array)
        handle.wait_captured()
        owned = [handle]
        del handle  # the child drops its only reference
        assert run_in_fork(lambda: _use_in_child(store, owned)) == 0
        (handle,) = owned
        assert_same(handle.get(), array)
        assert store.stats().live_handles == 1

    # ---- figures

    def test_stats(self, store: AbstractArrayStore) -> None:
        handle = store.put(sample(np.float32, (1000,)))
        handle.wait_captured()
        handle.get()
        handle.get()
        stats = store.stats()
        assert (stats.puts, stats.gets, stats.live_handles) == (1, 2, 1)
        assert (stats.logical_nbytes, stats.read_nbytes, stats.inflight_nbytes) == (4000, 8000, 0)
        assert stats.stored_nbytes == stats.written_nbytes == handle.stored_nbytes > 0
        assert stats.get_stall_seconds > 0


def _use_in_child(store: AbstractArrayStore, handles: list[Handle]) -> None:
    handle = handles.pop()
    for use in (handle.get, handle.prefetch, store.stats, lambda: store.put(np.zeros(3))):
        with pytest.raises(ForkedStoreError):
            use()
    del use, handle
    gc.collect()
    store.close()


def _own_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """New threads, without those of zarr's event loop, which never end."""
    new = [thread for thread in threading.enumerate() if thread not in before]
    return [thread for thread in new if not thread.name.startswith(("zarr", "asyncio"))]
