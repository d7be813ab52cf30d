"""Scalar functions for compiled loops; in float32 polynomials, which vectorise.

Numba's wheels call the C library for `math.exp`, one element at a time; a polynomial that LLVM
vectorises is about seven times as fast. float64 goes to the C library, for its full accuracy.

Polynomials in float32 are accurate to 2e-7 relative where the result is a normal number.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from offgrad.kernels._jit import inlined, specialised

_LOG2_E = np.float32(math.log2(math.e))
# ln 2 in two parts, the first with few enough bits that its product with an integer is exact.
_LN2_HIGH = np.float32(355 / 512)
_LN2_LOW = np.float32(math.log(2) - 355 / 512)
# Adding this rounds to an integer, which stands in the low bits of the sum.
_ROUNDER = np.float32(1.5 * 2**23)
_EXP_UNDERFLOW = np.float32(-87.3)
_ZERO = np.float32(0)
_ONE = np.float32(1)
_HALF = np.float32(0.5)
_E2, _E3, _E4, _E5, _E6, _E7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))
_EXPONENT_SHIFT = np.int32(23)
_EXPONENT_ONE = np.int32(0x3F800000)


def _exp32(x: Any) -> Any:
    shifted = np.float32(x * _LOG2_E + _ROUNDER)
    n = shifted - _ROUNDER
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = _E4 + r * (_E5 + r * (_E6 + r * _E7))
    p = _ONE + r * (_ONE + r * (_E2 + r * (_E3 + r * p)))
    exponent = np.int32(shifted.view(np.int32) << _EXPONENT_SHIFT)
    power = np.int32(exponent + _EXPONENT_ONE).view(np.float32)
    # The comparison is false for NaN, which p contains already.
    return _ZERO if x < _EXP_UNDERFLOW else p * power


@inlined
def log_share(x: Any, highest: Any, log_total: Any) -> Any:
    """(x - highest) - log_total, in this order.

    A loop's arithmetic may be regrouped: then the last two are added first, and the small one is
    lost if `highest` is large.
    """
    return (x - highest) - log_total


@specialised(float32=_exp32)
def exp(x: Any) -> Any:
    """e**x for x <= 88, where a float32 does not overflow; results below 1e-38 become 0."""
    return math.exp(x)


# erfc(z) = exp(-z^2) * t * P(t) with t = 1 / (1 + 0.375 z), z >= 0. P was fitted by least squares,
# reweighted towards the minimax relative error (1.2e-8) over 0 <= z <= 9.5.
ERFC_T = np.float32(0.375)
ERFC_P = (
    np.float32(0.2116144),
    np.float32(0.21063362),
    np.float32(0.2054297),
    np.float32(0.12104142),
    np.float32(0.27483895),
    np.float32(-0.2310696),
    np.float32(0.43388823),
    np.float32(-0.28807282),
    np.float32(0.061696105),
)
_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = ERFC_P
SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF32 = np.float32(SQRT_HALF)


def _normal_cdf32(x: Any) -> Any:
    z = np.float32(abs(x)) * _SQRT_HALF32
    t = _ONE / (_ONE + ERFC_T * z)
    p = _P4 + t * (_P5 + t * (_P6 + t * (_P7 + t * _P8)))
    p = t * (_P0 + t * (_P1 + t * (_P2 + t * (_P3 + t * p))))
    tail = _HALF * p * exp(np.float32(-(z * z)))
    return tail if x < _ZERO else _ONE - tail


@specialised(float32=_normal_cdf32)
def normal_cdf(x: Any) -> Any:
    """The normal distribution function, (1 + erf(x / sqrt 2)) / 2, accurate in both tails."""
    return 0.5 * math.erfc(-x * SQRT_HALF)


_SIGN32 = np.int32(31)
_MAGNITUDE32 = np.int32(0x7FFFFFFF)
_LOWEST32 = np.int32(-(2**31))
_SIGN64 = np.int64(63)
_MAGNITUDE64 = np.int64(2**63 - 1)
_LOWEST64 = np.int64(-(2**63))


def _row_max32(row: Any) -> Any:
    highest = _LOWEST32
    for j in range(row.size):
        bits = np.float32(row[j]).view(np.int32)
        key = np.int32(bits ^ ((bits >> _SIGN32) & _MAGNITUDE32))
        highest = key if key > highest else highest
    return np.int32(highest ^ ((highest >> _SIGN32) & _MAGNITUDE32)).view(np.float32)


@specialised(float32=_row_max32)
def row_max(row: Any) -> Any:
    """The maximum of a 1-D array (NaN if it is empty); +NaN counts as larger than infinity.

    Computed on the bits as integers, mapped to the order of the floats: a maximum of
    floats does not vectorise.
    """
    bits = row.view(np.int64)
    highest = _LOWEST64
    for j in range(bits.size):
        key = np.int64(bits[j] ^ ((bits[j] >> _SIGN64) & _MAGNITUDE64))
        highest = max(highest, key)
    return np.int64(highest ^ ((highest >> _SIGN64) & _MAGNITUDE64)).view(np.float64)


# The bits of 1.5 * 2^23, and of the float32 numbers 2^n without n.
_ROUNDER_BITS = np.int32(0x4B400000)
_EXPONENT_BIAS = np.int32(127)
_HALVE = np.int32(1)
_EXP_LOWEST = np.float32(-104)


@inlined
def product_with_exp(factor: Any, x: Any, less: Any) -> Any:
    """factor * e**(x - less) for float32 x from -150 to 0 and 0 <= less < 0.1.

    Rounded once where the result is subnormal.
    """
    shifted = np.float32(x * _LOG2_E + _ROUNDER)
    n = shifted - _ROUNDER
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    r = r - less
    p = _E4 + r * (_E5 + r * (_E6 + r * _E7))
    p = _ONE + r * (_ONE + r * (_E2 + r * (_E3 + r * p)))
    exponent = np.int32(shifted.view(np.int32) - _ROUNDER_BITS)
    half = np.int32(exponent >> _HALVE)
    other = np.int32(exponent - half)
    first = np.int32(np.int32(half + _EXPONENT_BIAS) << _EXPONENT_SHIFT).view(np.float32)
    second = np.int32(np.int32(other + _EXPONENT_BIAS) << _EXPONENT_SHIFT).view(np.float32)
    return np.float32(np.float32(np.float32(factor * p) * first) * second)


def _exp_of_negative32(x: Any) -> Any:
    # The comparison is false for NaN, which stays.
    limited = _EXP_LOWEST if x < _EXP_LOWEST else x
    return product_with_exp(_ONE, limited, _ZERO)


@specialised(float32=_exp_of_negative32)
def exp_of_negative(x: Any) -> Any:
    """e**x for x <= 0, subnormal results included."""
    return math.exp(x)


_EXPM1_LOWEST = np.float32(-20)


def _expm1_of_negative32(x: Any) -> Any:
    limited = _EXPM1_LOWEST if x < _EXPM1_LOWEST else x
    shifted = np.float32(limited * _LOG2_E + _ROUNDER)
    n = shifted - _ROUNDER
    r = limited - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = _E4 + r * (_E5 + r * (_E6 + r * _E7))
    p = r + r * r * (_E2 + r * (_E3 + r * p))
    exponent = np.int32(shifted.view(np.int32) << _EXPONENT_SHIFT)
    power = np.int32(exponent + _EXPONENT_ONE).view(np.float32)
    return power * p + (power - _ONE)


@specialised(float32=_expm1_of_negative32)
def expm1_of_negative(x: Any) -> Any:
    """e**x - 1 for x <= 0, precise near 0."""
    return math.expm1(x)


@inlined
def quadratic(y: Any, a: Any, b: Any, c: Any) -> Any:
    """a + b y + c y^2; y (1 - y) keeps its digits near 1, which y - y^2 would lose."""
    return a + y * (b + c * y)


@inlined
def sigmoid(x: Any) -> Any:
    """1 / (1 + e**-x)."""
    number = type(x)
    small = exp(-abs(x))
    share = number(1) / (number(1) + small)
    return small * share if x < number(0) else share


@inlined
def tanh(x: Any) -> Any:
    """The hyperbolic tangent, precise near 0."""
    number = type(x)
    less = expm1_of_negative(number(-2) * abs(x))
    value = -less / (less + number(2))
    return -value if x < number(0) else value


_SQRT_HALF_BITS = np.int32(0x3F3504F3)
# log(1 + s) = s - s^2/2 + s^3 P(s) for 1 + s from sqrt(1/2) to sqrt(2) (relative error 6e-9).
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7 = (
    np.float32(0.3333333),
    np.float32(-0.25000823),
    np.float32(0.20001227),
    np.float32(-0.16623357),
    np.float32(0.14201762),
    np.float32(-0.13160194),
    np.float32(0.1276155),
    np.float32(-0.0763443),
)


@inlined
def log_of_normal(x: Any) -> Any:
    """The logarithm of a normal positive float32 number."""
    bits = np.float32(x).view(np.int32)
    exponent = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> _EXPONENT_SHIFT)
    s = np.int32(bits - np.int32(exponent << _EXPONENT_SHIFT)).view(np.float32) - _ONE
    p = _L3 + s * (_L4 + s * (_L5 + s * (_L6 + s * _L7)))
    p = _L0 + s * (_L1 + s * (_L2 + s * p))
    n = np.float32(exponent)
    small = n * _LN2_LOW + s * s * (s * p - _HALF)
    return n * _LN2_HIGH + (s + small)


def _log1p_of_share32(x: Any) -> Any:
    sum_ = np.float32(_ONE + x)
    # What the sum lost by rounding.
    return log_of_normal(sum_) + (x - (sum_ - _ONE)) / sum_


@specialised(float32=_log1p_of_share32)
def log1p_of_share(x: Any) -> Any:
    """log(1 + x) for x from 0 to 1."""
    return math.log1p(x)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@inlined
def random_bits(key: Any, counter: Any) -> Any:
    """64 random bits for a counter: SplitMix64's output number `counter` from the state `key`.

    Args:
        key: uint64, from `stream_key`.
        counter: uint64, a scalar in a compiled loop or a NumPy array.

    Source: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
    OOPSLA 2014.
    """
    z = key + counter * GOLDEN
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


@lru_cache(maxsize=64)
def stream_key(seed: int) -> np.uint64:
    """The initial state of a seed's stream; neighbouring seeds give distant states."""
    seeds = np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64)
    bits: npt.NDArray[np.uint64] = random_bits(seeds, np.ones(1, dtype=np.uint64))
    return np.uint64(bits[0])
