from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._arrays import Array

EDGES = [-np.inf, -3, -1, -0.5, -0.0, 0.0, 0.5, 1, 3, np.inf, np.nan]


def _clip(x: Array) -> Array:
    return np.asarray(np.clip(x + 3, 0, 6) / 6)


ONE: dict[str, Any] = {
    "relu": (lambda x, out: kernels.relu(x, out), lambda x: np.maximum(x, 0)),
    "clip": (
        lambda x, out: kernels.clip(x, out, x.dtype.type(-0.5), x.dtype.type(1)),
        lambda x: np.clip(x, -0.5, 1),
    ),
    "hardsigmoid": (lambda x, out: kernels.hardsigmoid(x, out), _clip),
    "hardswish": (
        lambda x, out: kernels.hardswish(x, out),
        lambda x: x * _clip(x),
    ),
    "softshrink": (
        lambda x, out: kernels.shrink(x, out, 0.5, 0.5),
        lambda x: np.where(np.abs(x) <= 0.5, 0, x - 0.5 * np.sign(x)),
    ),
    "hardshrink": (
        lambda x, out: kernels.shrink(x, out, 0.5, 0),
        lambda x: np.where(np.abs(x) <= 0.5, 0, x),
    ),
    "threshold": (
        lambda x, out: kernels.threshold(x, out, 0.5, -2),
        lambda x: np.where(x <= 0.5, -2, x),
    ),
}


def _input(size: int, dtype: Any) -> Array:
    x = np.random.default_rng(0).standard_normal(size) * 4
    x[: len(EDGES)] = EDGES
    return x.astype(dtype)


@pytest.mark.parametrize("size", [20, 300_000])
@pytest.mark.parametrize("name", ONE)
def test_values(name: str, size: int, dtype: Any, backend: str) -> None:
    kernel, reference = ONE[name]
    x = _input(size, dtype)
    out = np.empty_like(x)
    with np.errstate(invalid="ignore"):
        kernel(x, out)
        np.testing.assert_allclose(out, reference(x), 1e-6, 1e-6)


@pytest.mark.parametrize("size", [20, 300_000])
def test_sign_and_angle(size: int, dtype: Any, backend: str) -> None:
    x = _input(size, dtype)
    out = np.empty_like(x)
    kernels.sign(x, out)
    np.testing.assert_array_equal(out, np.where(np.isnan(x), 0, np.sign(x)))
    kernels.angle(x, out)
    np.testing.assert_array_equal(
        out, np.where(np.isnan(x), x, np.where(x < 0, np.asarray(np.pi, dtype), 0))
    )


@pytest.mark.parametrize("size", [20, 300_000])
def test_lerp_is_exact_at_both_ends(size: int, dtype: Any, backend: str) -> None:
    start, end = np.random.default_rng(0).standard_normal((2, size)).astype(dtype)
    out, zero, number = np.empty_like(start), np.zeros(size, dtype), start.dtype.type
    for zeros in (zero, number(0)):
        kernels.lerp(start, end, zeros, out)
        np.testing.assert_array_equal(out, start)
        kernels.lerp(start, end, zeros + number(1), out)
        np.testing.assert_array_equal(out, end)
    for weight in (np.linspace(-1, 2, size).astype(dtype), number(0.25), number(0.75), number(-1)):
        kernels.lerp(start, end, weight, out)
        np.testing.assert_allclose(out, start * (1 - weight) + end * weight, 1e-4, 1e-5)


@pytest.mark.parametrize("size", [20, 300_000])
def test_gradients(size: int, dtype: Any, backend: str) -> None:
    x, grad = _input(size, dtype), np.ones(size, dtype)
    grad[3] = np.inf
    out, result = np.empty_like(x), np.maximum(x, 0)
    kernels.relu_backward(grad, result, out)
    np.testing.assert_array_equal(out, np.where(result != 0, grad, 0))
    grad[3] = 1
    kernels.hardswish_backward(grad, x, out)
    slope = np.where(x <= -3, 0, np.where(x >= 3, 1, x / 3 + 0.5))
    np.testing.assert_allclose(out, slope, 1e-6, 1e-6)
    kernels.hardswish_backward(np.full_like(x, np.inf), x, out)
    np.testing.assert_array_equal(out[x <= -3], 0)


@pytest.mark.parametrize(
    "shape", [(0, 2, 3), (2, 3, 1), (900, 1200, 1), (0, 3, 1), (3, 4, 5000), (2, 1, 9)]
)
def test_prelu_equals_numpy(shape: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x, grad = rng.standard_normal((2, *shape)).astype(dtype)
    weight = rng.standard_normal(shape[1]).astype(dtype)
    found = []
    for name in ("numba", "numpy"):
        kernels.set_backend(name)
        out, dx, dweight = np.empty_like(x), np.empty_like(x), np.empty_like(weight)
        kernels.prelu(x, weight, out)
        kernels.prelu_backward(grad, x, weight, dx, dweight)
        alone = np.empty_like(weight)
        kernels.prelu_backward(grad, x, weight, None, alone)
        np.testing.assert_array_equal(alone, dweight)
        found.append((out, dx, dweight))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)
