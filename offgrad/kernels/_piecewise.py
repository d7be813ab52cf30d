"""ELU, and gradients of functions with two slopes; in float32 compiled loops.

Arrays broadcast to `out`, which is C-contiguous; 16-bit floats are computed in float32.
"""

from __future__ import annotations

from functools import lru_cache
from math import nan
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._chunks import CHUNK, by_loop, elementwise_flat, keep_where
from offgrad.kernels._fastmath import exp_of_negative, expm1_of_negative
from offgrad.kernels._jit import backend, jit


def elu(x: Array, out: Array, scale: float, below: float, rate: float) -> None:
    """Write scale x into `out`, and below (e^(rate x) - 1) where x is negative."""
    numbers = _numbers(x.dtype, scale, below, rate)
    if _is_compiled(out) and rate > 0:
        by_loop(_elu_loop, out, x, numbers=numbers)
    else:
        elementwise_flat(lambda x, out: _elu_numpy(x, out, *numbers), out, x)


def elu_backward(
    grad: Array, x: Array, out: Array, scale: float, below: float, rate: float
) -> None:
    """Write `grad` times the derivative of ELU at `x` into `out`; at NaN it is NaN."""
    numbers = _numbers(x.dtype, scale, below * rate, rate)
    if _is_compiled(out) and rate > 0:
        by_loop(_elu_backward_loop, out, grad, x, numbers=numbers)
    else:
        elementwise_flat(
            lambda grad, x, out: _elu_backward_numpy(grad, x, out, *numbers), out, grad, x
        )


def two_slopes_backward(
    grad: Array,
    x: Array,
    out: Array,
    low: float,
    high: float,
    inside: float,
    outside: float,
    undefined: float,
    closed: float = nan,
) -> None:
    """Write `grad` times a slope into `out`: `inside` where low < x < high, else `outside`.

    Args:
        grad: the gradient of the results.
        x: the inputs.
        out: the gradient.
        low: the lower bound.
        high: the upper bound; NaN for none.
        inside: the slope between the bounds.
        outside: that at the bounds and beyond.
        undefined: that where x is NaN.
        closed: the slope that lets nothing pass: 0 instead of the product, also where `grad` is
            not finite; NaN for none.
    """
    numbers = _numbers(x.dtype, low, high, inside, outside, undefined, closed)
    if _is_compiled(out):
        by_loop(_two_slopes_backward_loop, out, grad, x, numbers=numbers)
    else:
        elementwise_flat(
            lambda grad, x, out: _two_slopes_backward_numpy(grad, x, out, *numbers), out, grad, x
        )


def logit_backward(grad: Array, x: Array, out: Array, low: float, outside: float) -> None:
    """Write ``grad / (x (1 - x))`` into `out`, and `outside` where x is not from low to 1 - low."""
    numbers = _numbers(x.dtype, low, 1 - low, outside)
    if _is_compiled(out) and out.size > CHUNK:
        by_loop(_logit_backward_loop, out, grad, x, numbers=numbers)
    else:
        elementwise_flat(
            lambda grad, x, out: _logit_backward_numpy(grad, x, out, *numbers), out, grad, x
        )


def _is_compiled(out: Array) -> bool:
    return out.dtype.itemsize < 8 and backend() == "numba"


@lru_cache(64)
def _numbers(dtype: np.dtype[Any], *numbers: float) -> tuple[Any, ...]:
    number = np.float64 if dtype.itemsize == 8 else np.float32
    return tuple([number(each) for each in numbers])


def _elu_numpy(x: Array, out: Array, scale: Any, below: Any, rate: Any) -> None:
    low = np.expm1(np.minimum(x, x.dtype.type(0)) * rate) * below
    out[...] = np.where(x < 0, low, x * scale)


def _elu_backward_numpy(
    grad: Array, x: Array, out: Array, scale: Any, below: Any, rate: Any
) -> None:
    # Above 0 the exponential is not used, and must not overflow.
    low = np.exp(np.minimum(x, x.dtype.type(0)) * rate) * below
    out[...] = grad * np.where(x > 0, scale, low)


def _two_slopes_backward_numpy(
    grad: Array,
    x: Array,
    out: Array,
    low: Any,
    high: Any,
    inside: Any,
    outside: Any,
    undefined: Any,
    closed: Any,
) -> None:
    slope = np.where((x <= low) | (x >= high), outside, inside)
    if undefined != inside:
        np.copyto(slope, undefined, where=np.isnan(x))
    np.multiply(grad, slope, out=out)
    if closed == closed:
        keep_where(out, lambda start, stop: slope[start:stop] != closed, out)


def _logit_backward_numpy(
    grad: Array, x: Array, out: Array, low: Any, high: Any, outside: Any
) -> None:
    slope = grad / (x * (1 - x))
    out[...] = np.where((x >= low) & (x <= high), slope, outside)


@jit
def _elu_loop(x: Any, out: Any, scale: Any, below: Any, rate: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    zero = x.dtype.type(0)
    for i in range(x.size):
        a = x[i]
        low = below * expm1_of_negative((zero if a > zero else a) * rate)
        high = a * scale
        out[i] = low if a < zero else high


@jit
def _elu_backward_loop(
    grad: Any, x: Any, out: Any, scale: Any, below: Any, rate: Any, start: int, stop: int
) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    zero = x.dtype.type(0)
    for i in range(x.size):
        a = x[i]
        low = below * exp_of_negative((zero if a > zero else a) * rate)
        # Not `a <= zero`: NaN is in `low`.
        out[i] = grad[i] * (scale if a > zero else low)


@jit
def _two_slopes_backward_loop(
    grad: Any,
    x: Any,
    out: Any,
    low: Any,
    high: Any,
    inside: Any,
    outside: Any,
    undefined: Any,
    closed: Any,
    start: int,
    stop: int,
) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    zero = x.dtype.type(0)
    for i in range(x.size):
        a = x[i]
        slope = outside if (a <= low) | (a >= high) else inside
        slope = slope if a == a else undefined
        product = grad[i] * slope
        out[i] = zero if slope == closed else product


@jit
def _logit_backward_loop(
    grad: Any, x: Any, out: Any, low: Any, high: Any, outside: Any, start: int, stop: int
) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    one = x.dtype.type(1)
    for i in range(x.size):
        a = x[i]
        g = grad[i]
        is_inside = (a >= low) & (a <= high)
        product = a * (one - a)
        # Selections of what is computed anyway: LLVM would branch to divide.
        out[i] = (g if is_inside else outside) / (product if is_inside else one)
