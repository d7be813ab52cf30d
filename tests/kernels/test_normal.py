from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from offgrad import kernels
from offgrad.kernels._special import FEW
from tests.kernels.ulps import numbers, ulps

Array = npt.NDArray[Any]

NAMES = ("ndtr", "log_ndtr", "erfcx")


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Ignore floating point errors, as operations do."""
    with np.errstate(all="ignore"):
        yield


def _exact(name: str, x: Array) -> Array:
    from scipy import special

    result: Array = getattr(special, name)(x.astype(np.float64))
    return result


def _exact_slope(name: str, x: Array) -> Array:
    from scipy import special

    x = x.astype(np.float64)
    density: Array = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    if name == "ndtr":
        return density
    if name == "log_ndtr":
        low: Array = np.sqrt(2 / np.pi) / special.erfcx(-np.minimum(x, 0) / np.sqrt(2))
        return np.asarray(np.where(x < 0, low, density / special.ndtr(x)))
    slope: Array = 2 * x * special.erfcx(x) - 2 / np.sqrt(np.pi)
    s = 1 / (2 * np.maximum(x, 1) ** 2)
    series = -s * 2 / np.sqrt(np.pi) * (1 - 3 * s * (1 - 5 * s * (1 - 7 * s * (1 - 9 * s))))
    return np.asarray(np.where(x > 100, series, slope))


def _backward(name: str, grad: Array, x: Array) -> Array:
    out = np.empty_like(x)
    getattr(kernels, f"{name}_backward")(grad, x, out)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_functions_are_accurate(name: str, rng: np.random.Generator) -> None:
    x = numbers(rng, 1e-3, 3, 20, 1000)
    out, few = np.empty_like(x), np.empty_like(x[:100])
    getattr(kernels, name)(x, out)
    exact = _exact(name, x)
    assert ulps(out, exact).max() <= 0.6
    getattr(kernels, name)(x[:100], few)
    assert ulps(few, exact[:100]).max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_slopes_are_accurate(name: str, rng: np.random.Generator) -> None:
    x = numbers(rng, 1e-3, 3, 20, 1000)
    exact = _exact_slope(name, x)
    assert ulps(_backward(name, np.ones_like(x), x), exact).max() <= 0.6
    few = _backward(name, np.ones_like(x[:500]), x[:500])
    np.testing.assert_allclose(few, exact[:500], rtol=1e-6, atol=1e-40)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [9, FEW + 9])
def test_slopes_at_the_ends(name: str, size: int, dtype: Any, backend: str) -> None:
    x = np.ones(size, dtype)
    x[:7] = 0.0, -0.0, 1e4, -1e4, np.inf, -np.inf, np.nan
    lowest = {"ndtr": 0, "log_ndtr": np.inf, "erfcx": -np.inf}[name]
    slopes = _backward(name, np.ones_like(x), x)
    np.testing.assert_allclose(slopes[:4], _exact_slope(name, x[:4]), rtol=1e-6)
    np.testing.assert_array_equal(slopes[4:7], [0, lowest, np.nan])


@pytest.mark.parametrize("name", NAMES)
def test_backends_agree(name: str, dtype: Any, backend: str, rng: np.random.Generator) -> None:
    x, grad = (2 * rng.normal(size=(2, 40, 60))).astype(dtype)
    unit = 1e-5 if dtype == np.float32 else 1e-12
    out = np.empty((40, 60), dtype)
    getattr(kernels, name)(x.T.copy().T, out)
    np.testing.assert_allclose(out, _exact(name, x), rtol=unit)
    slope = _exact_slope(name, x)
    np.testing.assert_allclose(_backward(name, grad, x), grad * slope, rtol=unit)
    row = _backward(name, np.broadcast_to(grad[:1], x.shape), x)
    np.testing.assert_allclose(row, grad[:1] * slope, rtol=unit)
