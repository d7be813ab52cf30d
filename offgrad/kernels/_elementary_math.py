"""Elementary functions of float32 numbers, computed in float64 by polynomials, which vectorise.

The argument is float64 and came from float32, so its square and e to its power neither overflow
nor lose digits; rounding the result to float32 gives infinities and subnormal numbers. Results are
within 0.6 ulps of float32 where no other bound is given.

Polynomials were fitted by least squares, reweighted towards the minimax relative error (below 4e-9
of the result), but for the series of sine, cosine and their hyperbolic forms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from offgrad.kernels._jit import inlined

_LOG2_E, _LN2 = math.log2(math.e), math.log(2)
# Adding this rounds to an integer, which stands in the low bits of the sum.
_ROUNDER = 1.5 * 2.0**52
_EXPONENT_SHIFT = np.int64(52)
_ONE_BITS = np.int64(0x3FF0000000000000)

# e^r - 1 = r + r^2 P(r) for |r| <= ln(2) / 2
_E0, _E1, _E2, _E3, _E4, _E5 = (
    0.5000000044243352,
    0.16666666370175875,
    0.04166636056281153,
    0.008333389377800971,
    0.0013940656384806265,
    0.00019845910781002767,
)
# Beyond these limits results are 0 or infinite in float32.
_LOWEST, _HIGHEST = -150.0, 150.0


@inlined
def five_terms(x: Any, rest: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    """a + b x + c x^2 + d x^3 + e x^4 + rest x^5."""
    return a + x * (b + x * (c + x * (d + x * (e + x * rest))))


@inlined
def between(x: Any, limit: Any) -> Any:
    """x limited to numbers between -limit and limit; NaN stays."""
    at_least = -limit if x < -limit else x
    return limit if at_least > limit else at_least


@inlined
def _limited(x: Any) -> Any:
    """x between the limits of exponents; NaN stays."""
    at_least = _LOWEST if x < _LOWEST else x
    return _HIGHEST if at_least > _HIGHEST else at_least


@inlined
def _power_of_two(shifted: Any) -> Any:
    """2^n for the integer n whose sum with `_ROUNDER` is `shifted`."""
    return np.int64(
        np.int64(np.float64(shifted).view(np.int64) << _EXPONENT_SHIFT) + _ONE_BITS
    ).view(np.float64)


_SIGN_BIT = np.int64(-(2**63))


@inlined
def _with_sign_of(x: Any, value: Any) -> Any:
    """`value`, which is not negative, with the sign of x."""
    sign = np.int64(np.float64(x).view(np.int64) & _SIGN_BIT)
    return np.int64(np.float64(value).view(np.int64) | sign).view(np.float64)


@inlined
def _rounded(x: Any) -> Any:
    """x + `_ROUNDER`."""
    return x + _ROUNDER


@inlined
def _expm1_near_0(r: Any) -> Any:
    return r + r * r * (_E0 + r * (_E1 + r * (_E2 + r * (_E3 + r * (_E4 + r * _E5)))))


@inlined
def exp(x: Any) -> Any:
    """e^x."""
    a = _limited(x)
    shifted = _rounded(a * _LOG2_E)
    power = _power_of_two(shifted)
    return power * _expm1_near_0(a - (shifted - _ROUNDER) * _LN2) + power


@inlined
def exp2(x: Any) -> Any:
    """2^x."""
    a = _limited(x)
    shifted = _rounded(a)
    power = _power_of_two(shifted)
    return power * _expm1_near_0((a - (shifted - _ROUNDER)) * _LN2) + power


@inlined
def expm1(x: Any) -> Any:
    """e^x - 1."""
    a = _limited(x)
    shifted = _rounded(a * _LOG2_E)
    power = _power_of_two(shifted)
    value = power * _expm1_near_0(a - (shifted - _ROUNDER) * _LN2) + (power - 1.0)
    return x if x == 0.0 else value  # which keeps the sign of 0


@inlined
def _hyperbolic(x: Any) -> Any:
    """2^n and 2^-n, and sinh and cosh of x - n log 2 for the nearest integer n."""
    a = _limited(x)
    shifted = _rounded(a * _LOG2_E)
    r = a - (shifted - _ROUNDER) * _LN2
    s = r * r
    sinh = r + r * s * (1 / 6 + s * (1 / 120 + s * (1 / 5040 + s * (1 / 362880))))
    cosh = 1.0 + s * (0.5 + s * (1 / 24 + s * (1 / 720 + s * (1 / 40320))))
    return _power_of_two(shifted), _power_of_two(_ROUNDER - (shifted - _ROUNDER)), sinh, cosh


@inlined
def sinh(x: Any) -> Any:
    """The hyperbolic sine."""
    up, down, sinh_near, cosh_near = _hyperbolic(x)
    value = 0.5 * (up - down) * cosh_near + 0.5 * (up + down) * sinh_near
    return x if x == 0.0 else value


@inlined
def cosh(x: Any) -> Any:
    """The hyperbolic cosine."""
    up, down, sinh_near, cosh_near = _hyperbolic(x)
    return 0.5 * (up + down) * cosh_near + 0.5 * (up - down) * sinh_near


_SQRT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)
# log(1 + s) = s + s^2 P(s) for 1 + s from sqrt(1/2) to sqrt(2)
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9 = (
    -0.49999999753360347,
    0.3333331081096553,
    -0.25000025737358633,
    0.2000222004480721,
    -0.16667687483304366,
    0.14217678940324746,
    -0.12407361106797024,
    0.11900990058038372,
    -0.1167593542136814,
    0.0672485069496516,
)
_INFINITY, _NAN = math.inf, math.nan


@inlined
def _log1p_near_0(s: Any) -> Any:
    high = _L5 + s * (_L6 + s * (_L7 + s * (_L8 + s * _L9)))
    return s + s * s * (_L0 + s * (_L1 + s * (_L2 + s * (_L3 + s * (_L4 + s * high)))))


@inlined
def exponent(x: Any) -> Any:
    """The integer n with x / 2^n from sqrt(1/2) to sqrt(2)."""
    return np.int64(np.int64(np.float64(x).view(np.int64) - _SQRT_HALF_BITS) >> _EXPONENT_SHIFT)


@inlined
def without_exponent(x: Any, n: Any) -> Any:
    """x / 2^n."""
    bits = np.int64(np.float64(x).view(np.int64) - np.int64(n << _EXPONENT_SHIFT))
    return np.int64(bits).view(np.float64)


@inlined
def _defined(x: Any, value: Any) -> Any:
    """`value`, a logarithm of x, where x is positive and finite; else the limit or NaN."""
    lowest = -_INFINITY if x == 0.0 else _NAN
    finite = value if x < _INFINITY else x
    return finite if (x > 0.0) | (x != x) else lowest


@inlined
def log(x: Any) -> Any:
    """The natural logarithm."""
    n = exponent(x)
    return _defined(x, np.float64(n) * _LN2 + _log1p_near_0(without_exponent(x, n) - 1.0))


@inlined
def log2(x: Any) -> Any:
    """The logarithm to base 2."""
    n = exponent(x)
    near = _log1p_near_0(without_exponent(x, n) - 1.0)
    return _defined(x, np.float64(n) + near * _LOG2_E)


@inlined
def log10(x: Any) -> Any:
    """The logarithm to base 10."""
    return log(x) * (1 / math.log(10))


@inlined
def log_of_sum(total: Any, x: Any) -> Any:
    """log(total), where a total from sqrt(1/2) to sqrt(2) is 1 + x."""
    n = exponent(total)
    # Without an exponent the sum is not needed, which would round a small x.
    near = x if n == 0 else without_exponent(total, n) - 1.0
    return _defined(total, np.float64(n) * _LN2 + _log1p_near_0(near))


@inlined
def log1p(x: Any) -> Any:
    """log(1 + x)."""
    value = log_of_sum(1.0 + x, x)
    return x if x == 0.0 else value


@inlined
def asinh(x: Any) -> Any:
    """The inverse hyperbolic sine."""
    a = abs(x)
    value = log1p(a + a * a / (1.0 + math.sqrt(1.0 + a * a)))
    return _with_sign_of(x, value if a < _INFINITY else a)


@inlined
def acosh(x: Any) -> Any:
    """The inverse hyperbolic cosine."""
    a = x - 1.0
    value = log1p(a + math.sqrt(a * (a + 2.0)))
    return value if x >= 1.0 else _NAN


@inlined
def atanh(x: Any) -> Any:
    """The inverse hyperbolic tangent."""
    a = abs(x)
    value = 0.5 * log1p(2.0 * a / (1.0 - a))
    return _with_sign_of(x, value) if a <= 1.0 else _NAN


@inlined
def reciprocal_root(x: Any) -> Any:
    """1 / sqrt(x) of a float32 number."""
    return np.float32(1) / np.float32(math.sqrt(x))


@inlined
def larger(a: Any, b: Any) -> Any:
    """The larger number, NaN if one is."""
    return b if (a < b) | (b != b) else a


@inlined
def smaller(a: Any, b: Any) -> Any:
    """The smaller number, NaN if one is."""
    return b if (a > b) | (b != b) else a


@inlined
def negative_distance(a: Any, b: Any) -> Any:
    """-|a - b|, and 0 for equal infinities."""
    return 0.0 if a == b else -abs(a - b)


LOG2_E = _LOG2_E


MAX_ANGLE = 1e6
"""Multiples of pi / 2 are subtracted from angles up to this one without losing digits."""

_TWO_BY_PI = 2 / math.pi
# pi / 2 in two parts, the first with so few bits that its product with an integer is exact.
_HALF_PI_HIGH = 1.570796326734125614166259765625
_HALF_PI_LOW = 6.077100506506192e-11


@inlined
def distance_to_integer(x: Any) -> Any:
    """x minus the nearest integer, exactly."""
    return x - (_rounded(x) - _ROUNDER)


@inlined
def _sine(s: Any, r: Any) -> Any:
    """The sine of r from -pi/4 to pi/4, whose square is s."""
    p = 1 / 362880 + s * (-1 / 39916800)
    return r + r * s * (-1 / 6 + s * (1 / 120 + s * (-1 / 5040 + s * p)))


@inlined
def _cosine(s: Any) -> Any:
    """The cosine, given the square of an angle up to pi/4."""
    p = 1 / 40320 + s * (-1 / 3628800 + s * (1 / 479001600))
    return 1.0 + s * (-0.5 + s * (1 / 24 + s * (-1 / 720 + s * p)))


@inlined
def tan(x: Any) -> Any:
    """The tangent of an angle up to `MAX_ANGLE`."""
    shifted = _rounded(x * _TWO_BY_PI)
    n = shifted - _ROUNDER
    r = x - n * _HALF_PI_HIGH
    r = r - n * _HALF_PI_LOW
    s = r * r
    sine = _sine(s, r)
    cosine = _cosine(s)
    is_odd = np.int64(np.float64(shifted).view(np.int64) & 1) != 0
    return (-cosine if is_odd else sine) / (sine if is_odd else cosine)


# atan(z) = z P(z^2) for |z| <= 1
_A0, _A1, _A2, _A3, _A4, _A5, _A6, _A7, _A8, _A9, _A10 = (
    0.9999999996671296,
    -0.33333324717419954,
    0.19999630555194617,
    -0.1427949250646386,
    0.11056670892230468,
    -0.08806891099241339,
    0.06734596663916849,
    -0.0446180080329904,
    0.02249612017315384,
    -0.007303880020576836,
    0.001112034061274598,
)
_HALF_PI = math.pi / 2


@inlined
def _atan_near_0(z: Any) -> Any:
    s = z * z
    high = _A6 + s * (_A7 + s * (_A8 + s * (_A9 + s * _A10)))
    return z * (_A0 + s * (_A1 + s * (_A2 + s * (_A3 + s * (_A4 + s * (_A5 + s * high))))))


@inlined
def atan(x: Any) -> Any:
    """The inverse tangent."""
    a = abs(x)
    is_far = a > 1.0
    near = _atan_near_0((1.0 if is_far else a) / (a if is_far else 1.0))
    return _with_sign_of(x, _HALF_PI - near if is_far else near)


@inlined
def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y)."""
    a = abs(y)
    b = abs(x)
    is_far = a > b
    high = a if is_far else b
    low = b if is_far else a
    # Equal infinities are at 45 degrees, the origin is on the axis.
    ratio = 1.0 if low == _INFINITY else low / (1.0 if high == 0.0 else high)
    near = _atan_near_0(ratio)
    angle = _HALF_PI - near if is_far else near
    angle = math.pi - angle if np.float64(x).view(np.int64) < 0 else angle
    return _with_sign_of(y, angle) if (x == x) & (y == y) else _NAN


# asin(z) = z P(z^2) for |z| <= 1/2
_S0, _S1, _S2, _S3, _S4, _S5, _S6 = (
    1.000000000260723,
    0.1666665676965211,
    0.07500612238281955,
    0.04450170225626213,
    0.031911454311232906,
    0.014101707714292741,
    0.03793586976693227,
)


@inlined
def _asin_near_0(z: Any, s: Any) -> Any:
    return z * (_S0 + s * (_S1 + s * (_S2 + s * (_S3 + s * (_S4 + s * (_S5 + s * _S6))))))


@inlined
def asin(x: Any) -> Any:
    """The inverse sine."""
    a = abs(x)
    is_far = a > 0.5
    half = 0.5 * (1.0 - a)
    near = _asin_near_0(math.sqrt(half) if is_far else a, half if is_far else a * a)
    return _with_sign_of(x, _HALF_PI - 2.0 * near if is_far else near)


@inlined
def acos(x: Any) -> Any:
    """The inverse cosine."""
    a = abs(x)
    is_far = a > 0.5
    half = 0.5 * (1.0 - a)
    near = _asin_near_0(math.sqrt(half) if is_far else x, half if is_far else a * a)
    far = 2.0 * near if x > 0.0 else math.pi - 2.0 * near
    return far if is_far else _HALF_PI - near
