from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels

Agree = Callable[..., None]
SHAPES = [(1, 140_000), (300, 501), (501, 300), (150_000, 1)]


def _special(x: Any) -> Any:
    flat = x.reshape(-1)
    flat[10:14] = np.nan, np.inf, -np.inf, np.nan
    return x


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ufunc", [np.maximum, np.minimum])
@pytest.mark.parametrize("special", [False, True])
def test_running_extreme(
    shape: Any, ufunc: Any, special: bool, dtype: Any, rng: np.random.Generator
) -> None:
    x = rng.integers(-1000, 1000, shape).astype(dtype)
    x = _special(x) if special else x
    assert kernels.has_scans(x)
    out = np.empty(shape, np.int64)
    kernels.running_extreme(x, out, ufunc is np.maximum)
    running = ufunc.accumulate(x, axis=1)
    np.testing.assert_array_equal(np.take_along_axis(x, out, 1), running)
    attained = (x == running) | (np.isnan(x) & np.isnan(running))
    last = np.maximum.accumulate(np.where(attained, np.arange(shape[1]), 0), axis=1)
    np.testing.assert_array_equal(out, last)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("special", [False, True])
def test_log_cumsum_exp(
    shape: Any, special: bool, dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    x = (rng.normal(size=shape) * 100).astype(dtype)
    x[0, :1] = -np.inf
    x = _special(x) if special else x
    out = np.empty_like(x)
    kernels.log_cumsum_exp(x, out)
    with np.errstate(invalid="ignore"):
        agree(out, np.logaddexp.accumulate(x.astype(np.float64), axis=1))


@pytest.mark.parametrize("shape", SHAPES)
def test_recurrence(shape: Any, dtype: Any, rng: np.random.Generator, agree: Agree) -> None:
    b, a = rng.normal(size=(2, *shape)).astype(dtype) * dtype.type(0.7)
    a[:, 0] = np.inf  # without effect
    out, expected = np.empty_like(b), np.empty(shape)
    kernels.recurrence(b, a, out)
    last = np.zeros(shape[0])
    for j in range(shape[1]):
        last = b[:, j] + (a[:, j].astype(np.float64) * last if j else 0)
        expected[:, j] = last
    agree(out, expected, 30)


def test_other_arrays_have_none(rng: np.random.Generator) -> None:
    assert not kernels.has_scans(np.zeros(10))
    assert not kernels.has_scans(np.zeros(200_000, np.float16))
    assert not kernels.has_scans(np.zeros(200_000, np.complex64))
    kernels.set_backend("numpy")
    assert not kernels.has_scans(np.zeros(200_000))


@pytest.mark.parametrize("shape", SHAPES)
def test_cumprod(shape: Any, dtype: Any, rng: np.random.Generator, agree: Agree) -> None:
    x = np.exp(rng.normal(size=shape) / 100).astype(dtype)
    out = np.empty_like(x)
    kernels.cumprod(x, out)
    agree(out, np.multiply.accumulate(x.astype(np.float64), axis=1))
