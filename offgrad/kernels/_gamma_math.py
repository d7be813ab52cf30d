"""lgamma and its two first derivatives for float32 numbers, computed in float64.

From 1/2 on each has two ranges, and both are computed: up to 2.5 a polynomial times the factors
that vanish at its zeros, then Stirling's series with fitted coefficients. Below 1/2 the reflection
formulas lead there (Abramowitz and Stegun, 6.1.17, 6.1.41, 6.3.7, 6.3.18, 6.4.7 and 6.4.12); beside
the zeros of negative numbers, where their terms cancel, the error is below 2e-9.

Polynomials were fitted by least squares at Chebyshev nodes to values of mpmath, reweighted towards
the minimax relative error.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from offgrad.kernels._elementary_math import (
    between,
    distance_to_integer,
    exponent,
    five_terms,
    without_exponent,
)
from offgrad.kernels._jit import inlined

_LN2 = math.log(2)
_HALF_LOG_2PI = math.log(2 * math.pi) / 2
_ZERO_OF_DIGAMMA = 1.4616321449683622
_INFINITY, _NAN = math.inf, math.nan
# From here on lgamma is infinite in float32, and negative numbers are integers.
_HUGE = 1e100

# lgamma(y) / ((y - 1) (y - 2)) for y from 0.5 to 2.5, in y - 1.5
# (relative error 3e-09)
_LGAMMA = (
    0.48312895190208255,
    -0.14595990588881683,
    0.06291118698984817,
    -0.03130791424603009,
    0.016802608191365555,
    -0.009435252096265294,
    0.005392317888855322,
    -0.0031390642609567055,
    0.00218618070579919,
    -0.0014607882273473074,
    6.056936755373403e-06,
    0.00025537783811034164,
    0.0013459014397105896,
    -0.0011171699509578258,
    -0.0007885203376594088,
    0.0006547206185994368,
    0.00038052347994083904,
    -0.00027805150393866995,
)
# (lgamma(y) - (y - 1/2) log y + y - log(2 pi) / 2) y for y from 2.5 on, in 1 / y^2
# (relative error 1e-10)
_LGAMMA_REST = (
    0.08333333332323342,
    -0.0027777728949115173,
    0.0007932651757508993,
    -0.0005837903388714545,
    0.0006776787731853826,
    -0.0006330212083039898,
)
# digamma(y) / (y - y0) for y from 0.5 to 2.5 and the zero y0, in y - 1.5
# (relative error 3e-08)
_DIGAMMA = (
    0.9510559065468867,
    -0.42362756532808865,
    0.24053764974012062,
    -0.1483957455357054,
    0.09511383526431744,
    -0.06208904475285686,
    0.03952685645239048,
    -0.025627707605213056,
    0.02391837486686079,
    -0.017668292277345628,
    -0.008173861711394743,
    0.008769566950676582,
    0.02796065171043247,
    -0.022211583420756645,
    -0.018604019282590166,
    0.0144443635233357,
    0.008177751669624238,
    -0.005932266634452343,
)
# (log y - 1 / (2 y) - digamma(y)) y^2 for y from 2.5 on, in 1 / y^2
# (relative error 1e-09)
_DIGAMMA_REST = (
    0.08333333322529737,
    -0.008333280702267538,
    0.003964058930683335,
    -0.004040432872991484,
    0.005723950555108558,
    -0.005910705982217545,
)
# trigamma(y) y^2 for y from 0.5 to 2.5, in y - 1.5
# (relative error 3e-09)
_TRIGAMMA = (
    2.1033049562788744,
    0.9396142055675171,
    0.033639287126258174,
    -0.01800533056965173,
    0.009320843213131688,
    -0.004671547224000562,
    0.002273894565937351,
    -0.0011469083715693294,
    0.0005762406028427874,
    -0.00017345550147149572,
    4.8113782788274106e-05,
    -9.92445733075803e-05,
    5.493011426158795e-05,
)
# (trigamma(y) - 1 / y - 1 / (2 y^2)) y^3 for y from 2.5 on, in 1 / y^2
# (relative error 7e-09)
_TRIGAMMA_REST = (
    0.16666666542592817,
    -0.03333272444995804,
    0.023760542806105702,
    -0.03183877729136692,
    0.053292299593967064,
    -0.05984838415852622,
)
# sin(pi r) / (pi r) for r from -1/2 to 1/2, in r^2
# (relative error 2e-11)
_SINE = (
    0.999999999978845,
    -1.644934061139817,
    0.8117421707975071,
    -0.19074762299796977,
    0.026116206950039356,
    -0.002235226811620805,
)
# cos(pi r) / (1 - 4 r^2) for r from -1/2 to 1/2, in r^2
# (relative error 3e-12)
_COSINE = (
    0.9999999999966432,
    -0.9348021996115558,
    0.3195032817335482,
    -0.057248758841530356,
    0.0063273055044348325,
    -0.0004566912175505422,
)
# log((1 + s) / (1 - s)) / s for (1 + s) / (1 - s) from sqrt(1/2) to sqrt(2), in s^2
# (relative error 3e-14)
_LOG = (
    1.999999999999947,
    0.6666666667963502,
    0.3999999487814762,
    0.2857216734443817,
    0.2217420644116392,
    0.19608651027757587,
)


@inlined
def _eighteen_terms(u: Any, c: Any) -> Any:
    high = five_terms(u, c[15] + u * (c[16] + u * c[17]), *c[10:15])
    return five_terms(u, five_terms(u, high, *c[5:10]), *c[:5])


@inlined
def _log(x: Any) -> Any:
    """The logarithm of a normal positive number, within 1e-13."""
    n = exponent(x)
    m = without_exponent(x, n)
    s = (m - 1.0) / (m + 1.0)
    w = s * s
    return np.float64(n) * _LN2 + s * five_terms(w, _LOG[5], *_LOG[:5])


@inlined
def bounded(x: Any) -> Any:
    """x, and instead of an infinity a number with the same results in float32."""
    return between(x, _HUGE)


@inlined
def reflected(x: Any) -> Any:
    """x from 1/2 on, else 1 - x."""
    return 1.0 - x if x < 0.5 else x


@inlined
def near_lgamma(y: Any) -> Any:
    """lgamma(y) for y from 0.5 to 2.5; its zeros are positive."""
    return (y - 1.0) * (y - 2.0) * _eighteen_terms(y - 1.5, _LGAMMA) + 0.0


@inlined
def far_lgamma(y: Any) -> Any:
    """lgamma(y) for y from 2.5 on."""
    rest = five_terms(1.0 / (y * y), _LGAMMA_REST[5], *_LGAMMA_REST[:5])
    return (y - 0.5) * _log(y) - y + (_HALF_LOG_2PI + rest / y)


@inlined
def near_digamma(y: Any) -> Any:
    """digamma(y) for y from 0.5 to 2.5."""
    return (y - _ZERO_OF_DIGAMMA) * _eighteen_terms(y - 1.5, _DIGAMMA)


@inlined
def far_digamma(y: Any) -> Any:
    """digamma(y) for y from 2.5 on."""
    w = 1.0 / (y * y)
    value = _log(y) - 0.5 / y - w * five_terms(w, _DIGAMMA_REST[5], *_DIGAMMA_REST[:5])
    return value if y < _INFINITY else y


@inlined
def near_trigamma(y: Any) -> Any:
    """The derivative of digamma for y from 0.5 to 2.5."""
    u = y - 1.5
    high = _TRIGAMMA[10] + u * (_TRIGAMMA[11] + u * _TRIGAMMA[12])
    return five_terms(u, five_terms(u, high, *_TRIGAMMA[5:10]), *_TRIGAMMA[:5]) / (y * y)


@inlined
def far_trigamma(y: Any) -> Any:
    """The derivative of digamma for y from 2.5 on."""
    w = 1.0 / (y * y)
    return (1.0 + w * five_terms(w, _TRIGAMMA_REST[5], *_TRIGAMMA_REST[:5])) / y + 0.5 * w


@inlined
def nearer(y: Any, near: Any, far: Any) -> Any:
    """`near` up to 2.5, else `far`."""
    return near if y < 2.5 else far


@inlined
def _sine(r: Any) -> Any:
    """sin(pi r) / pi."""
    return r * five_terms(r * r, _SINE[5], *_SINE[:5])


@inlined
def reflection_of_lgamma(x: Any) -> Any:
    """log(pi / |sin(pi x)|), infinite for integers."""
    r = abs(distance_to_integer(x))
    return _INFINITY if r == 0.0 else -_log(_sine(r))


@inlined
def reflection_of_digamma(x: Any) -> Any:
    """-pi / tan(pi x), infinite at 0 and NaN for other integers."""
    r = distance_to_integer(x)
    cosine = (1.0 - 4.0 * r * r) * five_terms(r * r, _COSINE[5], *_COSINE[:5])
    at_integer = -1.0 / x if x == 0.0 else _NAN
    return at_integer if r == 0.0 else -(cosine / _sine(r))


@inlined
def reflection_of_trigamma(x: Any) -> Any:
    """(pi / sin(pi x))^2, infinite for integers."""
    s = _sine(distance_to_integer(x))
    return 1.0 / (s * s)


@inlined
def less_value(x: Any, value: Any, reflection: Any) -> Any:
    """lgamma(x) or trigamma(x), given that of `reflected(x)`."""
    return reflection - value if x < 0.5 else value


@inlined
def digamma_of(x: Any, value: Any, reflection: Any) -> Any:
    """digamma(x), given digamma of `reflected(x)`."""
    return reflection + value if x < 0.5 else value
