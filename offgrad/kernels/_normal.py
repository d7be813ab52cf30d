"""The normal distribution function, its logarithm, erfcx; products of gradients with their slopes.

SciPy computes these one element at a time. The loops' results and slopes are within 0.6 ulps of
float32. 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._elementary_math import log_of_sum
from offgrad.kernels._jit import jit
from offgrad.kernels._normal_math import erfcx_of_positive, exp_of_square, fall_of_erfcx, of_sign
from offgrad.kernels._special import run, scipy_function

_SQRT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_RATIO = math.sqrt(2 / math.pi)
_SLOPE = 2 / math.sqrt(math.pi)
_FAR = 1e3


def ndtr(x: Array, out: Array) -> None:
    """Write the normal distribution function into `out`."""
    run(_ndtr_loop, scipy_function("ndtr"), out, x)


def log_ndtr(x: Array, out: Array) -> None:
    """Write the logarithm of the normal distribution function into `out`, without underflow."""
    run(_log_ndtr_loop, scipy_function("log_ndtr"), out, x)


def erfcx(x: Array, out: Array) -> None:
    """Write ``exp(x**2) * erfc(x)`` into `out`, without overflow or underflow for x > 0."""
    run(_erfcx_loop, scipy_function("erfcx"), out, x)


def ndtr_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of `ndtr`, the normal density, into `out`."""
    run(_ndtr_backward_loop, _ndtr_backward_numpy, out, grad, x)


def log_ndtr_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of `log_ndtr`, infinite at -infinity, into `out`."""
    run(_log_ndtr_backward_loop, _log_ndtr_backward_numpy, out, grad, x)


def erfcx_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of `erfcx` into `out`; no terms cancel for large x."""
    run(_erfcx_backward_loop, _erfcx_backward_numpy, out, grad, x)


def _ndtr_backward_numpy(grad: Array, x: Array, out: Array) -> None:
    np.multiply(grad, np.exp(x * x * -0.5) * _DENSITY, out=out)


def _log_ndtr_backward_numpy(grad: Array, x: Array, out: Array) -> None:
    from scipy import special

    # Above 0 the first form would overflow, below the second is 0 / 0.
    low = _RATIO / special.erfcx(np.minimum(x, 0) * -_SQRT_HALF)
    high = np.exp(x * x * -0.5) * _DENSITY / special.ndtr(np.maximum(x, 0))
    np.multiply(grad, np.where(x < 0, low, high), out=out)


def _erfcx_backward_numpy(grad: Array, x: Array, out: Array) -> None:
    from scipy import special

    # The terms of the derivative cancel for large x: float64, and two terms of a series.
    wide = x.astype(np.float64)
    s = 1 / np.square(np.maximum(wide, _FAR))
    far = -_SLOPE / 2 * s * (1 - 1.5 * s)
    near = 2 * wide * special.erfcx(np.minimum(wide, _FAR)) - _SLOPE
    np.multiply(grad, np.where(x < _FAR, near, far).astype(x.dtype), out=out)


@jit
def _ndtr_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        a = np.float64(x[i])
        tail = 0.5 * (erfcx_of_positive(abs(a) * _SQRT_HALF) * exp_of_square(a, -0.5))
        out[i] = of_sign(a, tail, 1.0 - tail)


@jit
def _log_ndtr_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        a = np.float64(x[i])
        scaled = 0.5 * erfcx_of_positive(abs(a) * _SQRT_HALF)
        tail = scaled * exp_of_square(a, -0.5)
        logarithm = log_of_sum(of_sign(a, scaled, 1.0 - tail), -tail)
        out[i] = logarithm - of_sign(a, 0.5 * (a * a), 0.0)


@jit
def _erfcx_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        a = np.float64(x[i])
        value = erfcx_of_positive(abs(a))
        out[i] = of_sign(a, 2.0 * exp_of_square(a, 1.0) - value, value)


@jit
def _ndtr_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    for i in range(x.size):
        slope = _DENSITY * exp_of_square(np.float64(x[i]), -0.5)
        out[i] = grad[i] * np.float32(slope)


@jit
def _log_ndtr_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    for i in range(x.size):
        a = np.float64(x[i])
        scaled = 0.5 * erfcx_of_positive(abs(a) * _SQRT_HALF)
        density = exp_of_square(a, -0.5)
        share = of_sign(a, 1.0, density) / of_sign(a, scaled, 1.0 - scaled * density)
        out[i] = grad[i] * np.float32(_DENSITY * share)


@jit
def _erfcx_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    for i in range(x.size):
        a = np.float64(x[i])
        fall = fall_of_erfcx(abs(a))
        below = 4.0 * abs(a) * exp_of_square(a, 1.0)
        out[i] = grad[i] * np.float32(-of_sign(a, below + fall, fall))
