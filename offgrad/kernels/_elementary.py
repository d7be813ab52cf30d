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
from offgrad.kernels._jit import Kernel, backend, inlined, jit, loop_of
from offgrad.kernels._loop_templates import FLAGGED, one_array, one_in_float64, two_in_float64
from offgrad.kernels._special import FEW


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
    has_large = np.empty(-(-x.size // FLAGGED), np.bool_)
    _tan_loop(x, out, has_large)
    for block in has_large.nonzero()[0]:
        part = slice(block * FLAGGED, (block + 1) * FLAGGED)
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


@inlined
def _log_of_exponentials(x: Any, y: Any) -> Any:
    share = exp(negative_distance(x, y))
    return larger(x, y) + log1p(share)


@inlined
def _log2_of_powers(x: Any, y: Any) -> Any:
    share = exp2(negative_distance(x, y))
    return larger(x, y) + log1p(share) * LOG2_E


@jit
def _tan_loop(x: Any, out: Any, has_large: Any) -> None:
    for block in range(has_large.size):
        first = block * FLAGGED
        part = x[first : first + FLAGGED]
        to = out[first : first + FLAGGED]
        is_small: Any = True
        for i in range(part.size):
            a = np.float64(part[i])
            is_small = is_small & (abs(a) <= MAX_ANGLE)
            to[i] = tan(a)
        has_large[block] = not is_small


_rsqrt_loop = loop_of(one_array, reciprocal_root)

LOOPS: dict[Any, Kernel[..., None]] = {
    np.exp: loop_of(one_in_float64, exp),
    np.exp2: loop_of(one_in_float64, exp2),
    np.expm1: loop_of(one_in_float64, expm1),
    np.log: loop_of(one_in_float64, log),
    np.log2: loop_of(one_in_float64, log2),
    np.log10: loop_of(one_in_float64, log10),
    np.log1p: loop_of(one_in_float64, log1p),
    np.sinh: loop_of(one_in_float64, sinh),
    np.cosh: loop_of(one_in_float64, cosh),
    np.arcsinh: loop_of(one_in_float64, asinh),
    np.arccosh: loop_of(one_in_float64, acosh),
    np.arctanh: loop_of(one_in_float64, atanh),
    np.arctan: loop_of(one_in_float64, atan),
    np.arcsin: loop_of(one_in_float64, asin),
    np.arccos: loop_of(one_in_float64, acos),
    np.logaddexp: loop_of(two_in_float64, _log_of_exponentials),
    np.logaddexp2: loop_of(two_in_float64, _log2_of_powers),
    np.arctan2: loop_of(two_in_float64, atan2),
    np.tan: _tan_loop,
}
