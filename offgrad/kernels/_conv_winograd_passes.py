"""The transforms of Winograd's convolutions; `_conv_winograd` explains them.

A plane has 36 rows, one for each element of a tile, of `TILES` numbers. At these constant distances
LLVM knows that rows do not overlap, and vectorises over the tiles; from one array to another, since
it compares arrays once. A transform of a plane is done twice, and turns it each time: first down
its columns, then along its rows. Indices are unsigned, so that no negative one is to be handled,
which would not be vectorised.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._jit import inlined

TILES = 64
"""Tiles in a block."""

SIDE, POINTS = 4, 6
"""Outputs and inputs along a side of a tile."""

SQUARE = POINTS * POINTS
PLANE = SQUARE * TILES

_U = np.uintp
_T = _U(TILES)
_2T, _3T, _4T, _5T = (_U(k * TILES) for k in (2, 3, 4, 5))
_R, _2R, _3R, _4R, _5R = (_U(k * POINTS * TILES) for k in (1, 2, 3, 4, 5))

# The points of the interpolation are 0, A, -A, B, -B and infinity.
_A, _B = 0.75, 1.5
_A2, _B2, _A3, _B3 = _A * _A, _B * _B, _A**3, _B**3
_PRODUCT, _SUM = _A2 * _B2, _A2 + _B2
_G0, _GA, _GB = 1 / _PRODUCT, 1 / (2 * _A2 * (_A2 - _B2)), 1 / (2 * _B2 * (_B2 - _A2))


@inlined
def input_pass(d: Any, e: Any, count: Any) -> None:
    """Of each of `count` columns of 6 inputs, write the 6 transforms as a row."""
    number = d.dtype.type
    a, b, a2, b2 = number(_A), number(_B), number(_A2), number(_B2)
    product, total = number(_PRODUCT), number(_SUM)
    for q in range(count):
        s, r = q * _T, q * _R
        for t in range(_T):
            d0, d1, d2 = d[s + t], d[s + _R + t], d[s + _2R + t]
            d3, d4, d5 = d[s + _3R + t], d[s + _4R + t], d[s + _5R + t]
            even, odd = d4 - b2 * d2, a * (d3 - b2 * d1)
            even_, odd_ = d4 - a2 * d2, b * (d3 - a2 * d1)
            e[r + t] = product * d0 - total * d2 + d4
            e[r + _T + t] = even + odd
            e[r + _2T + t] = even - odd
            e[r + _3T + t] = even_ + odd_
            e[r + _4T + t] = even_ - odd_
            e[r + _5T + t] = product * d1 - total * d3 + d5


@inlined
def output_pass(d: Any, e: Any, count: Any) -> None:
    """Of each of `count` columns of a plane, write the 4 outputs as a row."""
    number = d.dtype.type
    a, b, a2, b2 = number(_A), number(_B), number(_A2), number(_B2)
    a3, b3 = number(_A3), number(_B3)
    for q in range(count):
        s, r = q * _T, q * _R
        for t in range(_T):
            m1, m2 = d[s + _R + t], d[s + _2R + t]
            m3, m4 = d[s + _3R + t], d[s + _4R + t]
            even, odd, even_, odd_ = m1 + m2, m1 - m2, m3 + m4, m3 - m4
            e[r + t] = d[s + t] + even + even_
            e[r + _T + t] = a * odd + b * odd_
            e[r + _2T + t] = a2 * even + b2 * even_
            e[r + _3T + t] = a3 * odd + b3 * odd_ + d[s + _5R + t]


@inlined
def gradient_pass(d: Any, e: Any, count: Any) -> None:
    """Of each of `count` columns of 4 gradients of outputs, write 6 numbers as a row.

    It is the transpose of `output_pass`.
    """
    number = d.dtype.type
    a, b, a2, b2 = number(_A), number(_B), number(_A2), number(_B2)
    a3, b3 = number(_A3), number(_B3)
    for q in range(count):
        s, r = q * _T, q * _R
        for t in range(_T):
            y0, y1 = d[s + t], d[s + _R + t]
            y2, y3 = d[s + _2R + t], d[s + _3R + t]
            even, odd = y0 + a2 * y2, a * y1 + a3 * y3
            even_, odd_ = y0 + b2 * y2, b * y1 + b3 * y3
            e[r + t] = y0
            e[r + _T + t] = even + odd
            e[r + _2T + t] = even - odd
            e[r + _3T + t] = even_ + odd_
            e[r + _4T + t] = even_ - odd_
            e[r + _5T + t] = y3


@inlined
def weight_pass(d: Any, e: Any, count: Any) -> None:
    """Of each of `count` columns of 3 weights, write 6 numbers as a row."""
    number = d.dtype.type
    a, b, a2, b2 = number(_A), number(_B), number(_A2), number(_B2)
    g0, ga, gb = number(_G0), number(_GA), number(_GB)
    for q in range(count):
        s, r = q * _T, q * _R
        for t in range(_T):
            w0, w1, w2 = d[s + t], d[s + _R + t], d[s + _2R + t]
            even, odd = ga * (w0 + a2 * w2), ga * (a * w1)
            even_, odd_ = gb * (w0 + b2 * w2), gb * (b * w1)
            e[r + t] = g0 * w0
            e[r + _T + t] = even + odd
            e[r + _2T + t] = even - odd
            e[r + _3T + t] = even_ + odd_
            e[r + _4T + t] = even_ - odd_
            e[r + _5T + t] = w2


@inlined
def weight_gradient_pass(d: Any, e: Any, count: Any) -> None:
    """Of each of `count` columns of 6 numbers, write 3 gradients of weights as a row.

    It is the transpose of `weight_pass`.
    """
    number = d.dtype.type
    a, b, a2, b2 = number(_A), number(_B), number(_A2), number(_B2)
    g0, ga, gb = number(_G0), number(_GA), number(_GB)
    for q in range(count):
        s, r = q * _T, q * _R
        for t in range(_T):
            u1, u2 = d[s + _R + t], d[s + _2R + t]
            u3, u4 = d[s + _3R + t], d[s + _4R + t]
            even, odd = ga * (u1 + u2), ga * (u1 - u2)
            even_, odd_ = gb * (u3 + u4), gb * (u3 - u4)
            e[r + t] = g0 * d[s + t] + even + even_
            e[r + _T + t] = a * odd + b * odd_
            e[r + _2T + t] = a2 * even + b2 * even_ + d[s + _5R + t]
