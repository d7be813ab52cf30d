"""GELU, exact and by tanh, and its gradient: x * Phi(x), Phi the normal distribution function.

Source: D. Hendrycks, K. Gimpel, "Gaussian error linear units (GELUs)", arXiv:1606.08415.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from offgrad.kernels._arrays import Array, is_half, same_shape
from offgrad.kernels._chunks import by_loop, elementwise_flat
from offgrad.kernels._fastmath import (
    ERFC_P,
    ERFC_T,
    SQRT_HALF,
    exp,
    normal_cdf,
)
from offgrad.kernels._jit import jit, uses_numba

Approximation = Literal["none", "tanh"]

_CUBIC = 0.044715
_TWICE_SQRT_2_PI = 2 * math.sqrt(2 / math.pi)
_PDF_AT_0 = 1 / math.sqrt(2 * math.pi)


def gelu(x: Array, out: Array, approximate: Approximation = "none") -> None:
    """Write GELU of `x` into `out`, of equal shape; `approximate` as in torch ("none", "tanh")."""
    _check(approximate)
    same_shape(x=x, out=out)
    if _is_compiled(x, out):
        by_loop(_gelu_loop if approximate == "none" else _gelu_tanh_loop, out, x)
    else:
        elementwise_flat(lambda x, out: _gelu_numpy(x, out, approximate), out, x)


def gelu_backward(grad: Array, x: Array, out: Array, approximate: Approximation = "none") -> None:
    """Write `grad` times GELU's derivative at `x` into `out`; all have the same shape."""
    _check(approximate)
    same_shape(grad=grad, x=x, out=out)
    if _is_compiled(grad, x, out):
        loop = _gelu_backward_loop if approximate == "none" else _gelu_tanh_backward_loop
        by_loop(loop, out, grad, x)
    else:
        elementwise_flat(
            lambda grad, x, out: _gelu_backward_numpy(grad, x, out, approximate), out, grad, x
        )


def _is_compiled(*arrays: Array) -> bool:
    return uses_numba(*[each for each in arrays if not is_half(each.dtype)])


def _check(approximate: str) -> None:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu's approximate must be 'none' or 'tanh', got {approximate!r}")


@np.errstate(all="ignore")
def _gelu_numpy(x: Array, out: Array, approximate: Approximation) -> None:
    out[...] = x * (_normal_cdf_numpy(x) if approximate == "none" else _tanh_gate_numpy(x))


@np.errstate(all="ignore")
def _gelu_backward_numpy(grad: Array, x: Array, out: Array, approximate: Approximation) -> None:
    if approximate == "none":
        derivative = _normal_cdf_numpy(x) + x * np.exp(-0.5 * x * x) * x.dtype.type(_PDF_AT_0)
    else:
        gate = _tanh_gate_numpy(x)
        slope = _TWICE_SQRT_2_PI * (1 + 3 * _CUBIC * x * x)
        change = gate * _tanh_gate_numpy(-x)
        derivative = gate + np.where(change == 0, change, x * change * slope)
    out[...] = grad * derivative


_erfc = np.frompyfunc(math.erfc, 1, 1)


def _normal_cdf_numpy(x: Array) -> Array:
    if x.dtype == np.float64:
        return np.asarray(0.5 * _erfc(-x * SQRT_HALF), dtype=np.float64)
    z = np.abs(x) * np.float32(SQRT_HALF)
    t = 1 / (1 + ERFC_T * z)
    tail = t * np.polyval(ERFC_P[::-1], t) * np.exp(-z * z) * np.float32(0.5)
    return np.asarray(np.where(x < 0, tail, 1 - tail))


def _tanh_gate_numpy(x: Array) -> Array:
    """(1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    twice = _TWICE_SQRT_2_PI * x * (1 + _CUBIC * x * x)
    small = np.exp(-np.abs(twice))
    return np.asarray(np.where(twice < 0, small, x.dtype.type(1)) / (1 + small))


@jit
def _gelu_loop(x: Any, out: Any, start: int, stop: int) -> None:
    # Slices first: an index from 0 needs no check for negative numbers, and vectorises.
    x = x[start:stop]
    out = out[start:stop]
    for i in range(x.size):
        out[i] = x[i] * normal_cdf(x[i])


@jit
def _gelu_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad = grad[start:stop]
    x = x[start:stop]
    out = out[start:stop]
    number = x.dtype.type
    for i in range(x.size):
        a = x[i]
        density = number(_PDF_AT_0) * exp(number(-0.5) * a * a)
        out[i] = grad[i] * (normal_cdf(a) + a * density)


@jit
def _gelu_tanh_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x = x[start:stop]
    out = out[start:stop]
    number = x.dtype.type
    zero, one = number(0), number(1)
    for i in range(x.size):
        a = x[i]
        twice = number(_TWICE_SQRT_2_PI) * a * (one + number(_CUBIC) * a * a)
        small = exp(-abs(twice))
        out[i] = a * (small if twice < zero else one) / (one + small)


@jit
def _gelu_tanh_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad = grad[start:stop]
    x = x[start:stop]
    out = out[start:stop]
    number = x.dtype.type
    zero, one = number(0), number(1)
    for i in range(x.size):
        a = x[i]
        twice = number(_TWICE_SQRT_2_PI) * a * (one + number(_CUBIC) * a * a)
        slope = number(_TWICE_SQRT_2_PI) * (one + number(3 * _CUBIC) * a * a)
        small = exp(-abs(twice))
        scale = one / (one + small)
        gate = (small if twice < zero else one) * scale
        change = small * scale * scale
        # For large |x| `slope` may be infinite while `change` is 0.
        out[i] = grad[i] * (gate + (zero if change == zero else a * change * slope))
