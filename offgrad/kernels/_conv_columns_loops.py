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

_U = np.uintp


@inlined
def _inside(size: int, count: int, stride: int, shift: int) -> tuple[int, int]:
    """Return the first and last p in range(count) for which p stride + shift is in range(size)."""
    first = 0 if shift >= 0 else (-shift + stride - 1) // stride
    last = 0 if size <= shift else (size - shift + stride - 1) // stride
    return first, min(count, last)


@inlined
def _columns(x: Any, planes: Any, geometry: Any, places: Any, columns: Any) -> None:
    """Write the patches of some channels at a range of places as [channel, *kernel, place].

    `planes` are the first channel, their number, and that of a sample.
    """
    space, kernel, size, stride, padding, dilation = geometry
    first_plane, plane_count, all_planes = planes
    begin, end = places
    row_count = size[0] * size[1]
    at = 0
    for plane in range(first_plane, first_plane + plane_count):
        for kd in range(kernel[0]):
            for kh in range(kernel[1]):
                for kw in range(kernel[2]):
                    shift = kw * dilation[2] - padding[2]
                    low, high = _inside(space[2], size[2], stride[2], shift)
                    place = begin
                    while place < end:
                        row, start = place // size[2], place % size[2]
                        stop = min(size[2], start + end - place)
                        sample, row = row // row_count, row % row_count
                        d = row // size[1] * stride[0] - padding[0] + kd * dilation[0]
                        h = row % size[1] * stride[1] - padding[1] + kh * dilation[1]
                        if 0 <= d < space[0] and 0 <= h < space[1]:
                            left, right = min(max(start, low), stop), max(min(stop, high), start)
                            right = max(left, right)
                        else:
                            left, right = stop, stop
                        for p in range(_U(left - start)):
                            columns[_U(at) + p] = 0
                        source = ((sample * all_planes + plane) * space[0] + d) * space[1] + h
                        source = source * space[2] + left * stride[2] + shift
                        to = at + left - start
                        if stride[2] == 1:
                            for p in range(_U(right - left)):
                                columns[_U(to) + p] = x[_U(source) + p]
                        else:
                            step = _U(stride[2])
                            for p in range(_U(right - left)):
                                columns[_U(to) + p] = x[_U(source) + p * step]
                        to = at + right - start
                        for p in range(_U(stop - right)):
                            columns[_U(to) + p] = 0
                        at += stop - start
                        place += stop - start


@inlined
def _add_columns(x: Any, planes: Any, geometry: Any, places: Any, columns: Any) -> None:
    """Add patches to where they come from; the reverse of `_columns`."""
    space, kernel, size, stride, padding, dilation = geometry
    first_plane, plane_count, all_planes = planes
    begin, end = places
    row_count = size[0] * size[1]
    at = 0
    for plane in range(first_plane, first_plane + plane_count):
        for kd in range(kernel[0]):
            for kh in range(kernel[1]):
                for kw in range(kernel[2]):
                    shift = kw * dilation[2] - padding[2]
                    low, high = _inside(space[2], size[2], stride[2], shift)
                    place = begin
                    while place < end:
                        row, start = place // size[2], place % size[2]
                        stop = min(size[2], start + end - place)
                        sample, row = row // row_count, row % row_count
                        d = row // size[1] * stride[0] - padding[0] + kd * dilation[0]
                        h = row % size[1] * stride[1] - padding[1] + kh * dilation[1]
                        left, right = max(start, low), min(stop, high)
                        if 0 <= d < space[0] and 0 <= h < space[1] and left < right:
                            source = ((sample * all_planes + plane) * space[0] + d) * space[1] + h
                            source = source * space[2] + left * stride[2] + shift
                            to = at + left - start
                            if stride[2] == 1:
                                for p in range(_U(right - left)):
                                    x[_U(source) + p] += columns[_U(to) + p]
                            else:
                                step = _U(stride[2])
                                for p in range(_U(right - left)):
                                    x[_U(source) + p * step] += columns[_U(to) + p]
                        at += stop - start
                        place += stop - start


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


@jit
def columns_output_loop(
    blas: Any,
    x: Any,
    inputs: Any,
    weight: Any,
    outputs: Any,
    bias: Any,
    geometry: Any,
    places: Any,
    result: Any,
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
    _columns(x, inputs, geometry, places, columns)
    strided_gemm(
        blas,
        count,
        width,
        inner,
        weight.ctypes.data + first * inner * item,
        inner,
        0,
        columns.ctypes.data,
        width,
        0,
        weight.dtype.type(0),
        products.ctypes.data,
        width,
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


@jit
def columns_input_loop(
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
    for start in range(0, count, step):
        part = min(step, count - start)
        strided_gemm(
            blas,
            part * area,
            width,
            inputs[1],
            weight.ctypes.data + (weight_start + start * area) * item,
            weight_stride,
            1,
            rows.ctypes.data,
            width,
            0,
            weight.dtype.type(0),
            columns.ctypes.data,
            width,
        )
        _add_columns(result, (first + start, part, all_planes), geometry, places, columns)


@jit
def columns_weight_loop(
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
        _columns(large, inputs, geometry, part, columns)
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
