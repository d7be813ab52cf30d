from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels

from .conftest import Array

POWERS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, np.inf]
SHAPES = [(1, 3, 4, 5), (2, 40, 30, 7), (1, 300, 200, 3), (1, 0, 2, 3), (2, 3, 0, 3), (1, 3, 2, 0)]


def _rows(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> tuple[Array, Array]:
    batch, rows, others, size = shape
    x = rng.normal(size=(batch, rows, size)).astype(dtype)
    y = rng.normal(size=(batch, others, size)).astype(dtype)
    y[:, :1] = x[:, :1] if rows and others else y[:, :1]
    return x, y


def _differences(x: Array, y: Array) -> Array:
    return np.asarray(x[:, :, None].astype(np.float64) - y[:, None])


def _norms(differences: Array, p: float) -> Array:
    if not differences.size:
        return np.zeros(differences.shape[:-1])
    return np.asarray(np.linalg.norm(differences, p, -1))


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_distances(
    shape: tuple[int, ...], p: float, dtype: Any, rng: np.random.Generator, agree: Any, backend: str
) -> None:
    x, y = _rows(shape, dtype, rng)
    out: Array = np.full((*x.shape[:2], y.shape[1]), np.nan, dtype)
    kernels.distances(x, y, p, out)
    agree(out, _norms(_differences(x, y), p), 20)
    grad, dx = rng.normal(size=out.shape).astype(dtype), np.full_like(x, np.nan)
    kernels.distances_backward(grad, x, y, out, p, dx)
    with np.errstate(all="ignore"):
        difference: Array = _differences(x, y)
        distance: Array = out[..., None].astype(np.float64)
        size = np.abs(difference)
        if p == np.inf:
            slope = np.sign(difference) * (size == size.max(-1, keepdims=True, initial=0))
        else:
            slope = np.sign(difference) * size ** (p - 1) / distance ** (p - 1)
        slope = np.where((distance == 0) | (difference == 0) | (p == 0), 0, slope)
    agree(dx, (grad[..., None] * slope).sum(2), 300, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_euclidean_distances(
    shape: tuple[int, ...], dtype: Any, rng: np.random.Generator, backend: str
) -> None:
    x, y = _rows(shape, dtype, rng)
    out: Array = np.full((*x.shape[:2], y.shape[1]), np.nan, dtype)
    kernels.euclidean_distances(x, y, out)
    expected = _norms(_differences(x, y), 2)
    # The error of a square is some units of the norms' squares.
    np.testing.assert_allclose(out.astype(np.float64) ** 2, expected**2, atol=4e-6 * 16, rtol=4e-6)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, np.inf])
@pytest.mark.parametrize("at", [0, 2])
def test_nan_and_infinity_stay(p: float, at: int, backend: str) -> None:
    x = np.array([[[0, 1, 2], [np.inf, 0, 0], [1, 2, 3]]], np.float32)
    x[0, 0, at] = np.nan
    y, out = np.zeros((1, 1, 3), np.float32), np.empty((1, 3, 1), np.float32)
    kernels.distances(x, y, p, out)
    np.testing.assert_array_equal(np.isnan(out[0, :, 0]), [True, False, False])
    assert np.isinf(out[0, 1, 0])
    dx = np.empty_like(x)
    kernels.distances_backward(np.ones_like(out), x, y, out, p, dx)
    assert np.isnan(dx[0, 0]).all()
    assert np.isfinite(dx[0, 2]).all()


def test_differences_are_counted(backend: str) -> None:
    x = np.array([[[1, 2, np.inf], [1, np.nan, 0]]], np.float32)
    y, out = np.array([[[1, 0, np.inf]]], np.float32), np.empty((1, 2, 1), np.float32)
    with np.errstate(invalid="ignore"):
        kernels.distances(x, y, 0, out)
    np.testing.assert_array_equal(out[0, :, 0], [2, 2])  # no difference of infinities is 0


def test_an_exponent_beyond_the_dtype_is_infinite(backend: str) -> None:
    x, y = np.array([[[0.5, 0.25]]], np.float32), np.zeros((1, 1, 2), np.float32)
    out, dx = np.empty((1, 1, 1), np.float32), np.empty_like(x)
    kernels.distances(x, y, 1e39, out)
    kernels.distances_backward(np.ones_like(out), x, y, out, 1e39, dx)
    np.testing.assert_array_equal(out, [[[0.5]]])
    np.testing.assert_array_equal(dx, [[[1, 0]]])
