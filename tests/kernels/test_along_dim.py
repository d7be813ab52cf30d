from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels

SHAPE = (30, 71, 83)  # more elements than a range of the loops


def _index(rng: np.random.Generator, shape: tuple[int, ...], size: int, dtype: Any) -> Any:
    return rng.integers(0, size, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.complex128, np.int64])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 100])
def test_gather(dtype: Any, dim: int, length: int, rng: np.random.Generator, backend: str) -> None:
    x = (rng.normal(size=SHAPE) * 100).astype(dtype)
    shape = (*SHAPE[:dim], length, *SHAPE[dim + 1 :])
    for picked in (shape, tuple(max(1, size - 3) for size in shape)):
        index = _index(rng, picked, SHAPE[dim], np.int64)
        out = np.empty(picked, dtype)
        kernels.gather(x, index, dim, out)
        part = x[tuple(slice(None) if at == dim else slice(n) for at, n in enumerate(picked))]
        np.testing.assert_array_equal(out, np.take_along_axis(part, index, dim))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_scatter_add(
    dim: int, index_dtype: Any, dtype: Any, rng: np.random.Generator, backend: str
) -> None:
    shape = (*SHAPE[:dim], 100, *SHAPE[dim + 1 :])
    for picked in (shape, tuple(size - 3 for size in shape)):
        index = _index(rng, picked, SHAPE[dim], index_dtype)
        source = rng.normal(size=picked).astype(dtype)
        out = rng.normal(size=SHAPE).astype(dtype)
        grid: list[Any] = list(np.ogrid[tuple(slice(size) for size in picked)])
        grid[dim] = index
        expected = out.copy()
        np.add.at(expected, tuple(grid), source)
        kernels.scatter_add(out, index, source, dim)
        # Both add in the order of the source: equal bit for bit.
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("shape", [SHAPE, (200_000,), (700, 300), (2, 3)])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("count", [0, 5, 900])
def test_rows(
    shape: tuple[int, ...], dim: int, count: int, dtype: Any, rng: np.random.Generator, backend: str
) -> None:
    dim %= len(shape)
    x = rng.normal(size=shape).astype(dtype)
    for index in (
        rng.integers(-shape[dim], shape[dim], count),
        rng.integers(0, shape[dim], (3, count)),
    ):
        picked = (*shape[:dim], *index.shape, *shape[dim + 1 :])
        where: Any = (*(slice(None),) * dim, index)
        out = np.empty(picked, dtype)
        for table in (x, np.asfortranarray(x)):
            kernels.take_rows(table, index, dim, out)
            np.testing.assert_array_equal(out, x[where])
        total, expected = np.full(shape, np.nan, dtype), np.zeros(shape, dtype)
        kernels.add_rows(out, index, dim, total)
        np.add.at(expected, where, out)
        np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("size", [0, 10, 300_000])
def test_are_within(dtype: Any, size: int) -> None:
    index = np.arange(size).astype(dtype) % 100
    assert kernels.are_within(index, 0, 100)
    assert kernels.are_within(index, -100, 100)
    if size:
        assert not kernels.are_within(index, 0, int(index.max()))
        assert not kernels.are_within(index, 1, 200)
        if index.dtype.kind == "i":
            index[size // 2] = -3
            assert not kernels.are_within(index, 0, 100)
            assert kernels.are_within(index, -3, 100)
            assert not kernels.are_within(index, -2, 100)
            assert not kernels.are_within(index[::-1], 0, 100)


def test_bits_of_sums_by_a_shared_index_depend_on_no_threads() -> None:
    rng = np.random.default_rng(0)
    source, index = rng.standard_normal((5000, 301)).astype(np.float32), rng.integers(0, 7, 5000)
    before, found = kernels.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 16):
            kernels.set_num_threads(threads)
            out = np.zeros((7, 301), np.float32)
            kernels.scatter_add(out, index, source, 0)
            found.append(out)
    finally:
        kernels.set_num_threads(before)
    assert all(np.array_equal(found[0], each) for each in found[1:])
    expected = np.zeros((7, 301))
    np.add.at(expected, index, source.astype(np.float64))
    np.testing.assert_allclose(found[0], expected, 1e-3, 1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int16, np.complex64])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scatter_leaves_the_last(dtype: Any, dim: int, rng: np.random.Generator) -> None:
    shape = (*SHAPE[:dim], 100, *SHAPE[dim + 1 :])
    source = (rng.normal(size=shape) * 100).astype(dtype)
    index = _index(rng, shape, SHAPE[dim], np.int64)
    start = (rng.normal(size=SHAPE) * 100).astype(dtype)
    out, expected = start.copy(), start.copy()
    kernels.scatter(out, index, source, dim)
    for last in range(100):
        at = (slice(None),) * dim + (slice(last, last + 1),)
        np.put_along_axis(expected, index[at], source[at], dim)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("reduce", ["prod", "amax", "amin"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scatter_reduce(
    dim: int, reduce: str, dtype: Any, rng: np.random.Generator, backend: str
) -> None:
    shape = (*SHAPE[:dim], 100, *SHAPE[dim + 1 :])
    ufunc = {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[reduce]
    for picked in (shape, tuple(size - 3 for size in shape)):
        index = _index(rng, picked, SHAPE[dim], np.int64)
        source = rng.normal(size=picked).astype(dtype)
        out = rng.normal(size=SHAPE).astype(dtype)
        source[rng.random(picked) < 0.001] = np.nan
        out[rng.random(SHAPE) < 0.001] = np.nan
        grid: list[Any] = list(np.ogrid[tuple(slice(size) for size in picked)])
        grid[dim] = index
        expected = out.copy()
        ufunc.at(expected, tuple(grid), source)
        kernels.scatter_reduce(out, index, source, dim, reduce)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("shape", [SHAPE, (3, 5, 4), (40, 1, 900)])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("is_smaller", [False, True])
def test_an_expanded_index(
    shape: tuple[int, ...], dim: int, is_smaller: bool, rng: np.random.Generator, backend: str
) -> None:
    picked = tuple(
        100 if axis == dim else max(1, size - is_smaller) for axis, size in enumerate(shape)
    )
    vector = rng.integers(0, shape[dim], 100).reshape([-1 if d == dim else 1 for d in range(3)])
    expanded = np.broadcast_to(vector, picked)
    x = rng.normal(size=shape).astype(np.float32)
    source = rng.normal(size=picked).astype(np.float32)
    x[rng.random(shape) < 0.01] = np.nan
    source[rng.random(picked) < 0.01] = np.nan

    def all_results(index: Any) -> list[Any]:
        gathered = np.empty(picked, np.float32)
        kernels.gather(x, index, dim, gathered)
        results = [gathered]
        for scatter in (kernels.scatter, kernels.scatter_add):
            results.append(x.copy())
            scatter(results[-1], index, source, dim)
        for reduce in ("prod", "amax", "amin"):
            results.append(x.copy())
            kernels.scatter_reduce(results[-1], index, source, dim, reduce)
        return results

    for found, expected in zip(
        all_results(expanded), all_results(np.ascontiguousarray(expanded)), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert kernels.are_within(expanded, 0, shape[dim])
    assert not kernels.are_within(expanded, 0, int(vector.max()))
