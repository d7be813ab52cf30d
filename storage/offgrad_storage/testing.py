"""The contract every store must pass, as tests to inherit; needs pytest and hypothesis.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda **options: MyStore(tmp_path, **options)

``make_store`` must take the keyword ``allocate``; everything else is tested for you.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from .base import AbstractArrayStore, Allocate, Handle
from .buffers import BufferPool
from .errors import ForkedStoreError, StoreClosedError

Array = NDArray[Any]

_RECORD = np.dtype([("id", "<i2"), ("weight", ">f8"), ("name", "S3"), ("xyz", "f4", (3,))])
DTYPES = [*"?bBhHiIlLqQefdgFDG", ">i4", ">f8", "<M8[ns]", "m8[s]", "S5", "U3", "V7", _RECORD]
"""Every kind of dtype of fixed size; bfloat16 is tested besides, where ml_dtypes is installed."""


class MakeStore(Protocol):
    """Makes a fresh store; ``allocate`` is where read-back arrays come from."""

    def __call__(self, *, allocate: Allocate = ...) -> AbstractArrayStore:
        """A store of the kind under test."""


def sample(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Random bytes as an array, but such that every item is valid: NaNs and odd bits included."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        return random.integers(0, 1000, shape).astype(dtype)
    if dtype.char in "gG":  # ten of sixteen bytes are the value: anything else has no meaning
        return random.standard_normal(shape).astype(dtype)
    data = random.integers(0, 256, count * dtype.itemsize, np.uint8)
    return data.view(dtype).reshape(shape) if count else np.empty(shape, dtype)


def assert_same(found: Array, expected: Array) -> None:
    """Bit for bit the same values, and the same shape and dtype."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until ``condition`` holds; what threads do late is right, what they never do is not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        gc.collect()
        time.sleep(0.002)


class StoreContract:
    """Tests of the whole contract; give it a ``make_store`` fixture."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """To override: a callable that makes a fresh store."""
        raise NotImplementedError("override the fixture make_store")

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Iterator[AbstractArrayStore]:
        """A fresh store, closed afterwards."""
        with make_store() as store:
            yield store

    # ---- bit for bit

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_dtypes(self, store: AbstractArrayStore, dtype: Any) -> None:
        array = sample(dtype, (5, 7))
        handle = store.put(array)
        assert_same(handle.get(), array)
        handle.wait_captured()
        assert_same(handle.get(), array)
        assert (handle.shape, handle.dtype, handle.nbytes) == (
            array.shape,
            array.dtype,
            array.nbytes,
        )

    def test_bfloat16(self, store: AbstractArrayStore) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        for shape in [(), (3, 5), (0,)]:
            array = sample(np.uint16, shape).view(ml_dtypes.bfloat16)
            handle = store.put(array)
            handle.wait_captured()
            assert_same(handle.get(), array)

    @pytest.mark.parametrize(
        "shape", [(), (1,), (0,), (3, 0, 2), (1, 1, 1), (2, 3, 4, 5), (70000,)]
    )
    def test_shapes(self, store: AbstractArrayStore, shape: tuple[int, ...]) -> None:
        array = sample(np.float32, shape)
        handle = store.put(array)
        handle.wait_captured()
        assert_same(handle.get(), array)
        assert_same(handle.get(np.empty_like(array)), array)

    def test_memory_orders(self, store: AbstractArrayStore) -> None:
        base = sample(np.float64, (12, 10, 8))
        unaligned = np.frombuffer(b"x" + base.tobytes(), np.uint8)[1:].view(np.float64)
        arrays = [
            np.asfortranarray(base),
            base.T,
            base[::-1, ::2, 1:],
            base[:, 3],
            base[..., ::-3],
            np.broadcast_to(base[0], (4, 10, 8)),
            unaligned,
            sample(np.uint8, (1001,))[1:],
        ]
        read_only = base.copy()
        read_only.flags.writeable = False
        for array in [*arrays, read_only]:
            handle = store.put(array)
            handle.wait_captured()
            found = handle.get()
            assert_same(found, array)
            assert found.flags.c_contiguous

    def test_large_and_strided(self, store: AbstractArrayStore) -> None:
        array = sample(np.float32, (1500, 1501))
        for each in (array.T, array[:, 1:], array.reshape(-1)[1:]):
            handle = store.put(each)
            handle.wait_captured()
            assert_same(handle.get(), each)

    def test_pooled_memory(self, make_store: MakeStore) -> None:
        pool = BufferPool()
        with make_store(allocate=pool.empty) as store:
            for count in (1, 1024, 1025, 300_000):
                array = pool.empty((count,), np.float32)
                array[:] = sample(np.float32, (count,))
                handle = store.put(array)
                handle.wait_captured()
                found = handle.get()
                assert pool.owns(found)
                assert_same(found, array)

    def test_lists_become_arrays(self, store: AbstractArrayStore) -> None:
        assert_same(store.put([1.0, 2.0]).get(), np.array([1.0, 2.0]))

    def test_attributes(self, store: AbstractArrayStore) -> None:
        facts = {"op": "relu", "shape": (2, np.int64(3)), "scale": np.float32(0.5), "odd": object()}
        array = sample(np.int16, (9,))
        handle = store.put(array, attributes=facts)
        handle.wait_captured()
        assert_same(handle.get(), array)

    # ---- get

    def test_get_into_out(self, store: AbstractArrayStore) -> None:
        array = sample(np.int32, (6, 8))
        handle = store.put(array)
        for _ in range(2):
            for out in (
                np.empty_like(array),
                np.empty((8, 6), np.int32).T,
                np.empty((6, 16), "i4"),
            ):
                view = out if out.shape == array.shape else out[:, ::2]
                assert handle.get(view) is view
                assert_same(view, array)
            handle.wait_captured()

    def test_get_touches_nothing_around_out(self, store: AbstractArrayStore) -> None:
        pool = BufferPool()
        array = sample(np.uint8, (5000,))
        handle = store.put(array)
        handle.wait_captured()
        for whole in (pool.empty(20000, np.uint8), np.empty(20000, np.uint8)):
            for start in (0, 4096, 4097):
                whole[:] = 7
                handle.get(whole[start : start + 5000])
                assert_same(whole[start : start + 5000], array)
                assert (whole[:start] == 7).all()
                assert (whole[start + 5000 :] == 7).all()

    def test_wrong_out(self, store: AbstractArrayStore) -> None:
        handle = store.put(sample(np.float32, (2, 3)))
        read_only = np.empty((2, 3), np.float32)
        read_only.flags.writeable = False
        for out in (
            np.empty((3, 2), "f4"),
            np.empty((2, 3), "f8"),
            np.empty((2, 3), ">f4"),
            read_only,
        ):
            with pytest.raises(ValueError, match="out"):
                handle.get(out)
            with pytest.raises(ValueError, match="out"):
                handle.prefetch(out)
        assert handle.get().shape == (2, 3)

    def test_what_is_got_is_the_callers(self, store: AbstractArrayStore) -> None:
        array = sample(np.uint8, (100,))
        handle = store.put(array)
        for _ in range(2):
            handle.get()[:] = 0
            assert_same(handle.get(), array)
            handle.wait_captured()

    def test_source_may_change_once_captured(self, store: AbstractArrayStore) -> None:
        array = sample(np.uint8, (100_000,))
        expected = array.copy()
        handle = store.put(array)
        handle.wait_captured()
        assert handle.captured
        array[:] = 0
        assert_same(handle.get(), expected)

    # ---- prefetch

    def test_prefetch(self, store: AbstractArrayStore) -> None:
        array = sample(np.float32, (50, 60))
        handle = store.put(array)
        for _ in range(3):
            handle.prefetch()
            handle.prefetch()
            first = handle.get()
            assert_same(first, array)
            assert_same(handle.get(), array)
            assert_same(first, array)
            handle.wait_captured()

    def test_prefetch_into_out(self, store: AbstractArrayStore) -> None:
        array = sample(np.float32, (50, 60))
        handle = store.put(array)
        handle.wait_captured()
        first, second = np.empty_like(array), np.empty_like(array)
        handle.prefetch(first)
        handle.prefetch(second)
        assert_same(handle.get(second), array)
        handle.prefetch(first)
        assert_same(handle.get(second), array)
        handle.prefetch()
        assert handle.get(first) is first
        assert_same(first, array)

    def test_handle_dies_with_a_prefetch(self, store: AbstractArrayStore) -> None:
        for _ in range(10):
            handle = store.put(sample(np.float32, (50, 60)))
            handle.prefetch()
            del handle
        eventually(lambda: store.stats().stored_nbytes == 0)

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
        eventually(lambda: store.stats().stored_nbytes == 0)
        stats = store.stats()
        assert (stats.live_handles, stats.logical_nbytes, stats.inflight_nbytes) == (0, 0, 0)
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
        with pytest.raises(KeyError, match="mine"), make_store() as store:
            store.put(np.zeros(1000))
            raise KeyError("mine")

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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork where there are threads
            child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _use_in_child(store, [handle])
            finally:
                os._exit(code)
        del child
        _, status = os.wait()
        assert os.waitstatus_to_exitcode(status) == 0
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

    # ---- anything in any order

    def test_state_machine(self, make_store: MakeStore) -> None:
        pytest.importorskip("hypothesis")
        from ._machine import run_store_machine

        run_store_machine(make_store)


def _use_in_child(store: AbstractArrayStore, handles: list[Handle]) -> int:
    handle = handles.pop()
    for use in (handle.get, handle.prefetch, store.stats, lambda: store.put(np.zeros(3))):
        try:
            use()
        except ForkedStoreError:
            continue
        return 2
    del handle
    store.close()
    del store
    gc.collect()
    return 0


def _own_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """New threads, less those of zarr's event loop, which stay for good."""
    new = [thread for thread in threading.enumerate() if thread not in before]
    return [thread for thread in new if not thread.name.startswith(("zarr", "asyncio"))]
