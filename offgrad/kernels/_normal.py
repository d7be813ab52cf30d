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
from offgrad.kernels._jit import inlined, loop_of
from offgrad.kernels._loop_templates import one_in_float64, slope_in_float64
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


@inlined
def _ndtr(x: Any) -> Any:
    tail = 0.5 * (erfcx_of_positive(abs(x) * _SQRT_HALF) * exp_of_square(x, -0.5))
    return of_sign(x, tail, 1.0 - tail)


@inlined
def _log_ndtr(x: Any) -> Any:
    scaled = 0.5 * erfcx_of_positive(abs(x) * _SQRT_HALF)
    tail = scaled * exp_of_square(x, -0.5)
    logarithm = log_of_sum(of_sign(x, scaled, 1.0 - tail), -tail)
    return logarithm - of_sign(x, 0.5 * (x * x), 0.0)


@inlined
def _erfcx(x: Any) -> Any:
    value = erfcx_of_positive(abs(x))
    return of_sign(x, 2.0 * exp_of_square(x, 1.0) - value, value)


@inlined
def _density(x: Any) -> Any:
    return _DENSITY * exp_of_square(x, -0.5)


@inlined
def _log_ndtr_slope(x: Any) -> Any:
    scaled = 0.5 * erfcx_of_positive(abs(x) * _SQRT_HALF)
    density = exp_of_square(x, -0.5)
    share = of_sign(x, 1.0, density) / of_sign(x, scaled, 1.0 - scaled * density)
    return _DENSITY * share


@inlined
def _erfcx_slope(x: Any) -> Any:
    fall = fall_of_erfcx(abs(x))
    below = 4.0 * abs(x) * exp_of_square(x, 1.0)
    return -of_sign(x, below + fall, fall)


_ndtr_loop = loop_of(one_in_float64, _ndtr)
_log_ndtr_loop = loop_of(one_in_float64, _log_ndtr)
_erfcx_loop = loop_of(one_in_float64, _erfcx)
_ndtr_backward_loop = loop_of(slope_in_float64, _density)
_log_ndtr_backward_loop = loop_of(slope_in_float64, _log_ndtr_slope)
_erfcx_backward_loop = loop_of(slope_in_float64, _erfcx_slope)
