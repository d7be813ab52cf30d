"""Modified Bessel functions of the first kind, and products of gradients with their slopes.

SciPy computes these one element at a time. The loops' results are within 0.6 ulps of float32, and
the slopes of scaled functions within 2 where they are not near their zeros. As in SciPy and
PyTorch, `i0` and `i1` are NaN at infinity. 16-bit floats are computed in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._bessel_math import (
    against_sign,
    bounded,
    decay,
    difference_of_finite,
    fall_of_scaled_i0,
    finite,
    scaled_i0,
    scaled_i1,
    scaled_slope_of_i1,
    slope_of_scaled_i1,
)
from offgrad.kernels._elementary_math import exp
from offgrad.kernels._jit import jit
from offgrad.kernels._special import run, scipy_function


def i0(x: Array, out: Array) -> None:
    """Write the modified Bessel function of order 0 into `out`."""
    run(_i0_loop, scipy_function("i0"), out, x)


def i0e(x: Array, out: Array) -> None:
    """Write ``exp(-abs(x)) * i0(x)`` into `out`."""
    run(_i0e_loop, scipy_function("i0e"), out, x)


def i1(x: Array, out: Array) -> None:
    """Write the modified Bessel function of order 1 into `out`."""
    run(_i1_loop, scipy_function("i1"), out, x)


def i1e(x: Array, out: Array) -> None:
    """Write ``exp(-abs(x)) * i1(x)`` into `out`."""
    run(_i1e_loop, scipy_function("i1e"), out, x)


def i0_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of `i0`, which is `i1`, into `out`."""
    run(_i0_backward_loop, _i0_backward_numpy, out, grad, x)


def i0e_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of `i0e`, 0 at 0, into `out`."""
    run(_i0e_backward_loop, _i0e_backward_numpy, out, grad, x)


def i1_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of `i1`, NaN where that is infinite, into `out`."""
    run(_i1_backward_loop, _i1_backward_numpy, out, grad, x)


def i1e_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of `i1e` into `out`."""
    run(_i1e_backward_loop, _i1e_backward_numpy, out, grad, x)


def _i0_backward_numpy(grad: Array, x: Array, out: Array) -> None:
    from scipy import special

    np.multiply(grad, special.i1(x), out=out)


def _i0e_backward_numpy(grad: Array, x: Array, out: Array) -> None:
    from scipy import special

    np.multiply(grad, special.i1e(x) - np.sign(x) * special.i0e(x), out=out)


def _i1_backward_numpy(grad: Array, x: Array, out: Array) -> None:
    from scipy import special

    slope = special.i0(x) - special.i1(x) / _nonzero(x)
    np.multiply(grad, np.where(_is_near_0(x), 0.5, slope).astype(x.dtype), out=out)


def _i1e_backward_numpy(grad: Array, x: Array, out: Array) -> None:
    from scipy import special

    own = special.i1e(x)
    slope = special.i0e(x) - own * np.sign(x) - own / _nonzero(x)
    np.multiply(grad, np.where(_is_near_0(x), 0.5, slope).astype(x.dtype), out=out)


def _is_near_0(x: Array) -> Array:
    """Where 1/2 is the derivative of functions of order 1 to all digits."""
    near: Array = np.abs(x) <= np.finfo(x.dtype).eps
    return near


def _nonzero(x: Array) -> Array:
    return np.where(_is_near_0(x), 1, x)


@jit
def _i0_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        a = abs(bounded(np.float64(x[i])))
        out[i] = exp(a) * scaled_i0(decay(a))


@jit
def _i0e_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = scaled_i0(decay(abs(finite(np.float64(x[i])))))


@jit
def _i1_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        b = bounded(np.float64(x[i]))
        out[i] = exp(abs(b)) * (b * scaled_i1(decay(abs(b))))


@jit
def _i1e_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        b = finite(np.float64(x[i]))
        out[i] = b * scaled_i1(decay(abs(b)))


# A slope is rounded to float32 before it multiplies a gradient, so that an infinite one times 0 is
# NaN, as in the reference.


@jit
def _i0_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    for i in range(x.size):
        b = bounded(np.float64(x[i]))
        slope = exp(abs(b)) * (b * scaled_i1(decay(abs(b))))
        out[i] = grad[i] * np.float32(slope)


@jit
def _i0e_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    for i in range(x.size):
        b = finite(np.float64(x[i]))
        slope = against_sign(b, fall_of_scaled_i0(decay(abs(b))))
        out[i] = grad[i] * np.float32(slope)


@jit
def _i1_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    for i in range(x.size):
        a = abs(bounded(np.float64(x[i])))
        slope = difference_of_finite(exp(a) * scaled_slope_of_i1(decay(a)))
        out[i] = grad[i] * np.float32(slope)


@jit
def _i1e_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    for i in range(x.size):
        slope = slope_of_scaled_i1(decay(abs(finite(np.float64(x[i])))))
        out[i] = grad[i] * np.float32(slope)
