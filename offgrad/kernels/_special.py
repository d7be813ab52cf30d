"""Error functions; quotients rounded down and remainders, with the bits of NumPy; hypot.

NumPy computes these one element at a time. Arrays broadcast to `out`, which is C-contiguous; 16-bit
floats are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._chunks import by_loop, elementwise, elementwise_flat
from offgrad.kernels._jit import backend, inlined, jit, loop_of
from offgrad.kernels._loop_templates import FLAGGED, flagging_loop, one_array
from offgrad.kernels._special_math import (
    erfinv_of_float32,
    exact_fmod,
    exact_hypot,
    far_erf,
    far_erfc,
    floor_mod,
    floor_quotient,
    near_erf,
    near_erfc,
    nearer,
)

FEW = 1024
"""So many elements are not worth the compilation of a loop."""


def erf(x: Array, out: Array) -> None:
    """Write the error function into `out`; float32 within 2 ulps."""
    if _is_compiled(out):
        by_loop(_erf_loop, out, x)
    else:
        out[...] = _erf_of_array(x)


def erfc(x: Array, out: Array) -> None:
    """Write 1 - erf(x) into `out`, accurate for large x; float32 within 4 ulps."""
    if _is_compiled(out):
        by_loop(_erfc_loop, out, x)
    else:
        out[...] = _erfc_of_array(x)


def erfinv(x: Array, out: Array) -> None:
    """Write the inverse of the error function into `out`; float32 within 4 ulps."""
    if _is_compiled(out) and out.dtype.itemsize < 8:
        by_loop(_erfinv_loop, out, x)
    else:
        elementwise(_erfinv_numpy, out, x)


def fmod(a: Array, b: Array, out: Array) -> None:
    """Write `np.fmod` into `out`."""
    _by_parts(_fmod_loop, np.fmod, a, b, out)


def remainder(a: Array, b: Array, out: Array) -> None:
    """Write `np.remainder` into `out`; a zero has the sign of `a`, as in PyTorch."""
    _by_parts(_remainder_loop, _remainder_numpy, a, b, out)


def _remainder_numpy(a: Array, b: Array, out: Array) -> None:
    np.remainder(a, b, out=out)
    if out.dtype.kind not in "iu" and np.count_nonzero(out) < out.size:
        np.copysign(out, a, out=out, where=out == 0)


def floor_divide(a: Array, b: Array, out: Array) -> None:
    """Write `np.floor_divide` into `out`."""
    _by_parts(_floor_divide_loop, np.floor_divide, a, b, out)


def hypot(a: Array, b: Array, out: Array) -> None:
    """Write sqrt(a^2 + b^2) into `out`, without overflow; float32 within 2 ulps."""
    _by_parts(_hypot_loop, np.hypot, a, b, out)


def run(
    loop: Callable[..., Any], reference: Callable[..., Any], out: Array, *arrays: Array
) -> None:
    """Compute many numbers of float32 or of 16 bits by a compiled loop, others by a reference.

    Args:
        loop: as in `by_loop`.
        reference: as the function of `elementwise`.
        out: the results.
        arrays: they broadcast to the shape of `out`.
    """
    if out.dtype.itemsize < 8 and _is_compiled(out):
        by_loop(loop, out, *arrays)
    else:
        elementwise(reference, out, *arrays)


def scipy_function(name: str) -> Callable[..., None]:
    """Return ``scipy.special.name``, imported at its first call."""

    def function(*arrays: Array, **out: Array) -> None:
        from scipy import special

        getattr(special, name)(*arrays, **out)

    return function


def _is_compiled(out: Array) -> bool:
    return out.size > FEW and backend() == "numba"


def _by_parts(
    loop: Callable[..., Any], ufunc: Callable[..., Any], a: Array, b: Array, out: Array
) -> None:
    if out.dtype != np.float32 or not _is_compiled(out):
        elementwise(ufunc, out, a, b)
        return

    def piece(a: Array, b: Array, out: Array) -> None:
        inexact = np.empty(-(-out.size // FLAGGED), np.bool_)
        loop(a, b, out, inexact)
        # What the loop does not compute: zero divisors, infinities, NaN, huge quotients.
        for block in inexact.nonzero()[0]:
            part = slice(block * FLAGGED, (block + 1) * FLAGGED)
            ufunc(a[part], b[part], out=out[part])

    elementwise_flat(piece, out, a, b)


_erf_of_array = np.vectorize(math.erf, otypes=[np.float64])
_erfc_of_array = np.vectorize(math.erfc, otypes=[np.float64])


def _erfinv_numpy(y: Array, out: Array) -> None:
    """Invert erf: Winitzki's approximation, then Halley's steps on erf, or in the tails on erfc.

    S. Winitzki, A handy approximation for the error function and its inverse (2008).
    """
    target = np.abs(y.astype(np.float64))
    tail = 1 - target
    a = 0.147
    logarithm = np.log1p(-target * target)
    half = 2 / (math.pi * a) + logarithm / 2
    x = np.sqrt(np.sqrt(half * half - logarithm / a) - half)
    is_small = target < 0.5
    erf_of_x, erfc_of_x = np.empty_like(x), np.empty_like(x)
    for _ in range(3):
        erf(x, erf_of_x)
        erfc(x, erfc_of_x)
        missed = np.where(is_small, erf_of_x - target, tail - erfc_of_x)
        error = missed * (math.sqrt(math.pi) / 2) * np.exp(x * x)
        x = x - error / (1 + x * error)
    x = np.where(target == 1, np.inf, x)
    out[...] = np.copysign(np.where(target > 1, np.nan, x), y)


@jit
def _erf_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    zero = x.dtype.type(0)
    for i in range(x.size):
        a = x[i]
        near = near_erf(a)
        far = far_erf(abs(a))
        signed = far if a > zero else -far
        out[i] = nearer(a, near, signed)


@jit
def _erfc_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    number = x.dtype.type
    zero, two = number(0), number(2)
    for i in range(x.size):
        a = x[i]
        near = near_erfc(a)
        far = far_erfc(abs(a))
        outside = far if a > zero else two - far
        out[i] = nearer(a, near, outside)


@inlined
def _remainder(x: Any, y: Any) -> Any:
    mod, is_exact = exact_fmod(x, y)
    return floor_mod(mod, y), is_exact


@inlined
def _floor_quotient(x: Any, y: Any) -> Any:
    mod, is_exact = exact_fmod(x, y)
    return floor_quotient(x, y, mod), is_exact


_erfinv_loop = loop_of(one_array, erfinv_of_float32)
_hypot_loop = loop_of(flagging_loop, exact_hypot)
_fmod_loop = loop_of(flagging_loop, exact_fmod)
_remainder_loop = loop_of(flagging_loop, _remainder)
_floor_divide_loop = loop_of(flagging_loop, _floor_quotient)
