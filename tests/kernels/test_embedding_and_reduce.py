from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._embedding import _embedding_backward_numpy, _embedding_bag_numpy

Agree = Callable[..., None]


@pytest.mark.parametrize("index_dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize(
    ("count", "width", "size"), [(0, 3, 4), (1, 1, 1), (50, 7, 5), (999, 300, 99)]
)
@pytest.mark.parametrize("padding_idx", [-1, 0])
def test_embedding_numba_equals_numpy(
    count: int,
    width: int,
    size: int,
    padding_idx: int,
    index_dtype: Any,
    dtype: Any,
    rng: np.random.Generator,
) -> None:
    grad = rng.normal(size=(count, width)).astype(dtype)
    index = rng.integers(0, size, count).astype(index_dtype)
    out, expected = (np.full((size, width), np.nan, dtype) for _ in "ab")
    kernels.embedding_backward(grad, index, out, padding_idx)
    _embedding_backward_numpy(grad, index, expected, padding_idx)
    # Both add the rows in the order of the index: equal bit for bit.
    np.testing.assert_array_equal(out, expected)


def test_embedding_against_torch(rng: np.random.Generator, agree: Agree, backend: str) -> None:
    torch = pytest.importorskip("torch")
    grad, index = rng.normal(size=(4, 6, 5)).astype(np.float32), rng.integers(0, 9, (4, 6))
    table = torch.zeros(9, 5, requires_grad=True)
    result = torch.nn.functional.embedding(torch.from_numpy(index), table, padding_idx=2)
    result.backward(torch.from_numpy(grad))
    out = np.empty((9, 5), np.float32)
    kernels.embedding_backward(grad, index, out, 2)
    agree(out, table.grad.numpy())


@pytest.mark.parametrize("index_dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 1, 0], [5] * 700], ids=str)
@pytest.mark.parametrize("padding_idx", [-1, 2])
def test_embedding_bag_numba_equals_numpy(
    sizes: list[int], padding_idx: int, index_dtype: Any, dtype: Any, rng: np.random.Generator
) -> None:
    table = rng.normal(size=(9, 65)).astype(dtype)
    index = rng.integers(0, 9, sum(sizes)).astype(index_dtype)
    starts = np.append(0, np.cumsum(np.array(sizes, np.int64)))
    out, expected = (np.full((len(sizes), 65), np.nan, dtype) for _ in "ab")
    kernels.embedding_bag(table, index, starts, out, padding_idx)
    _embedding_bag_numpy(table, index, starts, expected, padding_idx)
    # Both add the rows in the order of the index: equal bit for bit.
    np.testing.assert_array_equal(out, expected)


def test_embedding_bag_of_16_bit_floats_is_rounded_once(rng: np.random.Generator) -> None:
    table = rng.normal(size=(50, 3)).astype(np.float16)
    index, starts = rng.integers(0, 50, 400), np.array([0, 300, 400])
    out = np.empty((2, 3), np.float16)
    kernels.embedding_bag(table, index, starts, out)
    sums = np.add.reduceat(table[index].astype(np.float64), starts[:2])
    np.testing.assert_allclose(out, sums, rtol=2**-11, atol=1e-4)


def test_embedding_bag_errors() -> None:
    table, index = np.zeros((4, 2), np.float32), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match=r"embedding_bag takes table \[V, D\], starts \[B \+ 1\]"):
        kernels.embedding_bag(table, index, np.array([0, 3]), np.zeros((2, 2), np.float32))


def test_embedding_errors(backend: str) -> None:
    grad, out = np.zeros((3, 2), np.float32), np.zeros((4, 2), np.float32)
    with pytest.raises(IndexError, match="index number 1 is 4: with 4 rows it is 0 to 3"):
        kernels.embedding_backward(grad, np.array([0, 4, 1]), out)
    with pytest.raises(IndexError, match="index number 2 is -1"):
        kernels.embedding_backward(grad, np.array([0, 1, -1]), out)
    with pytest.raises(ValueError, match=r"got shapes \(3, 2\), \(2,\) and \(4, 2\)"):
        kernels.embedding_backward(grad, np.array([0, 1]), out)


@pytest.mark.parametrize(
    "shape",
    [(0, 4), (4, 0), (1, 1), (7, 3), (2, 5, 33), (130, 700), (1023, 64), (3000, 257), (40001, 3)],
)
def test_sum_rows(
    shape: tuple[int, ...], dtype: Any, rng: np.random.Generator, agree: Agree, backend: str
) -> None:
    x = rng.normal(size=shape).astype(dtype)
    out = np.full(shape[-1], np.nan, dtype)
    kernels.sum_rows(x, out)
    agree(out, x.astype(np.float64).reshape(-1, shape[-1] or 1)[:, : shape[-1]].sum(axis=0), 10)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize(
    "shape", [(1, 1), (7, 3), (130, 700), (1023, 64), (300, 2570), (40001, 3), (1, 1_300_000)]
)
def test_squared_deviations(
    shape: tuple[int, int],
    offset: float,
    axis: int,
    dtype: Any,
    rng: np.random.Generator,
    agree: Agree,
    backend: str,
) -> None:
    x = (rng.normal(size=shape) + offset).astype(dtype)
    exact = x.astype(np.float64)
    centre = exact.mean(axis).astype(dtype)
    out = np.full(shape[1 - axis], np.nan, dtype)
    kernels.squared_deviations(x, centre, axis, out)
    agree(out, np.square(exact - np.expand_dims(centre.astype(np.float64), axis)).sum(axis), 20)


def test_sum_rows_keeps_nan_and_infinity_in_their_columns(backend: str) -> None:
    x = np.ones((5, 4), np.float32)
    x[1, 1], x[2, 2], x[3, 2] = np.nan, np.inf, -np.inf
    out = np.empty(4, np.float32)
    kernels.sum_rows(x, out)
    np.testing.assert_array_equal(out, [5, np.nan, np.nan, 5])


def test_sum_rows_errors() -> None:
    with pytest.raises(ValueError, match=r"one element per column \(4\), got \(3,\)"):
        kernels.sum_rows(np.zeros((3, 4), np.float32), np.zeros(3, np.float32))
