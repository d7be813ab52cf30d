"""NumPy's elementary functions; of float32 by compiled loops.

NumPy computes most of these one element at a time. Its sine and cosine are as fast as such loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._chunks import by_loop, elementwise, elementwise_flat
from offgrad.kernels._elementary_math import (
    LOG2_E,
    MAX_ANGLE,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cosh,
    exp,
    exp2,
    expm1,
    larger,
    log,
    log1p,
    log2,
    log10,
    negative_distance,
    reciprocal_root,
    sinh,
    tan,
)
from offgrad.kernels._jit import Kernel, backend, jit
from offgrad.kernels._special import FEW

_FLAGGED = 1024


def elementary(ufunc: Any, *arrays: Array, out: Array) -> None:
    """Write ``ufunc(*arrays)`` into `out`, in pieces.

    In float32 the functions of `LOOPS` are within 0.6 ulps; sums of exponentials are if their
    logarithm is not near 0. 16-bit floats are rounded from these.
    """
    loop = LOOPS.get(ufunc) if _is_compiled(out) else None
    if loop is None:
        elementwise(ufunc, out, *arrays)
    elif ufunc is np.tan:
        elementwise_flat(_tan, out, *arrays)
    else:
        by_loop(loop, out, *arrays)


def _is_compiled(out: Array) -> bool:
    is_many = out.size > FEW and out.flags.c_contiguous
    return is_many and out.dtype.itemsize <= 4 and backend() == "numba"


def _tan(x: Array, out: Array) -> None:
    has_large = np.empty(-(-x.size // _FLAGGED), np.bool_)
    _tan_loop(x, out, has_large)
    for block in has_large.nonzero()[0]:
        part = slice(block * _FLAGGED, (block + 1) * _FLAGGED)
        with np.errstate(all="ignore"):
            # NumPy's own float32 tangent is up to 4 ulps off on processors with AVX-512.
            np.tan(x[part], out=out[part], dtype=np.float64, casting="same_kind")


def rsqrt(x: Array, out: Array) -> None:
    """Write 1 / sqrt(x) into `out`."""
    if _is_compiled(out):
        by_loop(_rsqrt_loop, out, x)
    else:
        elementwise(_rsqrt_numpy, out, x)


def _rsqrt_numpy(x: Array, out: Array) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


@jit
def _rsqrt_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = reciprocal_root(x[i])


@jit
def _exp_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = exp(np.float64(x[i]))


@jit
def _exp2_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = exp2(np.float64(x[i]))


@jit
def _expm1_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = expm1(np.float64(x[i]))


@jit
def _log_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = log(np.float64(x[i]))


@jit
def _log2_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = log2(np.float64(x[i]))


@jit
def _log10_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = log10(np.float64(x[i]))


@jit
def _log1p_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = log1p(np.float64(x[i]))


@jit
def _sinh_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = sinh(np.float64(x[i]))


@jit
def _cosh_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = cosh(np.float64(x[i]))


@jit
def _asinh_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = asinh(np.float64(x[i]))


@jit
def _acosh_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = acosh(np.float64(x[i]))


@jit
def _atanh_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = atanh(np.float64(x[i]))


@jit
def _atan_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = atan(np.float64(x[i]))


@jit
def _asin_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = asin(np.float64(x[i]))


@jit
def _acos_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = acos(np.float64(x[i]))


@jit
def _logaddexp_loop(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(a.size):
        x = np.float64(a[i])
        y = np.float64(b[i])
        share = exp(negative_distance(x, y))
        out[i] = larger(x, y) + log1p(share)


@jit
def _logaddexp2_loop(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(a.size):
        x = np.float64(a[i])
        y = np.float64(b[i])
        share = exp2(negative_distance(x, y))
        out[i] = larger(x, y) + log1p(share) * LOG2_E


@jit
def _atan2_loop(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(a.size):
        out[i] = atan2(np.float64(a[i]), np.float64(b[i]))


@jit
def _tan_loop(x: Any, out: Any, has_large: Any) -> None:
    for block in range(has_large.size):
        first = block * _FLAGGED
        part = x[first : first + _FLAGGED]
        to = out[first : first + _FLAGGED]
        is_small: Any = True
        for i in range(part.size):
            a = np.float64(part[i])
            is_small = is_small & (abs(a) <= MAX_ANGLE)
            to[i] = tan(a)
        has_large[block] = not is_small


LOOPS: dict[Any, Kernel[..., None]] = {
    np.exp: _exp_loop,
    np.exp2: _exp2_loop,
    np.expm1: _expm1_loop,
    np.log: _log_loop,
    np.log2: _log2_loop,
    np.log10: _log10_loop,
    np.log1p: _log1p_loop,
    np.sinh: _sinh_loop,
    np.cosh: _cosh_loop,
    np.arcsinh: _asinh_loop,
    np.arccosh: _acosh_loop,
    np.arctanh: _atanh_loop,
    np.arctan: _atan_loop,
    np.arcsin: _asin_loop,
    np.arccos: _acos_loop,
    np.logaddexp: _logaddexp_loop,
    np.logaddexp2: _logaddexp2_loop,
    np.arctan2: _atan2_loop,
    np.tan: _tan_loop,
}
