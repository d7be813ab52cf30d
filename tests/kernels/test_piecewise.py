from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from offgrad import kernels

Agree = Callable[..., None]
SHAPES = [(0,), (1,), (), (7, 3), (3, 50_001), (300, 1111)]
# Scale, factor below 0, rate: ELU, SELU, CELU, and CELU with a negative alpha.
PARAMETERS = [(1, 1, 1), (1.0507, 1.7581, 1), (1, 0.5, 2), (1, -2, -0.5)]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Ignore floating point errors, as operations do."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_elu(
    shape: Any, parameters: Any, dtype: Any, rng: np.random.Generator, agree: Agree, backend: str
) -> None:
    scale, below, rate = parameters
    x = np.asarray(rng.normal(size=shape) * 3).astype(dtype)
    grad = np.asarray(rng.normal(size=shape)).astype(dtype)
    out, wide = np.empty_like(x), x.astype(np.float64)
    kernels.elu(x, out, scale, below, rate)
    agree(out, np.where(wide <= 0, below * np.expm1(rate * wide), scale * wide))
    kernels.elu_backward(grad, x, out, scale, below, rate)
    agree(out, grad * np.where(wide <= 0, below * rate * np.exp(rate * wide), scale))


@pytest.mark.parametrize("size", [9, 200_000])
def test_elu_near_0_and_at_the_ends(size: int, dtype: Any, backend: str) -> None:
    x = np.linspace(-1e-3, 1e-3, size).astype(dtype)
    x[:5] = np.nan, np.inf, -np.inf, -1e30, -1e-40
    out = np.empty_like(x)
    kernels.elu(x, out, 1, 1, 1)
    expected = np.where(x <= 0, np.expm1(x.astype(np.float64)), x)
    np.testing.assert_allclose(out, expected, rtol=5e-7 if dtype == np.float32 else 1e-15)
    x[:2] = -0.0, 0.0
    kernels.elu(x, out, 1, 1, 1)
    assert np.signbit(out[:2]).tolist() == [True, False]


@pytest.mark.parametrize("size", [9, 200_000])
def test_elu_has_no_gradient_at_nan(size: int, dtype: Any, backend: str) -> None:
    x, grad = np.full(size, np.nan, dtype), np.ones(size, dtype)
    kernels.elu_backward(grad, x, grad, 1, 1, 1)
    assert np.isnan(grad).all()


BOUNDS = [
    (0, np.nan, 1, 0.2, 0.3, np.nan), (-1, 1, 1, 0, 1, np.nan), (-0.5, 0.5, 0, 2, 5, np.nan),
    (-1, 1, 1, 0, 0, 0), (-0.5, 0.5, 0, 1, 0, 0), (0.5, np.nan, 1, 0, 1, 0),
]  # fmt: skip


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_two_slopes(
    shape: Any, bounds: Any, dtype: Any, rng: np.random.Generator, backend: str
) -> None:
    low, high, inside, outside, undefined, closed = bounds
    x = np.asarray(rng.choice([-np.inf, -1, -0.75, -0.0, 0, 0.5, 1, np.nan, np.inf], shape))
    x = x.astype(dtype)
    grad = np.asarray(rng.choice([1.5, -2, np.inf, np.nan], shape)).astype(dtype)
    out = np.empty_like(x)
    kernels.two_slopes_backward(grad, x, out, *bounds)
    is_inside = (x > low) & (np.isnan(high) | (x < high))
    slopes = np.where(np.isnan(x), undefined, np.where(is_inside, inside, outside))
    expected = np.where(slopes == closed, 0, grad * slopes.astype(dtype))
    np.testing.assert_array_equal(out, expected)


def test_float16_is_computed_in_float32(rng: np.random.Generator) -> None:
    x = rng.normal(size=500).astype(np.float16)
    out, wide = np.empty_like(x), np.empty(500, np.float32)
    calls: tuple[Any, ...] = (
        (kernels.elu, (x,), (1, 1.5, 1)),
        (kernels.elu_backward, (x, x), (1, 1.5, 1)),
        (kernels.two_slopes_backward, (x, x), (0, 1, 1, 0.25, 0)),
    )
    for kernel, inputs, rest in calls:
        kernel(*inputs, out, *rest)
        kernel(*[each.astype(np.float32) for each in inputs], wide, *rest)
        np.testing.assert_array_equal(out, wide.astype(np.float16))


@pytest.mark.parametrize("size", [20, 300_000])
@pytest.mark.parametrize("limits", [(0, np.nan), (0.25, 0)])
def test_logit_backward(size: int, limits: tuple[float, float], dtype: Any, backend: str) -> None:
    x = np.linspace(-0.5, 1.5, size).astype(dtype)
    x[:4] = 0, 1, np.nan, np.inf
    grad = np.linspace(-1, 1, size).astype(dtype)
    out = np.empty_like(x)
    with np.errstate(all="ignore"):
        kernels.logit_backward(grad, x, out, *limits)
        low, outside = limits
        slope = grad / (x * (1 - x))
    expected = np.where((x >= low) & (x <= 1 - low), slope, outside)
    np.testing.assert_allclose(out, expected, 1e-5 if dtype == np.float32 else 1e-12)
