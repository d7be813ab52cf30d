from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from offgrad import kernels

Array = npt.NDArray[Any]
Agree = Callable[..., None]
SHAPES = [(0,), (1,), (), (7, 3), (3, 50_001), (300, 1111)]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Ignore floating point errors, as operations do."""
    with np.errstate(all="ignore"):
        yield


class Function(NamedTuple):
    """A kernel, that of its gradient, and both in plain float64."""

    kernel: Callable[..., None]
    backward: Callable[..., None]
    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    parameters: tuple[float, ...] = ()


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _mish_slope(x: Array) -> Array:
    t = np.tanh(np.logaddexp(0, x))
    return np.asarray(t + x * _sigmoid(x) * (1 - t * t))


FUNCTIONS = {
    "silu": Function(
        kernels.silu,
        kernels.silu_backward,
        lambda x: x * _sigmoid(x),
        lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x)),
    ),
    "softplus": Function(
        kernels.softplus,
        kernels.softplus_backward,
        lambda x: np.where(x > 20, x, np.logaddexp(0, x)),
        lambda x: np.where(x > 20, 1, _sigmoid(x)),
        (1.0, 20.0),
    ),
    "steep softplus": Function(
        kernels.softplus,
        kernels.softplus_backward,
        lambda x: np.where(2.5 * x > 0.9, x, np.logaddexp(0, 2.5 * x) / 2.5),
        lambda x: np.where(2.5 * x > 0.9, 1, _sigmoid(2.5 * x)),
        (2.5, 0.9),
    ),
    "softplus downwards": Function(
        kernels.softplus,
        kernels.softplus_backward,
        lambda x: np.where(-1.5 * x > -2, x, np.logaddexp(0, -1.5 * x) / -1.5),
        lambda x: np.where(-1.5 * x > -2, 1, _sigmoid(-1.5 * x)),
        (-1.5, -2.0),
    ),
    "log_sigmoid": Function(
        kernels.log_sigmoid,
        kernels.log_sigmoid_backward,
        lambda x: -np.logaddexp(0, -x),
        lambda x: _sigmoid(-x),
    ),
    "mish": Function(
        kernels.mish,
        kernels.mish_backward,
        lambda x: x * np.tanh(np.logaddexp(0, x)),
        _mish_slope,
    ),
}

every_function = pytest.mark.parametrize("name", FUNCTIONS)


@every_function
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(
    name: str, shape: Any, dtype: Any, rng: np.random.Generator, agree: Agree, backend: str
) -> None:
    function = FUNCTIONS[name]
    x = np.asarray(rng.normal(size=shape) * 4).astype(dtype)
    grad = np.asarray(rng.normal(size=shape)).astype(dtype)
    out, wide = np.empty_like(x), x.astype(np.float64)
    function.kernel(x, out, *function.parameters)
    agree(out, function.value(wide))
    function.backward(grad, x, out, *function.parameters)
    agree(out, grad * function.slope(wide))


@every_function
def test_small_results_keep_their_digits(name: str, backend: str) -> None:
    function = FUNCTIONS[name]
    x = np.linspace(-80, 80, 4001).astype(np.float32)
    out = np.empty_like(x)
    function.kernel(x, out, *function.parameters)
    exact = function.value(x.astype(np.float64))
    # Relative to each result; an exponent's rounding error is the limit.
    np.testing.assert_allclose(out, exact, rtol=1e-5 if "soft" in name else 1e-6, atol=1e-37)


@every_function
@pytest.mark.parametrize("size", [16, 200_000])
def test_special_values(name: str, size: int, dtype: Any, backend: str) -> None:
    function = FUNCTIONS[name]
    x = np.zeros(size, dtype)
    x[:10] = 0.0, -0.0, np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-40, 200, -200
    out, grad = np.empty_like(x), np.ones_like(x)
    value, slope = (each(x.astype(np.float64)) for each in (function.value, function.slope))
    function.kernel(x, out, *function.parameters)
    np.testing.assert_allclose(out, value, rtol=1e-6, atol=1e-37)
    function.backward(grad, x, out, *function.parameters)
    np.testing.assert_allclose(out, slope, rtol=1e-6, atol=1e-37)


@every_function
def test_float16_is_computed_in_float32(name: str) -> None:
    function = FUNCTIONS[name]
    x = np.linspace(-9, 9, 1000).astype(np.float16)
    out, wide = np.empty_like(x), np.empty(x.size, np.float32)
    function.kernel(x, out, *function.parameters)
    function.kernel(x.astype(np.float32), wide, *function.parameters)
    np.testing.assert_array_equal(out, wide.astype(np.float16))


@every_function
def test_strided_gradients(name: str, dtype: Any, rng: np.random.Generator) -> None:
    function = FUNCTIONS[name]
    x = rng.normal(size=(300, 500)).astype(dtype)
    grads = rng.normal(size=(500, 300)).astype(dtype).T, np.broadcast_to(dtype.type(2), x.shape)
    for grad in grads:
        out, expected = np.empty_like(x), np.empty_like(x)
        function.backward(grad, x, out, *function.parameters)
        function.backward(grad.copy(), x, expected, *function.parameters)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_sigmoid(shape: Any, dtype: Any, rng: np.random.Generator, agree: Agree) -> None:
    x = np.asarray(rng.normal(size=shape) * 9).astype(dtype)
    exact = _sigmoid(x.astype(np.float64))
    y, reference, out = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    kernels.sigmoid(x, y)
    # Small results keep their digits.
    np.testing.assert_allclose(y, exact, rtol=1e-6 if dtype == np.float32 else 2e-15)
    kernels.set_backend("numpy")
    kernels.sigmoid(x, reference)
    agree(y, reference)
    kernels.set_backend("numba")
    kernels.quadratic_backward(x, y, out, 0, 1, -1)
    agree(out, x * y.astype(np.float64) * (1 - y))
    kernels.quadratic_backward(x, y, out, 1, 0, -1)
    agree(out, x * (1 - y.astype(np.float64) ** 2))


def test_the_derivative_of_sigmoid_keeps_its_digits_near_1(backend: str) -> None:
    y = 1 - np.linspace(0, 1e-5, 5000, dtype=np.float32)
    out = np.empty_like(y)
    kernels.quadratic_backward(np.ones_like(y), y, out, 0, 1, -1)
    exact = y.astype(np.float64) * (1 - y.astype(np.float64))
    np.testing.assert_allclose(out, exact, rtol=1e-6)


@pytest.mark.parametrize("size", [9, 200_000])
def test_sigmoid_of_special_values(size: int, dtype: Any, backend: str) -> None:
    x = np.zeros(size, dtype)
    x[:7] = np.nan, np.inf, -np.inf, 1e30, -1e30, -80, 0.0
    out = np.empty_like(x)
    kernels.sigmoid(x, out)
    np.testing.assert_allclose(out[:7], [np.nan, 1, 0, 1, 0, 1 / (1 + np.exp(80.0)), 0.5], 1e-6)


@pytest.mark.parametrize(
    "shape", [(3, 2, 5), (1, 2, 200_001), (70_000, 2, 3), (0, 2, 4), (4, 2, 0)]
)
def test_glu(shape: Any, dtype: Any, rng: np.random.Generator, agree: Agree, backend: str) -> None:
    x = (rng.normal(size=shape) * 4).astype(dtype)
    grad = rng.normal(size=(shape[0], shape[2])).astype(dtype)
    out, dx = np.empty_like(grad), np.empty_like(x)
    kernels.glu(x, out)
    kernels.glu_backward(grad, x, dx)
    (a, b), g = np.moveaxis(x.astype(np.float64), 1, 0), grad.astype(np.float64)
    agree(out, a * _sigmoid(b))
    agree(dx, np.stack([g * _sigmoid(b), g * a * _sigmoid(b) * _sigmoid(-b)], 1))


def test_glu_of_special_values(dtype: Any, backend: str) -> None:
    gates = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e30, -1e30, 200, -200]
    x = np.array([[np.full(len(gates), 2.0), gates]], dtype)
    out, dx = np.empty((1, len(gates)), dtype), np.empty_like(x)
    kernels.glu(x, out)
    kernels.glu_backward(np.ones_like(out), x, dx)
    sigmoid = _sigmoid(x[0, 1].astype(np.float64))
    np.testing.assert_allclose(out[0], 2 * sigmoid, rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(dx[0, 0], sigmoid, rtol=1e-6, atol=1e-37)
    slope = 2 * sigmoid * _sigmoid(-x[0, 1].astype(np.float64))
    np.testing.assert_allclose(dx[0, 1], slope, rtol=1e-6, atol=1e-37)
