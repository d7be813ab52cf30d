"""The normal distribution's functions of float32 numbers, computed in float64.

The scaled complement of the error function, erfcx(z) = e^(z^2) erfc(z), is for z >= 0 t times one
polynomial in t = 1 / (1 + 0.375 z), and what it lacks of 1 / (sqrt(pi) z), times 2 z, is t^2 times
another. So no range needs a branch, and loops vectorise.

The polynomials, in t - 1/2, were fitted by least squares at Chebyshev nodes to values of mpmath,
reweighted towards the minimax relative error: 7e-10 and 4e-9.
"""

from __future__ import annotations

from typing import Any

from offgrad.kernels._elementary_math import exp, five_terms
from offgrad.kernels._jit import inlined

_RATE = 0.375

# erfcx(z) / t
_ERFCX = (
    0.39814526171853803,
    0.625756800377838,
    0.7551287781641874,
    0.6555626971295333,
    0.3337902244418045,
    -0.009483360421722192,
    -0.1416415069842871,
    -0.04757906615868309,
    0.060445018758048336,
    0.03373201154048125,
    -0.03029665673451043,
    -0.014542939093263652,
    0.011563491629054123,
)
# (2 / sqrt(pi) - 2 z erfcx(z)) / t^2
_FALL = (
    0.26663387292164914,
    0.7524908724490671,
    1.2182739306026933,
    1.233688969127399,
    0.6169673082125137,
    -0.18075154021871329,
    -0.434342531937779,
    -0.051291620168372354,
    0.262152947186471,
    0.06589714166890105,
    -0.1615356388352661,
    -0.03289152838645104,
    0.06826362042237222,
)


@inlined
def _polynomial(t: Any, c: Any) -> Any:
    """The polynomial of 13 coefficients in t - 1/2."""
    u = t - 0.5
    high = c[10] + u * (c[11] + u * c[12])
    return five_terms(u, five_terms(u, high, *c[5:10]), *c[:5])


@inlined
def erfcx_of_positive(z: Any) -> Any:
    """e^(z^2) erfc(z) for z >= 0."""
    t = 1.0 / (1.0 + _RATE * z)
    return t * _polynomial(t, _ERFCX)


@inlined
def fall_of_erfcx(z: Any) -> Any:
    """2 / sqrt(pi) - 2 z erfcx(z) for z >= 0: minus the slope of erfcx."""
    t = 1.0 / (1.0 + _RATE * z)
    return t * t * _polynomial(t, _FALL)


@inlined
def exp_of_square(x: Any, factor: Any) -> Any:
    """e^(factor x^2); the square of a float32 number is exact in float64."""
    return exp(factor * (x * x))


@inlined
def of_sign(x: Any, negative: Any, other: Any) -> Any:
    """`negative` for negative x, else `other`."""
    return negative if x < 0.0 else other
