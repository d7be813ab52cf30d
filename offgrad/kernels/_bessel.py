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
from offgrad.kernels._jit import inlined, loop_of
from offgrad.kernels._loop_templates import one_in_float64, slope_in_float64
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


@inlined
def _i0(x: Any) -> Any:
    a = abs(bounded(x))
    return exp(a) * scaled_i0(decay(a))


@inlined
def _i0e(x: Any) -> Any:
    return scaled_i0(decay(abs(finite(x))))


@inlined
def _i1(x: Any) -> Any:
    b = bounded(x)
    return exp(abs(b)) * (b * scaled_i1(decay(abs(b))))


@inlined
def _i1e(x: Any) -> Any:
    b = finite(x)
    return b * scaled_i1(decay(abs(b)))


@inlined
def _i0e_slope(x: Any) -> Any:
    b = finite(x)
    return against_sign(b, fall_of_scaled_i0(decay(abs(b))))


@inlined
def _i1_slope(x: Any) -> Any:
    a = abs(bounded(x))
    return difference_of_finite(exp(a) * scaled_slope_of_i1(decay(a)))


@inlined
def _i1e_slope(x: Any) -> Any:
    return slope_of_scaled_i1(decay(abs(finite(x))))


_i0_loop = loop_of(one_in_float64, _i0)
_i0e_loop = loop_of(one_in_float64, _i0e)
_i1_loop = loop_of(one_in_float64, _i1)
_i1e_loop = loop_of(one_in_float64, _i1e)
_i0_backward_loop = loop_of(slope_in_float64, _i1)
_i0e_backward_loop = loop_of(slope_in_float64, _i0e_slope)
_i1_backward_loop = loop_of(slope_in_float64, _i1_slope)
_i1e_backward_loop = loop_of(slope_in_float64, _i1e_slope)
