"""Sigmoid, SiLU, softplus, log-sigmoid, Mish and GLU, and their gradients.

In float32 compiled loops, but for Mish; in float64 NumPy's functions, which are vectorised. Arrays
broadcast to `out`, which is C-contiguous; 16-bit floats are computed in float32.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import inf
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._chunks import by_loop, elementwise_flat, scratch
from offgrad.kernels._fastmath import exp_of_negative, log1p_of_share, quadratic
from offgrad.kernels._halves import as_float
from offgrad.kernels._jit import backend, jit, uses_numba
from offgrad.kernels._parallel import parallel_for

FEW = 1024
"""So many elements take longer in pieces than in NumPy's slower functions."""

_MISH_LIMIT = 20
"""From here on Mish is the identity in float64, too; e^(2x) does not overflow in float32."""


def silu(x: Array, out: Array) -> None:
    """Write x / (1 + e^-x) into `out` (Elfwing, Uchibe and Doya, 2018)."""
    if _is_compiled(out):
        by_loop(_silu_loop, out, x)
    else:
        elementwise_flat(_silu_numpy, out, x)


def silu_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of SiLU at `x` into `out`."""
    if _is_compiled(out):
        by_loop(_silu_backward_loop, out, grad, x)
    else:
        elementwise_flat(_silu_backward_numpy, out, grad, x)


def sigmoid(x: Array, out: Array) -> None:
    """Write 1 / (1 + e^-x) into `out`."""
    if _is_compiled(out):
        by_loop(_sigmoid_loop, out, x)
    else:
        elementwise_flat(_sigmoid_numpy, out, x)


def quadratic_backward(grad: Array, y: Array, out: Array, a: int, b: int, c: int) -> None:
    """Write `grad` times a + b y + c y^2 into `out`: the derivatives of sigmoid, tanh and 1/x.

    Args:
        grad: the gradient of the results.
        y: the results.
        out: the gradient.
        a: 1 for tanh, else 0.
        b: 1 for sigmoid, else 0.
        c: -1.
    """
    if _is_compiled(out) and out.size > FEW:
        by_loop(_quadratic_backward_loop, out, grad, y, numbers=_singles(a, b, c))
    else:
        elementwise_flat(
            lambda grad, y, out: np.multiply(grad, a + y * (b + c * y), out=out), out, grad, y
        )


def softplus(x: Array, out: Array, beta: float, threshold: float) -> None:
    """Write log(1 + e^(beta x)) / beta into `out`, and x where beta x exceeds the threshold."""
    if _is_compiled(out):
        by_loop(_softplus_loop, out, x, numbers=_singles(beta, threshold))
    else:
        elementwise_flat(lambda x, out: _softplus_numpy(x, out, beta, threshold), out, x)


def softplus_backward(grad: Array, x: Array, out: Array, beta: float, threshold: float) -> None:
    """Write `grad` times the derivative of softplus at `x` into `out`."""
    if _is_compiled(out):
        by_loop(_softplus_backward_loop, out, grad, x, numbers=_singles(beta, threshold))
    else:
        elementwise_flat(
            lambda grad, x, out: _softplus_backward_numpy(grad, x, out, beta, threshold),
            out,
            grad,
            x,
        )


def log_sigmoid(x: Array, out: Array) -> None:
    """Write -log(1 + e^-x) into `out`: softplus of beta = -1."""
    softplus(x, out, -1, inf)


def log_sigmoid_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of log-sigmoid at `x` into `out`."""
    softplus_backward(grad, x, out, -1, inf)


def mish(x: Array, out: Array) -> None:
    """Write x tanh(log(1 + e^x)) into `out` (Misra, 2019)."""
    if out.size <= FEW and out.dtype.itemsize >= 4:
        _mish_of_few(x, out)
    else:
        elementwise_flat(_mish, out, x)


def mish_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of Mish at `x` into `out`."""
    elementwise_flat(_mish_backward, out, grad, x)


def glu(x: Array, out: Array) -> None:
    """Write a / (1 + e^-b) into `out`, a and b the halves of x (Dauphin et al., 2017).

    Args:
        x: [N, 2, L], C-contiguous.
        out: [N, L], likewise.
    """
    if uses_numba(x, out):
        parallel_for(partial(_glu_loop, x, out), out.size, merge=True)
    else:
        _glu_numpy(x, out)


def glu_backward(grad: Array, x: Array, dx: Array) -> None:
    """Write the gradient of GLU's input into `dx`.

    Args:
        grad: [N, L], C-contiguous.
        x: [N, 2, L], likewise.
        dx: as x.
    """
    if uses_numba(grad, x, dx):
        parallel_for(partial(_glu_backward_loop, grad, x, dx), grad.size, merge=True)
    else:
        _glu_backward_numpy(grad, x, dx)


def _is_compiled(out: Array) -> bool:
    return out.dtype.itemsize < 8 and backend() == "numba"


@lru_cache(64)
def _singles(*numbers: float) -> tuple[Any, ...]:
    return tuple([np.float32(each) for each in numbers])


def _sigmoid_numpy(x: Array, out: Array) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


def _silu_numpy(x: Array, out: Array) -> None:
    e = np.exp(-np.abs(x))
    out[...] = x * (np.where(x < 0, e, x.dtype.type(1)) / (1 + e))


def _silu_backward_numpy(grad: Array, x: Array, out: Array) -> None:
    e, one = np.exp(-np.abs(x)), x.dtype.type(1)
    share = np.where(x < 0, e, one) / (1 + e)
    rest = np.where(x < 0, one, e) / (1 + e)
    out[...] = grad * (share * (1 + x * rest))


def _softplus_numpy(x: Array, out: Array, beta: float, threshold: float) -> None:
    scaled = x * x.dtype.type(beta)
    logarithm = np.log1p(np.exp(-np.abs(scaled))) + np.maximum(scaled, 0)
    out[...] = np.where(scaled > threshold, x, logarithm / x.dtype.type(beta))


def _softplus_backward_numpy(
    grad: Array, x: Array, out: Array, beta: float, threshold: float
) -> None:
    scaled = x * x.dtype.type(beta)
    out[...] = np.where(scaled > threshold, grad, grad / (1 + np.exp(-scaled)))


@np.errstate(all="ignore")
def _glu_numpy(x: Array, out: Array) -> None:
    a, b = as_float(x[:, 0]), as_float(x[:, 1])
    out[...] = a / (1 + np.exp(-b))


@np.errstate(all="ignore")
def _glu_backward_numpy(grad: Array, x: Array, dx: Array) -> None:
    g, a, b = as_float(grad), as_float(x[:, 0]), as_float(x[:, 1])
    share = g / (1 + np.exp(-b))
    dx[:, 0] = share
    dx[:, 1] = a * share / (1 + np.exp(b))


def _filled(number: int, x: Array, value: float) -> Array:
    """Return a scratch array of a value: NumPy's minimum with a number is slower."""
    array = scratch(number, x.size, x.dtype)
    array.fill(value)
    return array


def _mish_of_few(x: Array, out: Array) -> None:
    np.logaddexp(x, x.dtype.type(0), out=out)
    np.tanh(out, out=out)
    np.multiply(x, out, out=out)


def _mish(x: Array, out: Array) -> None:
    """x n / (n + 2), n = (1 + e^x)^2 - 1: tanh(log u) = (u^2 - 1) / (u^2 + 1)."""
    e = _filled(0, x, _MISH_LIMIT)
    np.minimum(x, e, out=e)
    np.exp(e, out=e)
    np.add(e, 2, out=out)
    np.multiply(e, out, out=e)
    np.add(e, 2, out=out)
    np.divide(e, out, out=e)
    np.multiply(x, e, out=out)


def _mish_backward(grad: Array, x: Array, out: Array) -> None:
    """grad (t + x 4 e^x (e^x + 1) / (n + 2)^2), t = n / (n + 2)."""
    e, t, slope = (scratch(number, x.size, x.dtype) for number in range(3))
    limited = _filled(2, x, _MISH_LIMIT)
    np.minimum(x, limited, out=limited)
    np.exp(limited, out=e)
    np.add(e, 2, out=t)
    np.multiply(e, t, out=t)
    # 4 e (e + 1) x / (n + 2), then t, then both over n + 2.
    np.multiply(limited, e, out=limited)
    np.add(e, 1, out=e)
    np.multiply(limited, e, out=slope)
    np.multiply(slope, 4, out=slope)
    np.add(t, 2, out=e)
    np.divide(slope, e, out=slope)
    np.add(slope, t, out=slope)
    np.divide(slope, e, out=slope)
    # NaN where x is infinite, as from the product of infinity and 0.
    np.subtract(x, x, out=t)
    np.add(slope, t, out=slope)
    np.multiply(grad, slope, out=out)


@jit
def _sigmoid_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    number = x.dtype.type
    zero, one = number(0), number(1)
    for i in range(x.size):
        a = x[i]
        e = exp_of_negative(-abs(a))
        out[i] = (e if a < zero else one) / (one + e)


@jit
def _quadratic_backward_loop(
    grad: Any, y: Any, out: Any, a: Any, b: Any, c: Any, start: int, stop: int
) -> None:
    grad, y, out = grad[start:stop], y[start:stop], out[start:stop]
    for i in range(y.size):
        out[i] = grad[i] * quadratic(y[i], a, b, c)


@jit
def _silu_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    number = x.dtype.type
    zero, one = number(0), number(1)
    for i in range(x.size):
        a = x[i]
        e = exp_of_negative(-abs(a))
        out[i] = a * ((e if a < zero else one) / (one + e))


@jit
def _silu_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    number = x.dtype.type
    zero, one = number(0), number(1)
    for i in range(x.size):
        a = x[i]
        e = exp_of_negative(-abs(a))
        scale = one / (one + e)
        share = (e if a < zero else one) * scale
        rest = (one if a < zero else e) * scale
        out[i] = grad[i] * (share * (one + a * rest))


@jit
def _softplus_loop(x: Any, out: Any, beta: Any, threshold: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    number = x.dtype.type
    zero = number(0)
    for i in range(x.size):
        a = x[i]
        scaled = a * beta
        logarithm = log1p_of_share(exp_of_negative(-abs(scaled)))
        positive = scaled if scaled > zero else zero
        out[i] = a if scaled > threshold else (logarithm + positive) / beta


@jit
def _softplus_backward_loop(
    grad: Any, x: Any, out: Any, beta: Any, threshold: Any, start: int, stop: int
) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    number = x.dtype.type
    zero, one = number(0), number(1)
    for i in range(x.size):
        g = grad[i]
        scaled = x[i] * beta
        e = exp_of_negative(-abs(scaled))
        slope = (e if scaled < zero else one) / (one + e)
        out[i] = g if scaled > threshold else g * slope


@jit
def _glu_loop(x: Any, out: Any, start: int, stop: int) -> None:
    number = x.dtype.type
    zero, one = number(0), number(1)
    length = out.shape[1]
    at = start
    while at < stop:
        n = at // length
        j = at % length
        count = min(length - j, stop - at)
        a = x[n, 0, j : j + count]
        b = x[n, 1, j : j + count]
        y = out[n, j : j + count]
        for i in range(count):
            gate = b[i]
            e = exp_of_negative(-abs(gate))
            y[i] = a[i] * ((e if gate < zero else one) / (one + e))
        at += count


@jit
def _glu_backward_loop(grad: Any, x: Any, dx: Any, start: int, stop: int) -> None:
    number = x.dtype.type
    zero, one = number(0), number(1)
    length = grad.shape[1]
    at = start
    while at < stop:
        n = at // length
        j = at % length
        count = min(length - j, stop - at)
        g = grad[n, j : j + count]
        a = x[n, 0, j : j + count]
        b = x[n, 1, j : j + count]
        da = dx[n, 0, j : j + count]
        db = dx[n, 1, j : j + count]
        for i in range(count):
            gate = b[i]
            e = exp_of_negative(-abs(gate))
            scale = one / (one + e)
            share = g[i] * ((e if gate < zero else one) * scale)
            da[i] = share
            db[i] = a[i] * (share * ((one if gate < zero else e) * scale))
        at += count
