"""Layouts: any array comes back from a dense copy of its bytes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from offgrad.session.saved_array import address, compact

Array = np.ndarray[Any, Any]

DTYPES = ("f4", "f8", "c8", "i8", "?", "u1", ">f4", "f2")


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """An array seen through a few views."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    size = int(np.prod(shape))
    array: Array = (np.arange(size) % 251).astype(dtype).reshape(shape)
    if draw(st.booleans()):
        array = np.asfortranarray(array)
    for _ in range(draw(st.integers(0, 4))):
        array = draw(st.sampled_from(VIEWS))(draw, array)
    return array


def _permuted(draw: st.DrawFn, array: Array) -> Array:
    return array.transpose(draw(st.permutations(range(array.ndim))))


def _sliced(draw: st.DrawFn, array: Array) -> Array:
    index: list[Any] = []
    for size in array.shape:
        start = draw(st.integers(0, max(0, size - 1)))
        step = draw(st.sampled_from((1, 1, 2, 3, -1, -2)))
        index.append(slice(start, None, step))
    return array[(*index, ...)]


def _expanded(draw: st.DrawFn, array: Array) -> Array:
    shape = [draw(st.integers(0, 3)) if size == 1 else size for size in array.shape]
    lead = draw(st.lists(st.integers(0, 3), max_size=2))
    return np.broadcast_to(array, (*lead, *shape))


def _unsqueezed(draw: st.DrawFn, array: Array) -> Array:
    return np.expand_dims(array, draw(st.integers(0, array.ndim)))


def _odd_strides(draw: st.DrawFn, array: Array) -> Array:
    odd = st.sampled_from((0, 1, 7, -5, 1 << 20))
    strides = [
        draw(odd) if size == 1 else step
        for size, step in zip(array.shape, array.strides, strict=True)
    ]
    return as_strided(array, array.shape, strides)


def _picked(draw: st.DrawFn, array: Array) -> Array:
    if not array.ndim or not array.shape[0]:
        return array
    return array[draw(st.integers(0, array.shape[0] - 1)), ...]


VIEWS = (_permuted, _sliced, _expanded, _unsqueezed, _odd_strides, _picked)


def restored(array: Array) -> Array:
    """Return `array` as a session restores it from a store."""
    data, layout, _ = compact(array)
    return layout.view(np.array(data, order="C", copy=True))


def is_dense(array: Array) -> bool:
    """Return whether the elements, each once, fill a range of memory in some order of axes."""
    expected = array.itemsize
    for step, size in sorted(zip(array.strides, array.shape, strict=True)):
        if size > 1:
            if step != expected:
                return False
            expected *= size
    return True


@given(arrays())
def test_restores_values_shape_and_dtype(array: Array) -> None:
    back = restored(array)
    assert back.shape == array.shape
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


@given(arrays())
def test_dense_arrays_keep_their_strides(array: Array) -> None:
    data, _, dense = compact(array)
    back = restored(array)
    if array.size and is_dense(array):
        assert dense
        for old, new, size in zip(array.strides, back.strides, array.shape, strict=True):
            assert old == new or size == 1
        assert back.flags.c_contiguous == array.flags.c_contiguous
        assert back.flags.f_contiguous == array.flags.f_contiguous
    if dense:
        assert data.flags.c_contiguous
        assert data.nbytes == 0 or np.shares_memory(data, array)


@given(arrays())
def test_repeated_elements_are_stored_once(array: Array) -> None:
    data, layout, _ = compact(array)
    repeats = [
        size for size, step in zip(array.shape, array.strides, strict=True) if step == 0 and size
    ]
    if array.size:
        assert data.size * int(np.prod(repeats)) == array.size
        assert [step == 0 for step in array.strides] <= [step == 0 for step in layout.strides]


@given(arrays())
def test_layouts_compare_and_hash_by_value(array: Array) -> None:
    assert compact(array)[1] == compact(array)[1]
    assert hash(compact(array)[1]) == hash(compact(array)[1])


@pytest.mark.parametrize(
    ("array", "stored_nbytes", "dense"),
    [
        (np.ones((3, 4), "f4"), 48, True),
        (np.ones((3, 4), "f4").T, 48, True),
        (np.ones((2, 3, 4), "f4").transpose(2, 0, 1), 96, True),
        (np.broadcast_to(np.ones((3, 1), "f4"), (3, 5)), 12, True),
        (np.broadcast_to(np.float32(2), (1000, 1000)), 4, True),
        (np.ones((4, 4), "f4")[:, ::2], 32, False),
        (np.ones((4, 4), "f4")[1:3], 32, True),
        (np.ones((4, 4), "f4")[:, 1:3], 32, False),
        (np.ones(4, "f4")[::-1], 16, False),
        (np.float64(3) * np.ones(()), 8, True),
        (np.ones((0, 3), "f4"), 0, True),
    ],
)
def test_compact_sizes_by_hand(array: Array, stored_nbytes: int, dense: bool) -> None:
    data, _, found = compact(array)
    assert data.nbytes == stored_nbytes
    assert found == dense
    assert np.array_equal(restored(array), array)


def test_memory_order_is_kept_for_equal_strides() -> None:
    array = np.arange(6, dtype="f4").reshape(1, 6, 1).transpose(2, 1, 0)
    assert restored(array).tobytes() == array.tobytes()


def test_address_is_of_the_first_element() -> None:
    array = np.zeros(10, "f4")
    assert address(array[3:]) - address(array) == 12
    assert address(array[::-1]) - address(array) == 36
    assert address(array) == array.ctypes.data
