"""Tests that arrays come back bit for bit, by get and by prefetch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offgrad_storage.base import AbstractArrayStore
from offgrad_storage.memory.buffer_pool import BufferPool
from offgrad_storage.testing.helpers import (
    DTYPES,
    MakeStore,
    StoreFixtures,
    assert_same,
    eventually,
    sample,
)

Array = NDArray[Any]


class ValueContract(StoreFixtures):
    """Tests of put, get and prefetch."""

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

    def test_encoded_and_stored_bytes(self, store: AbstractArrayStore) -> None:
        """Encoded bytes do not depend on rounding up, and stored bytes include them."""
        for array in (
            np.zeros(300_000, np.float32),
            sample(np.float32, (300_000,)),
            sample(np.bool_, (1001,)),
            sample(np.int16, (9,)),
        ):
            handle = store.put(array)
            store.flush()
            assert 0 < handle.encoded_nbytes <= handle.stored_nbytes
            assert handle.encoded_nbytes <= array.nbytes + array.nbytes // 256 + 1024
            again = store.put(array)
            store.flush()
            assert again.encoded_nbytes == handle.encoded_nbytes

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

    def test_a_returned_array_belongs_to_the_caller(self, store: AbstractArrayStore) -> None:
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
