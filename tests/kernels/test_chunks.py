from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._chunks import CHUNK, scratch

SIZES = [0, 1, CHUNK, CHUNK + 1, 5 * CHUNK + 3]
DTYPES = [np.float32, np.float64, np.float16, np.int64, np.complex64, np.complex128, np.int8]


@pytest.mark.parametrize("size", SIZES)
def test_pieces_cover_each_element_once(size: int) -> None:
    count = np.zeros(size, np.int64)

    def add(start: int, stop: int) -> None:
        count[start:stop] += 1

    kernels.in_chunks(add, size)
    np.testing.assert_array_equal(count, 1)


def test_elementwise(rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(2, 300, 500))
    for x, y in ((a, b), (a.T, b.T), (a[:2], b[:2])):
        out = np.empty(x.shape)
        kernels.elementwise(np.hypot, out, x, y)
        np.testing.assert_array_equal(out, np.hypot(x, y))


def test_elementwise_warns_of_nothing() -> None:
    x = np.zeros(5 * CHUNK)
    out = np.empty_like(x)
    kernels.elementwise(np.log, out, x)
    assert np.all(out == -np.inf)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_keep_where(dtype: Any, size: int, rng: np.random.Generator) -> None:
    values = (rng.normal(size=size) * 50).astype(dtype)
    mask = rng.random(size) < 0.5
    if values.dtype.kind in "fc":
        values[::7], values[1::7] = np.nan, np.inf
    out = np.full_like(values, 3)
    kernels.keep_where(values, lambda a, b: mask[a:b], out)
    np.testing.assert_array_equal(out, np.where(mask, values, np.zeros((), dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0, 7])
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (400, 500)])
def test_fill_where(dtype: Any, value: int, shape: Any, rng: np.random.Generator) -> None:
    x = np.asarray(rng.normal(size=shape) * 50).astype(dtype)
    fill = np.asarray(value, dtype)
    for mask in (
        rng.random(shape) < 0.5,
        rng.random(shape[1:]) < 0.5,
        rng.random((2, *shape)) < 0.5,
    ):
        full = np.broadcast_shapes(shape, mask.shape)
        out = np.empty(full, dtype)
        kernels.fill_where(x, np.asarray(mask), fill, out)
        np.testing.assert_array_equal(out, np.where(mask, fill, x))
    transposed = np.empty(shape[::-1], dtype)
    mask = np.asarray(rng.random(shape) < 0.5)
    kernels.fill_where(x.T, mask.T, fill, transposed)
    np.testing.assert_array_equal(transposed, np.where(mask, fill, x).T)


def test_fill_with_nan() -> None:
    x = np.arange(5 * CHUNK, dtype=np.float32)
    out = np.empty_like(x)
    kernels.fill_where(x, x % 2 == 0, np.asarray(np.nan, np.float32), out)
    assert np.isnan(out[::2]).all()
    np.testing.assert_array_equal(out[1::2], x[1::2])


def test_scratch_arrays_are_apart() -> None:
    first, second = (scratch(number, 100, np.dtype(np.float32)) for number in (0, 1))
    assert not np.may_share_memory(first, second)
    assert scratch(0, 2 * CHUNK, np.dtype(np.float32)).size == 2 * CHUNK
