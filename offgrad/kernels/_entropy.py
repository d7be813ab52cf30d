"""x log y and entropy's -x log x, with the limit 0 at 0; gradients of the latter.

NumPy and SciPy compute these in several passes or one element at a time. The loops' results are
within 0.6 ulps of float32. 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._chunks import by_loop, elementwise
from offgrad.kernels._elementary_math import log
from offgrad.kernels._jit import backend, inlined, jit, loop_of
from offgrad.kernels._loop_templates import one_in_float64, slope_in_float64, two_in_float64
from offgrad.kernels._special import FEW, run, scipy_function

_INFINITY = math.inf


def xlogy(a: Array, b: Array, out: Array) -> None:
    """Write ``a * log(b)`` into `out`: 0 where `a` is 0 and `b` is not NaN."""
    if not _is_compiled(out):
        elementwise(_xlogy_numpy, out, a, b)
    elif b.size == 1:
        number = float(b.reshape(()))
        logarithm = np.log(np.float64(number))
        by_loop(_times_number_loop, out, a, numbers=(logarithm, np.float64(_at_zero(number))))
    elif a.size == 1:
        by_loop(_number_times_log_loop, out, b, numbers=(np.float64(a.reshape(())),))
    else:
        by_loop(_xlogy_loop, out, a, b)


def entr(x: Array, out: Array) -> None:
    """Write ``-x * log(x)`` into `out`: 0 at 0, -inf below."""
    run(_entr_loop, scipy_function("entr"), out, x)


def entr_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times ``-log(x) - 1`` into `out`: infinity at 0, NaN below."""
    run(_entr_backward_loop, _entr_backward_numpy, out, grad, x)


def _is_compiled(out: Array) -> bool:
    return out.size > FEW and out.dtype.itemsize < 8 and backend() == "numba"


def _xlogy_numpy(a: Array, b: Array, out: Array) -> None:
    np.log(b, out=out)
    np.multiply(a, out, out=out)
    np.copyto(out, 0, where=(a == 0) & ~np.isnan(b))


def _entr_backward_numpy(grad: Array, x: Array, out: Array) -> None:
    np.multiply(grad, -np.log(x) - 1, out=out)


@inlined
def _at_zero(b: Any) -> Any:
    """0 log b."""
    return 0.0 if b == b else b


@inlined
def _product(a: Any, logarithm: Any, at_zero: Any) -> Any:
    value = a * logarithm
    return at_zero if a == 0.0 else value


@inlined
def _times_log(a: Any, b: Any) -> Any:
    """a log b."""
    logarithm = log(b)
    return _product(a, logarithm, _at_zero(b))


@inlined
def _entropy(x: Any) -> Any:
    """-x log x."""
    value = -x * log(x)
    limit = 0.0 if x == 0.0 else -_INFINITY
    return limit if x <= 0.0 else value


@inlined
def _entropy_slope(x: Any) -> Any:
    return -1.0 - log(x)


@jit
def _number_times_log_loop(b: Any, out: Any, a: float, start: int, stop: int) -> None:
    b, out = b[start:stop], out[start:stop]
    for i in range(b.size):
        out[i] = _times_log(a, np.float64(b[i]))


@jit
def _times_number_loop(
    a: Any, out: Any, logarithm: float, at_zero: float, start: int, stop: int
) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(a.size):
        out[i] = _product(np.float64(a[i]), logarithm, at_zero)


_xlogy_loop = loop_of(two_in_float64, _times_log)
_entr_loop = loop_of(one_in_float64, _entropy)
_entr_backward_loop = loop_of(slope_in_float64, _entropy_slope)
