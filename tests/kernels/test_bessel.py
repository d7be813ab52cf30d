from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from offgrad import kernels
from offgrad.kernels._special import FEW
from tests.kernels.ulps import numbers, ulps

Array = npt.NDArray[Any]

NAMES = ("i0", "i0e", "i1", "i1e")


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
    """The derivative in float64, for numbers at which its terms do not cancel."""
    from scipy import special

    x = x.astype(np.float64)
    near = np.abs(x) < 1e-10
    quotient = np.where(near, 0.5, special.i1e(x) / np.where(near, 1, x))
    sign = np.sign(x)
    slopes: dict[str, Callable[[], Array]] = {
        "i0": lambda: special.i1(x),
        "i0e": lambda: special.i1e(x) - sign * special.i0e(x),
        "i1": lambda: (special.i0e(x) - quotient) * np.exp(np.abs(x)),
        "i1e": lambda: special.i0e(x) - quotient - sign * special.i1e(x),
    }
    return slopes[name]()


def _backward(name: str, grad: Array, x: Array) -> Array:
    out = np.empty_like(x)
    getattr(kernels, f"{name}_backward")(grad, x, out)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_functions_are_accurate(name: str, rng: np.random.Generator) -> None:
    x = numbers(rng, 1e-3, 3, 20, 100)
    out, few = np.empty_like(x), np.empty_like(x[:100])
    getattr(kernels, name)(x, out)
    exact = _exact(name, x)
    assert ulps(out, exact).max() <= 0.6
    getattr(kernels, name)(x[:100], few)
    assert ulps(few, exact[:100]).max() <= 1
    sign = np.signbit(x) if name in ("i1", "i1e") else np.zeros(x.shape, np.bool_)
    signed = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(out[signed]), sign[signed])


@pytest.mark.parametrize("name", NAMES)
def test_slopes_are_accurate(name: str, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-limit, limit, 9000) for limit in (1e-3, 3, 90, 1e4)])
    x = np.concatenate([[0, 1e-45, -1e-45, 1e-20], x]).astype(np.float32)
    slopes, exact = _backward(name, np.ones_like(x), x), _exact_slope(name, x)
    if name == "i1":
        exact = np.where(np.isinf(exact.astype(np.float32)), np.nan, exact)
    if name == "i1e":  # crosses 0 at -1.56 and 1.56
        near_0 = np.abs(exact) < 1e-3
        np.testing.assert_allclose(slopes[near_0], exact[near_0], rtol=0, atol=1e-9)
        slopes, exact = slopes[~near_0], exact[~near_0]
    assert ulps(slopes, exact).max() <= (2 if name == "i1e" else 1.2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [9, FEW + 9])
def test_slopes_at_the_ends(name: str, size: int, dtype: Any, backend: str) -> None:
    x = np.ones(size, dtype)
    x[:7] = 0.0, -0.0, 1e4, -1e4, np.inf, -np.inf, np.nan
    infinite = {"i0": [np.inf, -np.inf, np.nan, np.nan], "i1": [np.nan] * 4}
    expected = {"i0": [0, 0], "i0e": [0, 0]}.get(name, [0.5, 0.5])
    slopes = _backward(name, np.ones_like(x), x)
    np.testing.assert_array_equal(slopes[:2], expected)
    if name in infinite:
        np.testing.assert_array_equal(slopes[2:6], infinite[name])
        zeros = _backward(name, np.zeros_like(x), x)
        assert np.isnan(zeros[2:7]).all()
        assert not zeros[7:].any()
    else:
        np.testing.assert_allclose(slopes[2:4], _exact_slope(name, x[2:4]), rtol=1e-2)
        np.testing.assert_array_equal(slopes[4:6], [0, 0])
    assert np.isnan(slopes[6])


@pytest.mark.parametrize("name", NAMES)
def test_backends_agree(name: str, dtype: Any, backend: str, rng: np.random.Generator) -> None:
    x, grad = (4 * rng.normal(size=(2, 40, 60))).astype(dtype)
    unit = 1e-5 if dtype == np.float32 else 1e-13
    out = np.empty((40, 60), dtype)
    getattr(kernels, name)(x.T.copy().T, out)
    np.testing.assert_allclose(out, _exact(name, x), rtol=unit)
    expected = grad * _exact_slope(name, x)
    np.testing.assert_allclose(_backward(name, grad, x), expected, rtol=unit, atol=unit)
    row = _backward(name, np.broadcast_to(grad[:1], x.shape), x)
    np.testing.assert_allclose(row, grad[:1] * _exact_slope(name, x), rtol=unit, atol=unit)
