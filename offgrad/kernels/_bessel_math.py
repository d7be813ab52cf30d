"""Modified Bessel functions of float32 numbers, and their slopes, computed in float64.

Each is one polynomial in t = 1 / (1 + 0.15 |x|), which maps all numbers to (0, 1], times the power
of t with which the function decays once e^|x| is divided out. So no range needs a branch, and loops
vectorise.

The polynomials, in t - 1/2, were fitted by least squares at Chebyshev nodes to values of mpmath,
reweighted towards the minimax relative error: below 2e-9 for the functions and the slope of I1,
below 3e-8 for the slopes of the two others (for that of e^-|x| I1 outside of its zeros, beside
which the error is 3e-8 of 0.005 t^(3/2)).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from offgrad.kernels._elementary_math import between, five_terms
from offgrad.kernels._jit import inlined

_RATE = 0.15
# From here on the scaled functions are 0 in float32; its cube is finite in float64.
_HUGE = 1e100
# From here on the functions are infinite in float32.
_OVERFLOW = 150.0
_INFINITY, _NAN = math.inf, math.nan
_LARGEST = float(np.finfo(np.float32).max)

# e^-a I0(a) / t^(1/2)
_I0E = (
    0.22302564038758743,
    0.24318611254165196,
    0.4059396847357375,
    0.7782900935563398,
    1.6424975192793227,
    3.6918720677620973,
    8.090695217948538,
    14.568594623267808,
    14.62051960469393,
    -11.52357323232506,
    -56.55254057412367,
    -22.099932549285505,
    141.90951856113614,
    113.82374638958314,
    -315.7162076762043,
    -277.71334803677695,
    561.3842804641947,
    401.7289275955409,
    -653.8691588388756,
    -266.6817967966199,
    355.39832301437855,
)
# e^-a I1(a) / (a t^(3/2))
_I1E = (
    0.06166281003262237,
    0.16845052395311338,
    0.37489910638789975,
    0.7498768916755738,
    1.3481381445702145,
    2.0531627073922687,
    2.1965809296855636,
    0.31794235968047563,
    -4.149611786862563,
    -5.964637620210273,
    4.842202966133698,
    18.96528912793527,
    -3.753530870982145,
    -49.553656507996735,
    -3.3843425359104504,
    103.79615068602241,
    26.373490165305626,
    -144.95531343942275,
    -60.20848053286318,
    96.088239855133,
    53.83254715567455,
)
# e^-a (I0(a) - I1(a)) / t^(3/2)
_I0E_FALL = (
    0.03496588155878056,
    0.1156078123231914,
    0.3273425389526477,
    0.9013558354152761,
    2.493158211284096,
    6.686270090704199,
    15.535638514911172,
    25.173990724672322,
    10.903204362231676,
    -59.0672214172474,
    -108.00866199311342,
    92.22964443734537,
    384.475594977068,
    -119.15566144249547,
    -1047.1015958625608,
    102.47166037717363,
    2088.8746537942698,
    4.395238446071744,
    -2598.4116570167243,
    -88.57438343577087,
    1462.5192793309689,
)
# e^-a (I0(a) - I1(a) - I1(a)/a) / t^(3/2)
_I1E_SLOPE = (
    -0.026696928795258555,
    -0.0528427189255327,
    -0.04755631144180037,
    0.15148206352444815,
    1.1449903467368123,
    4.632779328052524,
    13.340199250437427,
    24.870187922561325,
    15.036393918686775,
    -53.410964834248,
    -112.83814512867147,
    77.03110922545955,
    390.417317907827,
    -96.45899397833051,
    -1069.5190239250128,
    109.53959680551351,
    2196.535429149851,
    -95.94243222242221,
    -2876.7097505927086,
    40.28281230479479,
    1746.7207307815552,
)
# e^-a (I0(a) - I1(a)/a) / t^(1/2)
_I1_SLOPE = (
    0.1921942354180182,
    0.09729803613690029,
    0.05003955461449687,
    0.028453709898549027,
    0.2185605729354341,
    1.3170641606382116,
    4.938679911078947,
    12.215996411864403,
    16.394498720706185,
    -4.443408691236014,
    -53.300063750877605,
    -35.914890627285374,
    127.77172576951232,
    139.54721843075572,
    -282.6876605513904,
    -318.72332401407755,
    511.50508983431195,
    445.85171536469716,
    -614.2570836599916,
    -288.7184712793678,
    347.61611629649997,
)


@inlined
def _polynomial(t: Any, c: Any) -> Any:
    """The polynomial of 21 coefficients in t - 1/2."""
    u = t - 0.5
    high = five_terms(u, five_terms(u, c[20], *c[15:20]), *c[10:15])
    return five_terms(u, five_terms(u, high, *c[5:10]), *c[:5])


@inlined
def decay(a: Any) -> Any:
    """t for a = |x|."""
    return 1.0 / (1.0 + _RATE * a)


@inlined
def finite(x: Any) -> Any:
    """x, and instead of an infinity a number at which scaled functions are 0 in float32."""
    return between(x, _HUGE)


@inlined
def bounded(x: Any) -> Any:
    """x, and instead of a large number one at which the functions are infinite in float32.

    NaN instead of infinity, where SciPy gives NaN.
    """
    near = between(x, _OVERFLOW)
    return near if abs(x) < _INFINITY else _NAN


@inlined
def scaled_i0(t: Any) -> Any:
    """e^-a I0(a)."""
    return math.sqrt(t) * _polynomial(t, _I0E)


@inlined
def scaled_i1(t: Any) -> Any:
    """e^-a I1(a) / a."""
    return t * math.sqrt(t) * _polynomial(t, _I1E)


@inlined
def fall_of_scaled_i0(t: Any) -> Any:
    """e^-a (I0(a) - I1(a)): minus the slope of e^-a I0(a)."""
    return t * math.sqrt(t) * _polynomial(t, _I0E_FALL)


@inlined
def slope_of_scaled_i1(t: Any) -> Any:
    """e^-a (I0(a) - I1(a) - I1(a) / a): the slope of e^-a I1(a)."""
    return t * math.sqrt(t) * _polynomial(t, _I1E_SLOPE)


@inlined
def scaled_slope_of_i1(t: Any) -> Any:
    """e^-a (I0(a) - I1(a) / a): e^-a times the slope of I1."""
    return math.sqrt(t) * _polynomial(t, _I1_SLOPE)


@inlined
def against_sign(x: Any, value: Any) -> Any:
    """-value for positive x, value for negative ones, 0 at 0."""
    signed = -value if x > 0.0 else value
    return 0.0 if x == 0.0 else signed


@inlined
def difference_of_finite(value: Any) -> Any:
    """`value`, and NaN where float32 would have the difference of two infinities."""
    return value if abs(value) <= _LARGEST else _NAN
