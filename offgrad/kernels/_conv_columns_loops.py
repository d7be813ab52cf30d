"""The compiled loops of convolutions by products of matrices; `_conv_columns` explains them.

They are in one file, because Numba's cache notices changes of a loop's own file only. Spaces have
three dimensions. A place is the number of an output within all samples. Indices are unsigned where
loops are to be vectorised.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._gemm import strided_gemm
from offgrad.kernels._jit import inlined, jit

SIDE, INNER = 64, 128
"""Rows and columns of a tile of a product, and its sums' length at a time."""

_U = np.uintp


@inlined
def _inside(size: int, count: int, stride: int, shift: int) -> tuple[int, int]:
    """Return the first and last p in range(count) for which p stride + shift is in range(size)."""
    first = 0 if shift >= 0 else (-shift + stride - 1) // stride
    last = 0 if size <= shift else (size - shift + stride - 1) // stride
    return first, min(count, last)


@inlined
def _segments(planes: int, geometry: Any, places: Any, segments: Any) -> int:
    """Write the parts of a range of places that lie in one row of outputs; return their number.

    Of each: the first column and its end, where its sample begins in the input of `planes`
    channels, and the depth and the row of the input that the kernel's first element meets.
    """
    space, _, size, stride, padding, _ = geometry
    place, end = places
    count, per_sample = 0, planes * space[0] * space[1] * space[2]
    while place < end:
        row, start = place // size[2], place % size[2]
        stop = min(size[2], start + end - place)
        sample, row = row // (size[0] * size[1]), row % (size[0] * size[1])
        segments[count, 0], segments[count, 1] = start, stop
        segments[count, 2] = sample * per_sample
        segments[count, 3] = row // size[1] * stride[0] - padding[0]
        segments[count, 4] = row % size[1] * stride[1] - padding[1]
        count += 1
        place += stop - start
    return count


@inlined
def _columns(x: Any, planes: Any, geometry: Any, segments: Any, count: int, columns: Any) -> None:
    """Write the patches of some channels at the places of segments as [channel, *kernel, place].

    `planes` are the first channel, their number, and that of a sample.
    """
    space, kernel, size, stride, padding, dilation = geometry
    at = _U(0)
    for plane in range(planes[0], planes[0] + planes[1]):
        for kd in range(kernel[0]):
            for kh in range(kernel[1]):
                deep, down = kd * dilation[0], kh * dilation[1]
                for kw in range(kernel[2]):
                    shift = kw * dilation[2] - padding[2]
                    low, high = _inside(space[2], size[2], stride[2], shift)
                    for k in range(count):
                        start, stop = segments[k, 0], segments[k, 1]
                        d, h = segments[k, 3] + deep, segments[k, 4] + down
                        if 0 <= d < space[0] and 0 <= h < space[1]:
                            left = min(max(start, low), stop)
                            right = max(left, min(stop, high))
                        else:
                            left, right = stop, stop
                        for p in range(_U(left - start)):
                            columns[at + p] = 0
                        at += _U(left - start)
                        row = (plane * space[0] + d) * space[1] + h
                        source = _U(segments[k, 2] + row * space[2] + left * stride[2] + shift)
                        if stride[2] == 1:
                            for p in range(_U(right - left)):
                                columns[at + p] = x[source + p]
                        elif stride[2] == 2:
                            for p in range(_U(right - left)):
                                columns[at + p] = x[source + p + p]
                        else:
                            step = _U(stride[2])
                            for p in range(_U(right - left)):
                                columns[at + p] = x[source + p * step]
                        at += _U(right - left)
                        for p in range(_U(stop - right)):
                            columns[at + p] = 0
                        at += _U(stop - right)


@inlined
def _add_columns(
    x: Any, planes: Any, geometry: Any, segments: Any, count: int, columns: Any
) -> None:
    """Add patches to where they come from; the reverse of `_columns`."""
    space, kernel, size, stride, padding, dilation = geometry
    at = _U(0)
    for plane in range(planes[0], planes[0] + planes[1]):
        for kd in range(kernel[0]):
            for kh in range(kernel[1]):
                deep, down = kd * dilation[0], kh * dilation[1]
                for kw in range(kernel[2]):
                    shift = kw * dilation[2] - padding[2]
                    low, high = _inside(space[2], size[2], stride[2], shift)
                    for k in range(count):
                        start, stop = segments[k, 0], segments[k, 1]
                        d, h = segments[k, 3] + deep, segments[k, 4] + down
                        left, right = max(start, low), min(stop, high)
                        if 0 <= d < space[0] and 0 <= h < space[1] and left < right:
                            row = (plane * space[0] + d) * space[1] + h
                            target = _U(segments[k, 2] + row * space[2] + left * stride[2] + shift)
                            source = at + _U(left - start)
                            if stride[2] == 1:
                                for p in range(_U(right - left)):
                                    x[target + p] += columns[source + p]
                            else:
                                step = _U(stride[2])
                                for p in range(_U(right - left)):
                                    x[target + p * step] += columns[source + p]
                        at += _U(stop - start)


@inlined
def _rows(x: Any, planes: Any, per_plane: int, places: Any, rows: Any) -> None:
    """Write the values of some channels at a range of places as [channel, place]."""
    first_plane, plane_count, all_planes = planes
    begin, end = places
    at = 0
    for plane in range(first_plane, first_plane + plane_count):
        place = begin
        while place < end:
            sample, start = place // per_plane, place % per_plane
            count = min(per_plane - start, end - place)
            source = (sample * all_planes + plane) * per_plane + start
            for p in range(_U(count)):
                rows[_U(at) + p] = x[_U(source) + p]
            at += count
            place += count


@inlined
def _product(
    blas: Any,
    sizes: Any,
    a: int,
    a_stride: int,
    transposed: int,
    b: int,
    b_stride: int,
    c: int,
    c_stride: int,
    item: int,
    zero: Any,
) -> None:
    """Write a b into `c`, [m, n]; arguments as those of `strided_gemm`, an item's size in bytes.

    In tiles: OpenBLAS has kernels of its own, a tenth faster, for products of less than a million
    multiplications, unless b is turned.
    """
    m, n, k = sizes
    number = type(zero)
    for i in range(0, m, SIDE):
        for start in range(0, k, INNER):
            from_a = (start * a_stride + i) if transposed else (i * a_stride + start)
            for j in range(0, n, SIDE):
                strided_gemm(
                    blas,
                    min(SIDE, m - i),
                    min(SIDE, n - j),
                    min(INNER, k - start),
                    a + from_a * item,
                    a_stride,
                    transposed,
                    b + (start * b_stride + j) * item,
                    b_stride,
                    0,
                    number(0 if start == 0 else 1),
                    c + (i * c_stride + j) * item,
                    c_stride,
                )


@inlined
def _columns_output(
    blas: Any,
    x: Any,
    inputs: Any,
    weight: Any,
    outputs: Any,
    bias: Any,
    geometry: Any,
    places: Any,
    result: Any,
    segments: Any,
    columns: Any,
    products: Any,
) -> None:
    """Write the outputs of a group of channels at a range of places.

    `inputs` and `outputs` are the first channel, their number, and that of a sample.
    """
    _, kernel, size, _, _, _ = geometry
    begin, end = places
    first, count, all_planes = outputs
    inner, width = inputs[1] * kernel[0] * kernel[1] * kernel[2], end - begin
    per_plane, item = size[0] * size[1] * size[2], weight.itemsize
    found = _segments(inputs[2], geometry, places, segments)
    _columns(x, inputs, geometry, segments, found, columns)
    _product(
        blas,
        (count, width, inner),
        weight.ctypes.data + first * inner * item,
        inner,
        0,
        columns.ctypes.data,
        width,
        products.ctypes.data,
        width,
        item,
        weight.dtype.type(0),
    )
    at = 0
    for plane in range(first, first + count):
        add = bias[plane]
        place = begin
        while place < end:
            sample, start = place // per_plane, place % per_plane
            part = min(per_plane - start, end - place)
            to = (sample * all_planes + plane) * per_plane + start
            for p in range(_U(part)):
                result[_U(to) + p] = products[_U(at) + p] + add
            at += part
            place += part


@inlined
def _columns_input(
    blas: Any,
    x: Any,
    inputs: Any,
    weight: Any,
    weight_stride: int,
    weight_start: int,
    outputs: Any,
    step: int,
    geometry: Any,
    places: Any,
    result: Any,
    segments: Any,
    rows: Any,
    columns: Any,
) -> None:
    """Add the patches that values of a group of channels give, at a range of places, to `result`.

    `inputs` and `outputs` are the first channel, their number, and that of a sample. The patches of
    `step` outputs are computed at a time; the weight's rows are `weight_stride` apart.
    """
    _, kernel, size, _, _, _ = geometry
    begin, end = places
    first, count, all_planes = outputs
    area, width = kernel[0] * kernel[1] * kernel[2], end - begin
    item = weight.itemsize
    _rows(x, inputs, size[0] * size[1] * size[2], places, rows)
    found = _segments(all_planes, geometry, places, segments)
    for start in range(0, count, step):
        part = min(step, count - start)
        _product(
            blas,
            (part * area, width, inputs[1]),
            weight.ctypes.data + (weight_start + start * area) * item,
            weight_stride,
            1,
            rows.ctypes.data,
            width,
            columns.ctypes.data,
            width,
            item,
            weight.dtype.type(0),
        )
        _add_columns(result, (first + start, part, all_planes), geometry, segments, found, columns)


@inlined
def _columns_weight(
    blas: Any,
    small: Any,
    outputs: Any,
    large: Any,
    inputs: Any,
    geometry: Any,
    places: Any,
    step: int,
    result: Any,
    result_stride: int,
    result_start: int,
    segments: Any,
    rows: Any,
    columns: Any,
) -> None:
    """Write the gradient of the weights of a group of channels, from a range of places.

    `inputs` and `outputs` are the first channel, their number, and that of a sample; `step` places
    are taken at a time.
    """
    _, kernel, size, _, _, _ = geometry
    begin, end = places
    inner = inputs[1] * kernel[0] * kernel[1] * kernel[2]
    number, item = small.dtype.type, small.itemsize
    for place in range(begin, end, step):
        width = min(step, end - place)
        part = place, place + width
        _rows(small, outputs, size[0] * size[1] * size[2], part, rows)
        found = _segments(inputs[2], geometry, part, segments)
        _columns(large, inputs, geometry, segments, found, columns)
        strided_gemm(
            blas,
            outputs[1],
            inner,
            width,
            rows.ctypes.data,
            width,
            0,
            columns.ctypes.data,
            width,
            1,
            number(0 if place == begin else 1),
            result.ctypes.data + result_start * item,
            result_stride,
        )


@inlined
def _planes(group: int, groups: int, channels: int) -> tuple[int, int, int]:
    """Return the first channel of a group, their number, and that of a sample."""
    count = channels // groups
    return group * count, count, channels


@jit
def columns_output_loop(
    blas: Any,
    x: Any,
    weight: Any,
    bias: Any,
    channels: Any,
    geometry: Any,
    total: int,
    width: int,
    result: Any,
    all_segments: Any,
    all_columns: Any,
    all_products: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Write outputs; a task is the number of a group, and of a block of `width` places.

    `channels` are the number of groups, of inputs and of outputs.
    """
    groups, inputs, outputs = channels
    blocks = (total + width - 1) // width
    for task in range(start, stop):
        group, block = task // blocks, task % blocks
        _columns_output(
            blas,
            x,
            _planes(group, groups, inputs),
            weight,
            _planes(group, groups, outputs),
            bias,
            geometry,
            (block * width, min(total, (block + 1) * width)),
            result,
            all_segments[worker],
            all_columns[worker],
            all_products[worker],
        )


@jit
def columns_input_loop(
    blas: Any,
    x: Any,
    weight: Any,
    bias: Any,
    channels: Any,
    steps: Any,
    geometry: Any,
    result: Any,
    all_segments: Any,
    all_rows: Any,
    all_columns: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Write the gradients of inputs; a task has some samples, and some outputs of a group.

    `channels` are the number of groups, of the outputs of one, and of all inputs; `steps` are the
    samples and the outputs of a task, the places and outputs at a time, and all samples.
    """
    groups, outputs, all_inputs = channels
    samples, step, width, at_once, all_samples = steps
    space, kernel, size, _, _, _ = geometry
    area, per_plane = kernel[0] * kernel[1] * kernel[2], size[0] * size[1] * size[2]
    volume = space[0] * space[1] * space[2]
    parts, of_parts = (all_samples + samples - 1) // samples, (outputs + step - 1) // step
    inputs = all_inputs // groups
    for task in range(start, stop):
        part, rest = task % of_parts, task // of_parts
        block, group = rest % parts, rest // parts
        first = part * step
        count, begin = min(step, outputs - first), group * outputs + first
        end = min(all_samples, (block + 1) * samples)
        for sample in range(block * samples, end):
            for plane in range(begin, begin + count):
                at = (sample * groups * outputs + plane) * volume
                result[at : at + volume] = bias[plane]
        for place in range(block * samples * per_plane, end * per_plane, width):
            _columns_input(
                blas,
                x,
                _planes(group, groups, all_inputs),
                weight,
                outputs * area,
                (group * inputs * outputs + first) * area,
                (begin, count, groups * outputs),
                at_once,
                geometry,
                (place, min(end * per_plane, place + width)),
                result,
                all_segments[worker],
                all_rows[worker],
                all_columns[worker],
            )


@jit
def columns_weight_loop(
    blas: Any,
    small: Any,
    large: Any,
    channels: Any,
    steps: Any,
    geometry: Any,
    results: Any,
    all_segments: Any,
    all_rows: Any,
    all_columns: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Write the gradients of weights; a task has some channels of a group, and a range of places.

    `channels` are the number of groups, of the channels of one, and of all outputs; `steps` are the
    channels and the places of a task, the places at a time, and all places. Each range of places
    has its own results.
    """
    groups, count, all_outputs = channels
    step, length, width, total = steps
    kernel = geometry[1]
    area, outputs = kernel[0] * kernel[1] * kernel[2], all_outputs // groups
    parts, ranges = (count + step - 1) // step, (total + length - 1) // length
    for task in range(start, stop):
        number_of_range, rest = task % ranges, task // ranges
        part, group = rest % parts, rest // parts
        first = part * step
        _columns_weight(
            blas,
            small,
            _planes(group, groups, all_outputs),
            large,
            (group * count + first, min(step, count - first), groups * count),
            geometry,
            (number_of_range * length, min(total, (number_of_range + 1) * length)),
            width,
            results[number_of_range],
            count * area,
            (group * outputs * count + first) * area,
            all_segments[worker],
            all_rows[worker],
            all_columns[worker],
        )
