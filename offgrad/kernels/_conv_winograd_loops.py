"""The compiled loops of Winograd's convolutions; `_conv_winograd` explains them.

They are in one file, because Numba's cache notices changes of a loop's own file only.

Each thread has three planes (m, n, o) of 36 rows, one for each element of a tile, of `TILES`
numbers. At these constant distances LLVM knows that rows do not overlap, and vectorises over the
tiles; from one array to another, since it compares arrays once. A transform of a plane is done
twice, and turns it each time: first down its columns, then along its rows.
Indices are unsigned, so that no negative one is to be handled, which would not be vectorised.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._gemm import strided_gemm
from offgrad.kernels._jit import inlined, jit

TILES = 64
"""Tiles in a block."""

SIDE, POINTS = 4, 6
"""Outputs and inputs along a side of a tile."""

INNER = 128
"""Channels of a product: OpenBLAS has kernels of its own, twice as fast, for products of less than
a million multiplications."""

SQUARE = POINTS * POINTS
PLANE = SQUARE * TILES
PITCH = PLANE + 16
"""Elements from one of several planes to the next: a power of two in it would be a bad distance for
caches."""

_U = np.uintp
_T, _SQUARE = _U(TILES), _U(SQUARE)
_2T, _3T, _4T, _5T = (_U(k * TILES) for k in (2, 3, 4, 5))
_R, _2R, _3R, _4R, _5R = (_U(k * POINTS * TILES) for k in (1, 2, 3, 4, 5))
_THREE, _FOUR, _SIX = _U(3), _U(SIDE), _U(POINTS)

# The points of the interpolation are 0, A, -A, B, -B and infinity.
_A, _B = 0.75, 1.5
_A2, _B2, _A3, _B3 = _A * _A, _B * _B, _A**3, _B**3
_PRODUCT, _SUM = _A2 * _B2, _A2 + _B2
_G0, _GA, _GB = 1 / _PRODUCT, 1 / (2 * _A2 * (_A2 - _B2)), 1 / (2 * _B2 * (_B2 - _A2))


@inlined
def _input_pass(d: Any, e: Any, count: Any) -> None:
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
def _output_pass(d: Any, e: Any, count: Any) -> None:
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
def _gradient_pass(d: Any, e: Any, count: Any) -> None:
    """Of each of `count` columns of 4 gradients of outputs, write 6 numbers as a row.

    It is the transpose of `_output_pass`.
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
def _weight_pass(d: Any, e: Any, count: Any) -> None:
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
def _weight_gradient_pass(d: Any, e: Any, count: Any) -> None:
    """Of each of `count` columns of 6 numbers, write 3 gradients of weights as a row.

    It is the transpose of `_weight_pass`.
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


@inlined
def _place(
    places: Any, block: int, grid: Any, planes: int, space: Any, shift: Any, size: int
) -> None:
    """Write where each tile of a block lies in an image: its address, and the part inside.

    Args:
        places: [TILES, 5], written: the first element, first and last row, and column, inside.
        block: the number of the block.
        grid: number of tiles, and of those down and across an image.
        planes: images of a sample.
        space: height and width of an image.
        shift: rows and columns by which tiles begin before the image.
        size: rows and columns of a tile that are looked at.
    """
    count, down, across = grid
    height, width = space
    for t in range(TILES):
        tile = block * TILES + t
        if tile >= count:
            for k in range(5):
                places[t, k] = 0
            continue
        sample, within = tile // (down * across), tile % (down * across)
        top = within // across * SIDE - shift[0]
        left = within % across * SIDE - shift[1]
        places[t, 0] = (sample * planes * height + top) * width + left
        places[t, 1], places[t, 2] = max(0, -top), min(size, height - top)
        places[t, 3], places[t, 4] = max(0, -left), min(size, width - left)


@inlined
def _load(m: Any, x: Any, start: int, width: int, places: Any, size: int) -> None:
    """Copy the parts of tiles that lie inside of an image into the first plane."""
    for t in range(TILES):
        first, left, right = start + places[t, 0], places[t, 3], places[t, 4]
        if right - left == size:
            for i in range(places[t, 1], places[t, 2]):
                row, at = _U(first + i * width), _U(i) * _R + _U(t)
                m[at] = x[row]
                m[at + _T] = x[row + _U(1)]
                m[at + _2T] = x[row + _U(2)]
                m[at + _3T] = x[row + _U(3)]
                if size == POINTS:
                    m[at + _4T] = x[row + _U(4)]
                    m[at + _5T] = x[row + _U(5)]
        else:
            for i in range(places[t, 1], places[t, 2]):
                row, at = _U(first + i * width + left), _U(i) * _R + _U(left) * _T + _U(t)
                for j in range(_U(right - left)):
                    m[at + j * _T] = x[row + j]


@inlined
def _store(m: Any, x: Any, start: int, width: int, places: Any, add: Any) -> None:
    """Write the outputs of tiles in the third plane, plus a number, to where they lie."""
    for t in range(TILES):
        for i in range(places[t, 2]):
            to, at = _U(start + places[t, 0] + i * width), _U(i) * _R + _U(t)
            if places[t, 4] == SIDE:
                x[to] = m[at] + add
                x[to + _U(1)] = m[at + _T] + add
                x[to + _U(2)] = m[at + _2T] + add
                x[to + _U(3)] = m[at + _3T] + add
            else:
                for j in range(_U(places[t, 4])):
                    x[to + j] = m[at + j * _T] + add


@jit
def winograd_input_loop(
    x: Any,
    channels: Any,
    space: Any,
    shift: Any,
    grid: Any,
    blocks: Any,
    first: int,
    result: Any,
    m: Any,
    n: Any,
    o: Any,
    places: Any,
) -> None:
    """Write the transforms of tiles as planes [block, channel, PITCH].

    `channels` and `blocks` are ranges, the channels' number comes last; `first` is the block that
    comes first in `result`.
    """
    start_channel, stop_channel, count = channels
    height, width = space
    for block in range(blocks[0], blocks[1]):
        _place(places, block, grid, count, space, shift, POINTS)
        for k in range(PLANE):
            m[k] = 0
        for channel in range(start_channel, stop_channel):
            _load(m, x, channel * height * width, width, places, POINTS)
            _input_pass(m, n, _SIX)
            at = ((block - first) * count + channel) * PITCH
            _input_pass(n, result[at : at + PLANE], _SIX)


@inlined
def _transform_weight(
    m: Any, n: Any, o: Any, weight: Any, steps: Any, outputs: Any, channels: int, result: Any
) -> None:
    """Write the transforms of the weights of a range of outputs as [36, output, channel]."""
    of_output, of_channel, of_element, start = steps
    rows = outputs[1] - outputs[0]
    for row in range(rows):
        for first in range(0, channels, TILES):
            part = min(TILES, channels - first)
            at = (outputs[0] + row) * of_output + first * of_channel + start
            for t in range(part):
                for i in range(3):
                    for j in range(3):
                        element = _U(at + t * of_channel + (3 * i + j) * of_element)
                        m[_U(i) * _R + _U(j) * _T + _U(t)] = weight[element]
            _weight_pass(m, n, _THREE)
            _weight_pass(n, o, _SIX)
            for point in range(SQUARE):
                to = _U((point * rows + row) * channels + first)
                source = _U(point) * _T
                for t in range(_U(part)):
                    result[to + t] = o[source + t]


@jit
def winograd_output_loop(
    blas: Any,
    inputs: Any,
    weight: Any,
    steps: Any,
    outputs: Any,
    channels: int,
    bias: Any,
    space: Any,
    grid: Any,
    blocks: Any,
    first: int,
    result: Any,
    m: Any,
    n: Any,
    o: Any,
    places: Any,
    weights: Any,
    products: Any,
) -> None:
    """Write a range of outputs of tiles from the transforms of `winograd_input_loop`.

    `steps` are the distances, in the weight, of outputs, channels and elements, and the first.
    """
    start_output, stop_output, count = outputs
    height, width = space
    rows = stop_output - start_output
    item, number = weight.itemsize, weight.dtype.type
    _transform_weight(m, n, o, weight, steps, outputs, channels, weights)
    for block in range(blocks[0], blocks[1]):
        for point in range(SQUARE):
            for start in range(0, channels, INNER):
                plane = (block - first) * channels + start
                strided_gemm(
                    blas,
                    rows,
                    TILES,
                    min(INNER, channels - start),
                    weights.ctypes.data + (point * rows * channels + start) * item,
                    channels,
                    0,
                    inputs.ctypes.data + (plane * PITCH + point * TILES) * item,
                    PITCH,
                    0,
                    number(0 if start == 0 else 1),
                    products.ctypes.data + point * TILES * item,
                    PITCH,
                )
        _place(places, block, grid, count, space, (0, 0), SIDE)
        for row in range(rows):
            _output_pass(products[row * PITCH : row * PITCH + PLANE], n, _SIX)
            _output_pass(n, o, _FOUR)
            start, add = (start_output + row) * height * width, bias[start_output + row]
            _store(o, result, start, width, places, add)


@jit
def winograd_weight_loop(
    blas: Any,
    inputs: Any,
    grad: Any,
    outputs: Any,
    channels: int,
    space: Any,
    grid: Any,
    blocks: Any,
    first: int,
    result: Any,
    m: Any,
    n: Any,
    o: Any,
    places: Any,
    gradients: Any,
    totals: Any,
) -> None:
    """Add the gradient of the weights of a range of outputs, from some blocks, to `result`.

    `inputs` are the transforms of `winograd_input_loop`, `grad` the gradient of the outputs.
    """
    start_output, stop_output, count = outputs
    height, width = space
    rows = stop_output - start_output
    item, number = grad.itemsize, grad.dtype.type
    for block in range(blocks[0], blocks[1]):
        _place(places, block, grid, count, space, (0, 0), SIDE)
        for k in range(PLANE):
            m[k] = 0
        for row in range(rows):
            _load(m, grad, (start_output + row) * height * width, width, places, SIDE)
            _gradient_pass(m, n, _FOUR)
            _gradient_pass(n, o, _SIX)
            for point in range(_SQUARE):  # turned: products with a turned factor take longer
                to, source = point * _T * _U(rows) + _U(row), point * _T
                for t in range(_T):
                    gradients[to + t * _U(rows)] = o[source + t]
        for point in range(SQUARE):
            for start in range(0, channels, INNER):
                plane = (block - first) * channels + start
                strided_gemm(
                    blas,
                    min(INNER, channels - start),
                    rows,
                    TILES,
                    inputs.ctypes.data + (plane * PITCH + point * TILES) * item,
                    PITCH,
                    0,
                    gradients.ctypes.data + point * TILES * rows * item,
                    rows,
                    0,
                    number(0 if block == blocks[0] else 1),
                    totals.ctypes.data + (point * channels + start) * rows * item,
                    rows,
                )
    for row in range(rows):
        for start in range(0, channels, TILES):
            part = min(TILES, channels - start)
            for point in range(SQUARE):
                source, to = _U((point * channels + start) * rows + row), _U(point) * _T
                for t in range(_U(part)):
                    m[to + t] = totals[source + t * _U(rows)]
            _weight_gradient_pass(m, n, _SIX)
            _weight_gradient_pass(n, o, _THREE)
            for t in range(part):
                at = _U(((start_output + row) * channels + start + t) * 9)
                for i in range(_THREE):
                    for j in range(_THREE):
                        result[at + _THREE * i + j] += o[i * _R + j * _T + _U(t)]
