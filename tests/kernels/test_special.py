from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from offgrad import kernels
from offgrad.kernels._jit import Kernel
from offgrad.kernels._special import (
    FEW,
    _erfinv_numpy,
    _floor_divide_loop,
    _fmod_loop,
    _remainder_loop,
)
from tests.kernels.ulps import SPECIAL, ulps

Array = npt.NDArray[Any]
Exact = Callable[[Array], Array]

ERROR_FUNCTIONS: dict[str, Exact] = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
}


def _remainder(a: Array, b: Array) -> Array:
    """`np.remainder`, but a zero has the sign of `a`."""
    mod = np.remainder(a, b)
    return np.where(mod == 0, np.copysign(mod, a), mod)


DIVISIONS: dict[str, tuple[Callable[..., Any], Kernel[..., None]]] = {
    "fmod": (np.fmod, _fmod_loop),
    "remainder": (_remainder, _remainder_loop),
    "floor_divide": (np.floor_divide, _floor_divide_loop),
}
ULPS = {"erf": 2, "erfc": 4}


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Ignore floating point errors, as operations do."""
    with np.errstate(all="ignore"):
        yield


def _random_bits(rng: np.random.Generator, size: int) -> Array:
    return rng.integers(0, 2**32, size, dtype=np.uint64).astype(np.uint32).view(np.float32)


def _numbers(rng: np.random.Generator, limit: float) -> Array:
    """Numbers of all sizes, signs and kinds, those up to a limit most densely."""
    dense = np.linspace(-limit, limit, 60_001)
    return np.concatenate([SPECIAL, dense, _random_bits(rng, 20_000)]).astype(np.float32)


@pytest.mark.parametrize("name", ERROR_FUNCTIONS)
def test_error_functions_are_accurate(name: str, rng: np.random.Generator) -> None:
    x = _numbers(rng, 11)
    out, few = np.empty_like(x), np.empty_like(x[:100])
    getattr(kernels, name)(x, out)
    exact = ERROR_FUNCTIONS[name](x.astype(np.float64))
    assert ulps(out, exact).max() <= ULPS[name]
    getattr(kernels, name)(x[:100], few)
    assert ulps(few, exact[:100]).max() <= 0.5
    if name == "erf":
        np.testing.assert_array_equal(np.signbit(out[x == 0]), np.signbit(x[x == 0]))


@pytest.mark.parametrize("name", ERROR_FUNCTIONS)
@pytest.mark.parametrize("size", [7, FEW + 1])
def test_error_functions_in_float64_are_the_c_librarys(
    name: str, size: int, rng: np.random.Generator, backend: str
) -> None:
    x = rng.normal(size=size) * 3
    x[:5] = 0.0, -0.0, np.inf, -np.inf, np.nan
    out = np.empty_like(x)
    getattr(kernels, name)(x, out)
    np.testing.assert_allclose(out, ERROR_FUNCTIONS[name](x), rtol=5e-16)


def test_erfinv_is_accurate(rng: np.random.Generator) -> None:
    near_1 = 1 - 2.0 ** -rng.uniform(0, 24, 20_000)
    ends = [1.0, -1.0, np.nextafter(np.float32(1), np.float32(0)), 1.5, -np.inf, np.nan, 1e-45]
    x = np.concatenate([ends, near_1, _numbers(rng, 1)]).astype(np.float32)
    out, exact = np.empty_like(x), np.empty(x.size)
    kernels.erfinv(x, out)
    _erfinv_numpy(x.astype(np.float64), exact)
    assert ulps(out, exact).max() <= 4
    np.testing.assert_array_equal(out[:6], [np.inf, -np.inf, out[2], np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(np.signbit(out[x == 0]), np.signbit(x[x == 0]))


@pytest.mark.parametrize("size", [9, FEW + 1])
def test_erfinv_inverts_erf(size: int, dtype: Any, backend: str) -> None:
    x = np.linspace(-0.999, 0.999, size).astype(dtype)
    inverse, again = np.empty_like(x), np.empty_like(x)
    kernels.erfinv(x, inverse)
    kernels.erf(inverse, again)
    np.testing.assert_allclose(again, x, rtol=1e-6 if dtype == np.float32 else 2e-15)


@pytest.mark.parametrize("name", ["erf", "erfc", "erfinv"])
def test_float16_is_computed_in_float32(name: str, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, FEW + 1).astype(np.float16)
    out, wide = np.empty_like(x), np.empty(x.size, np.float32)
    getattr(kernels, name)(x, out)
    getattr(kernels, name)(x.astype(np.float32), wide)
    np.testing.assert_array_equal(out, wide.astype(np.float16))


def _operands(rng: np.random.Generator) -> dict[str, tuple[Array, Array]]:
    size = 40_000
    b = rng.normal(size=size).astype(np.float32)
    quotients = np.round(2.0 ** rng.uniform(-3, 40, size)) * rng.choice([-1, 1], size)
    multiples = (b * quotients).astype(np.float32)
    small = np.exp2(rng.uniform(-149, -100, size)).astype(np.float32)
    return {
        "any bits": (_random_bits(rng, size), _random_bits(rng, size)),
        "usual numbers": (100 * rng.normal(size=size).astype(np.float32), b),
        "multiples": (multiples, b),
        "next to multiples": (np.nextafter(multiples, multiples * 2), b),
        "quarters": (
            rng.integers(-50, 50, size).astype(np.float32) / 4,
            rng.integers(-12, 13, size).astype(np.float32) / 4,
        ),
        "subnormal": (small * 100, small[::-1] * rng.choice([-1, 1], size).astype(np.float32)),
        "special": (
            np.tile(np.array(SPECIAL, np.float32), len(SPECIAL) * 9),
            np.tile(np.repeat(np.array(SPECIAL, np.float32), len(SPECIAL)), 9),
        ),
    }


def _same_bits(actual: Array, expected: Array) -> None:
    numbers = ~(np.isnan(actual) & np.isnan(expected))
    np.testing.assert_array_equal(actual.view(np.int32)[numbers], expected.view(np.int32)[numbers])


@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions_have_numpys_bits(name: str, rng: np.random.Generator) -> None:
    ufunc, loop = DIVISIONS[name]
    for a, b in _operands(rng).values():
        expected = ufunc(a, b)
        out = np.empty_like(a)
        getattr(kernels, name)(a, b, out)
        _same_bits(out, expected)
        # The loop says where NumPy must compute, and is right elsewhere.
        inexact = np.ones(-(-a.size // 1024), np.bool_)
        loop(a, b, out, inexact)
        exact = ~np.repeat(inexact, 1024)[: a.size]
        _same_bits(out[exact], expected[exact])


def test_hypot(rng: np.random.Generator) -> None:
    for a, b in _operands(rng).values():
        out = np.empty_like(a)
        kernels.hypot(a, b, out)
        exact = np.hypot(a.astype(np.float64), b.astype(np.float64))
        assert ulps(out, exact).max() <= 2


@pytest.mark.parametrize("name", DIVISIONS)
def test_no_usual_quotient_is_left_to_numpy(name: str, rng: np.random.Generator) -> None:
    a, b = _operands(rng)["usual numbers"]
    inexact = np.ones(-(-a.size // 1024), np.bool_)
    DIVISIONS[name][1](a, b, np.empty_like(a), inexact)
    assert not inexact.any()


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "int64"])
@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions_broadcast(name: str, kind: str, rng: np.random.Generator, backend: str) -> None:
    a = (rng.normal(size=(300, 500)) * 20).astype(kind)
    b = rng.integers(1, 9, (300, 500)).astype(kind)
    for x, y in ((a, b[0]), (a, b[:, :1]), (a.T, b.T), (a[0], b), (a, b[0, 0]), (a[:3], b[:3])):
        out = np.empty(np.broadcast_shapes(x.shape, y.shape), kind)
        getattr(kernels, name)(x, y, out)
        np.testing.assert_array_equal(out, DIVISIONS[name][0](x, y))
