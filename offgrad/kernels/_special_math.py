"""Scalar functions of `_special`'s loops: error functions and exact remainders.

Polynomials were fitted by least squares, reweighted towards the minimax relative error. float64
goes to the C library.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from offgrad.kernels._fastmath import ERFC_P, ERFC_T, log_of_normal, product_with_exp
from offgrad.kernels._jit import inlined, specialised

_ZERO = np.float32(0)
_HALF = np.float32(0.5)
_ONE = np.float32(1)
_MAGNITUDE_BITS32 = np.int32(0x7FFFFFFF)
_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = ERFC_P

# erf(x) = x + x * P(x^2) for |x| <= 1 (relative error 1.2e-9).
_F0, _F1, _F2, _F3, _F4, _F5, _F6 = (
    np.float32(0.12837917),
    np.float32(-0.37612626),
    np.float32(0.112835854),
    np.float32(-0.026853811),
    np.float32(0.0051883277),
    np.float32(-0.00080101925),
    np.float32(7.853858e-05),
)
_ERFC_ZERO = np.float32(10.1)
# Numbers of 12 bits, whose squares are exact.
_SHORT = np.int32(-4096)


@inlined
def _erf_beyond_x(x: Any) -> Any:
    s = x * x
    p = _F2 + s * (_F3 + s * (_F4 + s * (_F5 + s * _F6)))
    return x * (_F0 + s * (_F1 + s * p))


def _near_erf32(x: Any) -> Any:
    return x + _erf_beyond_x(x)


@specialised(float32=_near_erf32)
def near_erf(x: Any) -> Any:
    """The error function; in float32 from -1 to 1."""
    return math.erf(x)


def _near_erfc32(x: Any) -> Any:
    return (_ONE - x) - _erf_beyond_x(x)


@specialised(float32=_near_erfc32)
def near_erfc(x: Any) -> Any:
    """1 - erf(x), accurate for large x; in float32 from -1 to 1."""
    return math.erfc(x)


@inlined
def _erfc_factor(z: Any) -> Any:
    """erfc(z) e^(z^2), in the type of z."""
    t = _ONE / (_ONE + ERFC_T * z)
    p = _P4 + t * (_P5 + t * (_P6 + t * (_P7 + t * _P8)))
    return t * (_P0 + t * (_P1 + t * (_P2 + t * (_P3 + t * p))))


@inlined
def _decay(factor: Any, z: Any) -> Any:
    """factor e^(-z^2), z^2 in two parts: in one, its rounding error would grow."""
    high = np.int32(np.float32(z).view(np.int32) & _SHORT).view(np.float32)
    return product_with_exp(factor, -(high * high), (z - high) * (z + high))


def _far_erf32(z: Any) -> Any:
    limited = _ERFC_ZERO if z > _ERFC_ZERO else z
    return _ONE - _decay(_erfc_factor(limited), limited)


@specialised(float32=_far_erf32)
def far_erf(z: Any) -> Any:
    """The error function in float32 from 1 on; float64 has it from `near_erf`."""
    return z


def _far_erfc32(z: Any) -> Any:
    limited = _ERFC_ZERO if z > _ERFC_ZERO else z
    return _decay(np.float32(_erfc_factor(np.float64(limited))), limited)


@specialised(float32=_far_erfc32)
def far_erfc(z: Any) -> Any:
    """1 - erf(z) in float32 from 1 on; float64 has it from `near_erfc`."""
    return z


def _nearer32(x: Any, near: Any, far: Any) -> Any:
    return near if np.float32(abs(x)) < _ONE else far


@specialised(float32=_nearer32)
def nearer(x: Any, near: Any, far: Any) -> Any:
    """`near` for x between -1 and 1, else `far`; always `near` in float64."""
    return near


# erfinv(x) = x * P(w) with w = -log(1 - x^2): a polynomial in w - 2.5 up to w = 5, and in
# sqrt(w) - 3 from there to 16 (relative errors 6e-9). The variables are those of M. Giles,
# "Approximating the erfinv function", GPU Computing Gems 2, 2011.
_I0, _I1, _I2, _I3, _I4, _I5, _I6, _I7, _I8, _I9 = (
    np.float32(1.5014094),
    np.float32(0.24664028),
    np.float32(-0.004177387),
    np.float32(-0.0012527419),
    np.float32(0.00021834444),
    np.float32(-4.9633477e-06),
    np.float32(-3.4627049e-06),
    np.float32(4.6617066e-07),
    np.float32(2.3232644e-08),
    np.float32(-8.791057e-09),
)
_J0, _J1, _J2, _J3, _J4, _J5, _J6, _J7, _J8, _J9 = (
    np.float32(2.8329768),
    np.float32(1.0016751),
    np.float32(0.009445684),
    np.float32(-0.00763941),
    np.float32(0.005683172),
    np.float32(-0.0035869875),
    np.float32(0.0014958581),
    np.float32(-7.662014e-05),
    np.float32(-0.00031872437),
    np.float32(0.00012896485),
)
_CENTRE, _FIVE, _THREE = np.float32(2.5), np.float32(5), np.float32(3)
_INFINITY, _NAN = np.float32(math.inf), np.float32(math.nan)


@inlined
def erfinv_of_float32(x: Any) -> Any:
    """The inverse of the error function; infinite at -1 and 1, NaN beyond."""
    z = np.float32(abs(x))
    w = -log_of_normal((_ONE - z) * (_ONE + z))
    v = w - _CENTRE
    p = _I4 + v * (_I5 + v * (_I6 + v * (_I7 + v * (_I8 + v * _I9))))
    p = _I0 + v * (_I1 + v * (_I2 + v * (_I3 + v * p)))
    u = np.float32(math.sqrt(w)) - _THREE
    q = _J4 + u * (_J5 + u * (_J6 + u * (_J7 + u * (_J8 + u * _J9))))
    q = _J0 + u * (_J1 + u * (_J2 + u * (_J3 + u * q)))
    inverse = x * (p if w < _FIVE else q)
    outside = x * _INFINITY if z == _ONE else _NAN
    return inverse if z < _ONE else outside


_SHORTEST, _LONGEST = np.float32(1e-15), np.float32(1e18)


@inlined
def exact_hypot(a: Any, b: Any) -> Any:
    """sqrt(a^2 + b^2) of two float32 numbers, and whether no square lost digits or overflowed."""
    length = np.float32(math.sqrt(a * a + b * b))
    return length, (length > _SHORTEST) & (length < _LONGEST)


_LARGEST_QUOTIENT = 2.0**28
_LARGEST32 = np.float32(np.finfo(np.float32).max)
_SIGN_BIT32 = np.int32(-(2**31))


@inlined
def exact_fmod(a: Any, b: Any) -> Any:
    """fmod of two float32 numbers, and whether it is exact.

    It is where b is finite and |a / b| < 2^28: then the rounded quotient in float64 has the integer
    part of the exact one, whose product with b has 52 bits.
    """
    x = np.float64(a)
    y = np.float64(b)
    q = np.trunc(x / y)
    r = np.float32(x - q * y)
    is_exact = (abs(q) < _LARGEST_QUOTIENT) & (np.float32(abs(b)) <= _LARGEST32)
    # A zero has the sign of a.
    bits = np.int32(np.float32(r).view(np.int32) & _MAGNITUDE_BITS32) | np.int32(
        np.float32(a).view(np.int32) & _SIGN_BIT32
    )
    return np.int32(bits).view(np.float32), is_exact


@inlined
def has_wrong_sign(mod: Any, b: Any) -> Any:
    """Whether a remainder has another sign than the divisor and is not 0."""
    return (mod != _ZERO) & ((b < _ZERO) != (mod < _ZERO))


@inlined
def floor_mod(mod: Any, b: Any) -> Any:
    """The remainder with the sign of b, of the one with the sign of the dividend; zeros stay."""
    return mod + b if has_wrong_sign(mod, b) else mod


@inlined
def floor_quotient(a: Any, b: Any, mod: Any) -> Any:
    """floor(a / b), in the steps of NumPy, given fmod(a, b)."""
    quotient = np.float32(np.float32(a - mod) / b)
    quotient = np.float32(quotient - _ONE) if has_wrong_sign(mod, b) else quotient
    floor = np.floor(quotient)
    floor = np.float32(floor + _ONE) if np.float32(quotient - floor) > _HALF else floor
    zero = np.int32(
        (np.float32(a).view(np.int32) ^ np.float32(b).view(np.int32)) & _SIGN_BIT32
    ).view(np.float32)
    return zero if quotient == _ZERO else floor
