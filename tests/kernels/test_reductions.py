from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels

Agree = Callable[..., None]
SHAPES = [(7,), (4, 5, 6), (300_000,), (700, 301), (2, 300, 401), (61, 3, 5, 301), (1, 200_000)]


def _axes(ndim: int) -> list[tuple[int, ...]]:
    return [tuple(at for at in range(ndim) if bits >> at & 1) for bits in range(1, 2**ndim)]


@pytest.mark.parametrize("shape", SHAPES)
def test_sums(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator, agree: Agree) -> None:
    x = rng.normal(size=shape).astype(dtype)
    for view in (x, x.T, x[::2], x[..., ::-1]):
        for axes in _axes(view.ndim):
            for keepdims in (False, True):
                exact = view.astype(np.float64).sum(axes, keepdims=keepdims)
                agree(kernels.sum_axes(view, axes, keepdims), exact, 4, 30)
                out = np.empty(exact.shape, dtype)
                kernels.sum_axes(view, axes, keepdims, out)
                agree(out, exact, 4, 30)


@pytest.mark.parametrize("dtype", [np.int64, np.complex64, np.float16])
def test_sums_of_other_dtypes(dtype: Any) -> None:
    x = np.ones((600, 500), dtype)
    np.testing.assert_array_equal(kernels.sum_axes(x, (0,)), np.full(500, 600))
    wide = np.dtype(np.float32) if dtype == np.float16 else x.dtype
    out = np.empty((), wide)
    kernels.sum_axes(x, (0, 1), False, out)
    assert out == 300_000


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ufunc", [np.maximum, np.minimum])
def test_extremes(shape: tuple[int, ...], ufunc: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=shape)
    x.reshape(-1)[5] = np.nan
    for view in (x, x.T):
        for axes in _axes(view.ndim):
            expected = ufunc.reduce(view, axis=axes)
            out = np.empty(np.shape(expected))
            kernels.reduce_axes(ufunc.reduce, view, axes, out)
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("find", [np.argmax, np.argmin])
def test_indices_of_extremes(find: Any, rng: np.random.Generator) -> None:
    x = rng.integers(0, 50, (30, 20, 301)).astype(np.float32)
    x[3, 4, 7] = np.nan
    np.testing.assert_array_equal(kernels.arg_extreme(find, x), find(x, axis=-1))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (700, 301), (2, 150_000), (4000, 50)])
def test_log_sum_exp(
    shape: tuple[int, ...], dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    x = (rng.normal(size=shape) * 30).astype(dtype)
    out = np.empty(shape[0], dtype)
    kernels.log_sum_exp(x, out)
    wide = x.astype(np.float64)
    highest = wide.max(1, keepdims=True)
    exact = (np.log(np.exp(wide - highest).sum(1, keepdims=True)) + highest)[:, 0]
    agree(out, exact)
    grad, slopes = rng.normal(size=shape[0]).astype(dtype), np.empty_like(x)
    kernels.log_sum_exp_backward(grad, x, out, slopes)
    # The exponent's rounding error grows with the numbers' size.
    agree(slopes, grad[:, None] * np.exp(wide - out.astype(np.float64)[:, None]), 50)


def test_log_sum_exp_of_infinities() -> None:
    x = np.array([[-np.inf] * 3, [np.inf, 0, 1], [np.nan, 0, 1], [-np.inf, 0, 0]], np.float32)
    out = np.empty(4, np.float32)
    kernels.log_sum_exp(x, out)
    np.testing.assert_array_equal(out[:3], [-np.inf, np.inf, np.nan])
    np.testing.assert_allclose(out[3], np.log(2), 1e-6)


@pytest.mark.parametrize("shape", [(7, 5), (3, 50_001), (40_000, 5), (200_003,)])
def test_products_of_rows_equal_numpy(shape: tuple[int, ...], dtype: Any, backend: str) -> None:
    x = np.exp(np.random.default_rng(0).standard_normal(shape) / 100).astype(dtype)
    out = np.empty(shape[:-1], dtype)
    kernels.prod_axes(x, (len(shape) - 1,), False, out)
    np.testing.assert_allclose(
        out, x.astype(np.float64).prod(-1), 1e-2 if dtype == np.float32 else 1e-9
    )


def test_products_of_parts_do_not_overflow(dtype: Any, backend: str) -> None:
    x = np.tile(np.array([1e3, 1e-3], dtype), 200_000)
    out = np.empty((), dtype)
    kernels.prod_axes(x, (0,), False, out)
    np.testing.assert_allclose(out, 1, 1e-2)
    x[:] = 1e3
    x[3] = 0
    kernels.prod_axes(x, (0,), False, out)
    assert out == 0
