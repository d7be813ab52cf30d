"""Products in tiles: right for every shape, the same bits on any number of threads."""

from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._product_loops import usable
from offgrad.kernels._products import (
    MAX_SIDE,
    MIN_COST,
    compiled_tile_shape,
    matmul,
    tile_shape,
)
from tests.forked import run_in_child

SHAPES = [
    (1, 1, 1),
    (0, 5, 3),
    (5, 0, 3),
    (300, 200, 100),
    (129, 257, 511),
    (1030, 17, 1100),
    (2, 4000, 1500),
    (1500, 4000, 2),
    (70, 9000, 65),
    (1200, 700, 10),
    (900, 1300, 6),
    (8, 600, 900),
    (4, 500, 600),
    (3000, 2, 300),
]


def _expected(a: Any, b: Any) -> Any:
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return np.matmul(a.astype(wide), b.astype(wide))


def _check(a: Any, b: Any, bias: Any = None) -> None:
    expected = _expected(a, b)
    out = np.full(expected.shape, np.nan, a.dtype)
    matmul(a, b, out, bias)
    if bias is not None:
        expected = expected + bias
    by_numpy = np.matmul(a, b) if bias is None else np.matmul(a, b) + bias
    of_numpy = np.abs(by_numpy - expected).max(initial=0)
    bound = 30 * (1 + np.sqrt(a.shape[-1])) * np.finfo(a.dtype).eps
    atol = max(bound, 2 * of_numpy)  # NumPy's own is near it
    np.testing.assert_allclose(out, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype_", ["f", "d", "F"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("orientation", ["nn", "nt", "tn"])
def test_values(
    shape: tuple[int, int, int], orientation: str, dtype_: str, rng: np.random.Generator
) -> None:
    n, k, m = shape
    a, b = rng.normal(size=(n, k)).astype(dtype_), rng.normal(size=(k, m)).astype(dtype_)
    if orientation[0] == "t":
        a = np.ascontiguousarray(a.T).T
    if orientation[1] == "t":
        b = np.ascontiguousarray(b.T).T
    _check(a, b)
    _check(a, b, rng.normal(size=m).astype(dtype_))


@pytest.mark.parametrize(
    "batches", [((6,), (6,)), ((3, 4), (3, 4)), ((5, 1), (4,)), ((), (9,)), ((1, 2), (2,))]
)
@pytest.mark.parametrize("shape", [(2, 3, 4), (90, 120, 130), (300, 310, 200), (600, 300, 400)])
def test_batches(
    shape: tuple[int, int, int], batches: tuple[tuple[int, ...], ...], rng: np.random.Generator
) -> None:
    n, k, m = shape
    a = rng.normal(size=(*batches[0], n, k)).astype(np.float32)
    b = rng.normal(size=(*batches[1], k, m)).astype(np.float32)
    _check(a, b)
    _check(a, b, rng.normal(size=m).astype(np.float32))
    if len(batches[0]) == len(batches[1]) == 2:  # as heads are: no single stride over the batch
        strided = [each.swapaxes(0, 1).copy().swapaxes(0, 1) for each in (a, b)]
        _check(strided[0], strided[1])


def test_bits_depend_on_the_depth_alone(dtype: Any, rng: np.random.Generator) -> None:
    a, b, bias = (rng.normal(size=each).astype(dtype) for each in ((333, 801), (801, 205), (205,)))
    whole, part = np.empty((333, 205), dtype), np.empty((205, 333), dtype).T
    assert usable(a, b, whole, bias)
    assert not usable(a, b, part, bias)
    matmul(a, b, whole, bias)
    for rows, columns in ((slice(1, 232), slice(3, 131)), (slice(33, 333), slice(0, 205, 2))):
        out = np.empty(whole[rows, columns].shape, dtype)
        turned = np.ascontiguousarray(a.T).T, np.ascontiguousarray(b.T).T
        for left, right in ((a, b), turned):
            matmul(left[rows], right[:, columns], out, bias[columns])
            np.testing.assert_array_equal(out, whole[rows, columns])


def test_integers_and_short_floats(rng: np.random.Generator) -> None:
    a, b = rng.integers(0, 9, (2, 130, 130))
    out = np.empty_like(a)
    matmul(a, b, out)
    np.testing.assert_array_equal(out, a @ b)
    half = a.astype(np.float16)
    short = np.empty_like(half)
    matmul(half, half, short)
    np.testing.assert_array_equal(short, half @ half)


def test_the_same_bits_on_any_number_of_threads(dtype: Any, rng: np.random.Generator) -> None:
    for shape in [*SHAPES, (51, 809, 438), (219, 663, 111), (365, 548, 276), (446, 808, 342)]:
        n, k, m = shape
        a, b = rng.normal(size=(n, k)).astype(dtype), rng.normal(size=(k, m)).astype(dtype)
        results = set()
        for threads in (1, 2, 4):
            kernels.set_num_threads(threads)
            out = np.empty((n, m), dtype)
            matmul(a, b, out)
            results.add(out.tobytes())
        assert len(results) == 1 or n * k * m <= 1 << 20, shape


@pytest.mark.parametrize("rows", [1, 100, 1000, 5000])
@pytest.mark.parametrize("columns", [1, 50, 3000, 50257])
@pytest.mark.parametrize("inner", [1, 64, 2048])
def test_tiles_are_worth_their_distribution(rows: int, columns: int, inner: int) -> None:
    height, width = tile_shape(rows, columns, inner)
    assert 1 <= height <= rows
    assert 1 <= width <= columns
    whole = height == rows and width == columns
    assert whole or height * width * inner >= MIN_COST
    too_long = max(height, width) > MAX_SIDE
    assert not too_long or height * width * inner < 2 * MIN_COST


@pytest.mark.parametrize("threads", [2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize(
    "shape",
    [(2048, 512, 2048), (512, 2048, 2048), (512, 4096, 128), (4160, 192, 768), (100, 30, 50)],
)
def test_tiles_keep_all_threads_busy(shape: tuple[int, int, int], count: int, threads: int) -> None:
    rows, inner, columns = shape
    height, width = compiled_tile_shape(rows, columns, inner, count, threads)
    assert height == rows or height % 16 == 0
    assert width == columns or width % 16 == 0
    tiles = count * -(-rows // height) * -(-columns // width)
    assert tiles <= max(2 * threads, count)
    smallest = MIN_COST // 4
    if count * rows * inner * columns > 2 * threads * smallest:
        slowest = -(-tiles // threads) * min(height, rows) * min(width, columns)
        assert slowest * threads <= 1.5 * count * rows * columns


def test_nan_and_infinity_give_no_warning(rng: np.random.Generator) -> None:
    a = rng.normal(size=(600, 600)).astype(np.float32)
    a[::50] = np.inf
    a[1::50] = np.nan
    out = np.empty_like(a)
    with np.errstate(all="ignore"):
        matmul(a, a, out)
    assert np.isnan(out).any()


def test_a_forked_child_multiplies(dtype: Any, rng: np.random.Generator) -> None:
    kernels.set_num_threads(2)
    a = rng.normal(size=(700, 700)).astype(dtype)
    expected = np.empty_like(a)
    matmul(a, a, expected)

    def in_child() -> None:
        out = np.empty_like(a)
        matmul(a, a, out)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_allclose(a @ a, expected, rtol=0, atol=1e-2)  # BLAS's own threads

    run_in_child(in_child)
    matmul(a, a, out := np.empty_like(a))
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("size", [3, 40, 10**9, None])
def test_integers_have_numpys_products(kind: Any, size: int | None, rng: Any) -> None:
    """They wrap around, and those too large for float64 are exact as well."""
    info = np.iinfo(kind)
    low, high = (info.min, info.max) if size is None else (max(info.min, -size), size)
    high = min(high, info.max)
    a = rng.integers(low, high, (2, 130, 120), kind, endpoint=True)
    b = rng.integers(low, high, (120, 140), kind, endpoint=True)
    a[0, 0, 0], b[0, 0] = low, high
    out = np.empty((2, 130, 140), kind)
    kernels.matmul(a, b, out)
    np.testing.assert_array_equal(out, a @ b)
