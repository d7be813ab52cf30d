"""The compiled loops of Winograd's convolutions; `_conv_winograd` explains them.

Each thread has three planes, m, n and o; see `_conv_winograd_passes`. Indices are unsigned where
loops are to be vectorised.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._conv_winograd_passes import (
    PLANE,
    POINTS,
    SIDE,
    SQUARE,
    TILES,
    gradient_pass,
    input_pass,
    output_pass,
    weight_gradient_pass,
    weight_pass,
)
from offgrad.kernels._jit import inlined, jit
from offgrad.kernels._product_loops import copy_panels, multiply_panels
from offgrad.kernels._product_tiles import copy_vector

GAP = 16
"""Elements between the rows of matrices: a power of two between rows would be bad for caches."""

PITCH = PLANE + GAP
"""Elements from one of several planes to the next."""

_U = np.uintp
_T = _U(TILES)
_2T, _3T, _4T, _5T = (_U(k * TILES) for k in (2, 3, 4, 5))
_R = _U(POINTS * TILES)
_THREE, _FOUR, _SIX = _U(3), _U(SIDE), _U(POINTS)


@inlined
def _address(array: Any) -> Any:
    """Return the array's address as a signed number: sums with unsigned ones are floats."""
    return np.int64(array.ctypes.data)


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


@inlined
def _panel(block: int, point: int, part: int, channels: int, width: int) -> int:
    """Return the first element of [channels, width] in the transforms of a group's inputs."""
    return (block * SQUARE + point) * (channels * TILES + GAP) + part * channels * width


@jit
def winograd_input_loop(
    lanes: int,
    x: Any,
    tasks: Any,
    count: int,
    space: Any,
    shift: Any,
    grid: Any,
    first: int,
    result: Any,
    planes: Any,
    all_places: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Write the transforms of tiles as panels of two vectors of `lanes` elements; see `_panel`.

    A task has the first channel, the end, and a block. `count` is the channels' number, and `first`
    the block that comes first in `result`.
    """
    width, item, number = 2 * lanes, x.itemsize, x.dtype.type
    height, across = space
    m, n, o, places = planes[worker, 0], planes[worker, 1], planes[worker, 2], all_places[worker]
    for task in range(start, stop):
        start_channel, stop_channel, block = tasks[task, 0], tasks[task, 1], tasks[task, 2]
        _place(places, block, grid, count, space, shift, POINTS)
        for k in range(PLANE):
            m[k] = 0
        for channel in range(start_channel, stop_channel):
            _load(m, x, channel * height * across, across, places, POINTS)
            input_pass(m, n, _SIX)
            input_pass(n, o, _SIX)
            for point in range(SQUARE):
                for part in range(TILES // width):
                    to = _panel(block - first, point, part, count, width) + channel * width
                    source = point * TILES + part * width
                    for at in range(0, width, lanes):
                        copy_vector(
                            _address(o) + (source + at) * item,
                            _address(result) + (to + at) * item,
                            number(0),
                        )


@inlined
def _transform_weight(
    m: Any, n: Any, o: Any, weight: Any, steps: Any, outputs: Any, channels: int, result: Any
) -> None:
    """Write the transforms of the weights of a range of outputs as [36, output, channel + GAP]."""
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
            weight_pass(m, n, _THREE)
            weight_pass(n, o, _SIX)
            for point in range(SQUARE):
                to = _U((point * rows + row) * (channels + GAP) + first)
                source = _U(point) * _T
                for t in range(_U(part)):
                    result[to + t] = o[source + t]


@jit
def winograd_output_loop(
    tile: Any,
    inputs: Any,
    weight: Any,
    steps: Any,
    tasks: Any,
    count: int,
    channels: int,
    bias: Any,
    space: Any,
    grid: Any,
    first: int,
    result: Any,
    planes: Any,
    all_places: Any,
    all_weights: Any,
    all_products: Any,
    zeros: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Write outputs of tiles from the transforms of `winograd_input_loop`.

    A task has the first output, the end, the first block, and the end. `tile` are the rows of a
    product in registers, and the elements of a vector. `steps` are the distances, in the weight, of
    outputs, channels and elements, and the first; `count` is the outputs' number. A worker's
    products have room for whole tiles.
    """
    most, lanes = tile
    panel = 2 * lanes
    height, width = space
    item, number = weight.itemsize, weight.dtype.type
    m, n, o, places = planes[worker, 0], planes[worker, 1], planes[worker, 2], all_places[worker]
    weights, products = all_weights[worker], all_products[worker]
    for task in range(start, stop):
        start_output, stop_output = tasks[task, 0], tasks[task, 1]
        rows = stop_output - start_output
        _transform_weight(m, n, o, weight, steps, (start_output, stop_output), channels, weights)
        for block in range(tasks[task, 2], tasks[task, 3]):
            for point in range(SQUARE):
                for part in range(TILES // panel):
                    at = _panel(block - first, point, part, channels, panel)
                    multiply_panels(
                        _address(weights) + point * rows * (channels + GAP) * item,
                        channels + GAP,
                        1,
                        rows,
                        channels,
                        _address(inputs) + at * item,
                        channels,
                        panel,
                        panel,
                        lanes,
                        most,
                        item,
                        _address(zeros),
                        _address(products) + (point * TILES + part * panel) * item,
                        PITCH,
                        number(0),
                    )
            _place(places, block, grid, count, space, (0, 0), SIDE)
            for row in range(rows):
                output_pass(products[row * PITCH : row * PITCH + PLANE], n, _SIX)
                output_pass(n, o, _FOUR)
                to, add = (start_output + row) * height * width, bias[start_output + row]
                _store(o, result, to, width, places, add)


@jit
def winograd_weight_loop(
    tile: Any,
    inputs: Any,
    grad: Any,
    tasks: Any,
    count: int,
    channels: int,
    space: Any,
    grid: Any,
    first: int,
    results: Any,
    planes: Any,
    all_places: Any,
    all_gradients: Any,
    all_panels: Any,
    all_totals: Any,
    zeros: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Add the gradient of the weights of some outputs, from some blocks, to a part of `results`.

    A task is as that of `winograd_output_loop`, and has the part as well. `inputs` are the
    transforms of `winograd_input_loop`, `grad` the gradient of the outputs, and `tile` as there. A
    worker's totals have room for whole tiles.
    """
    most, lanes = tile
    panel = 2 * lanes
    height, width = space
    item, number = grad.itemsize, grad.dtype.type
    lines = -(-channels // most) * most
    m, n, o, places = planes[worker, 0], planes[worker, 1], planes[worker, 2], all_places[worker]
    gradients, panels, totals = all_gradients[worker], all_panels[worker], all_totals[worker]
    for task in range(start, stop):
        start_output, result = tasks[task, 0], results[tasks[task, 4]]
        rows = tasks[task, 1] - start_output
        line = -(-rows // lanes) * lanes
        for block in range(tasks[task, 2], tasks[task, 3]):
            _place(places, block, grid, count, space, (0, 0), SIDE)
            for k in range(PLANE):
                m[k] = 0
            for row in range(rows):
                _load(m, grad, (start_output + row) * height * width, width, places, SIDE)
                gradient_pass(m, n, _FOUR)
                gradient_pass(n, gradients[row * PITCH : row * PITCH + PLANE], _SIX)
            is_first = block == tasks[task, 2]
            for point in range(SQUARE):
                total = _address(totals) + point * lines * line * item
                for part in range(TILES // panel):
                    copy_panels(
                        _address(gradients) + (point * TILES + part * panel) * item,
                        1,
                        PITCH,
                        panel,
                        rows,
                        lanes,
                        item,
                        _address(panels),
                        number(0),
                    )
                    at = _panel(block - first, point, part, channels, panel)
                    multiply_panels(
                        _address(inputs) + at * item,
                        panel,
                        1,
                        channels,
                        panel,
                        _address(panels),
                        panel,
                        rows,
                        rows,
                        lanes,
                        most,
                        item,
                        _address(zeros) if is_first and part == 0 else total,
                        total,
                        line,
                        number(0),
                    )
        for row in range(rows):
            for begin in range(0, channels, TILES):
                part = min(TILES, channels - begin)
                for point in range(SQUARE):
                    source, to = _U((point * lines + begin) * line + row), _U(point) * _T
                    for t in range(_U(part)):
                        m[to + t] = totals[source + t * _U(line)]
                weight_gradient_pass(m, n, _SIX)
                weight_gradient_pass(n, o, _THREE)
                for t in range(part):
                    place = _U(((start_output + row) * channels + begin + t) * 9)
                    for i in range(_THREE):
                        for j in range(_THREE):
                            result[place + _THREE * i + j] += o[i * _R + j * _T + _U(t)]
