"""Convolutions of few channels by themselves: depthwise, and those with many small groups.

Products of matrices this small do not pay. Instead an image is copied with its padding, and with a
stride into as many images, one for each remainder: then the inputs that an element of the kernel
meets at all outputs follow one another in memory, gaps between rows included, and one long loop
adds their products. Spaces have three dimensions.

Shapes alone decide the order of sums.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad import memory
from offgrad.kernels._arrays import Array
from offgrad.kernels._conv_numpy import Steps, three_dimensional
from offgrad.kernels._jit import inlined, jit, uses_numba
from offgrad.kernels._parallel import num_workers, parallel_for
from offgrad.kernels._reduce import sum_rows

MAX_CHANNELS = 8
"""Channels of a group, and outputs of one, at most: with more, products take less time."""

MAX_IMAGES = 1 << 20
"""Elements of the padded channels of a group, at most."""

PARTS = 8
"""Ranges of samples whose gradients of a weight are added up in the end."""

_U = np.uintp
_CHUNK = 2048  # elements that stay in the nearest cache while a kernel's elements pass over them


@inlined
def copy_image(
    x: Any, start: int, geometry: Any, edges: Any, apart: int, images: Any, back: bool
) -> None:
    """Copy the channel at `start` into padded images, one for each remainder; or add them to it.

    `edges` are the sizes of an image, `apart` the elements from one to the next.
    """
    space, _, _, stride, padding, _ = geometry
    for rd in range(stride[0]):
        for rh in range(stride[1]):
            for rw in range(stride[2]):
                shift, step = rw - padding[2], stride[2]
                low = 0 if shift >= 0 else (-shift + step - 1) // step
                high = 0 if space[2] <= shift else (space[2] - shift + step - 1) // step
                low, high = min(low, edges[2]), min(high, edges[2])
                high = max(low, high)
                at = ((rd * stride[1] + rh) * stride[2] + rw) * apart
                for i in range(edges[0]):
                    d = i * stride[0] + rd - padding[0]
                    for j in range(edges[1]):
                        h = j * stride[1] + rh - padding[1]
                        inside = 0 <= d < space[0] and 0 <= h < space[1]
                        left, right = (low, high) if inside else (edges[2], edges[2])
                        row = start + (d * space[1] + h) * space[2] + left * step + shift
                        to, source = _U(at + left), _U(row)
                        if back:
                            for p in range(_U(right - left)):
                                x[source + p * _U(step)] += images[to + p]
                        else:
                            for p in range(_U(left)):
                                images[_U(at) + p] = 0
                            for p in range(_U(right - left)):
                                images[to + p] = x[source + p * _U(step)]
                            for p in range(_U(edges[2] - right)):
                                images[_U(at + right) + p] = 0
                        at += edges[2]


@inlined
def find_distances(
    channels: int, pitch: int, geometry: Any, edges: Any, apart: int, distances: Any
) -> None:
    """Write where in the images of all channels the inputs of each element of the kernel begin.

    `pitch` are the elements from one channel to the next, `apart` those from one remainder to the
    next.
    """
    _, kernel, _, stride, _, dilation = geometry
    at = 0
    for channel in range(channels):
        start = channel * pitch
        for kd in range(kernel[0]):
            for kh in range(kernel[1]):
                for kw in range(kernel[2]):
                    d, h, w = kd * dilation[0], kh * dilation[1], kw * dilation[2]
                    image = (d % stride[0] * stride[1] + h % stride[1]) * stride[2] + w % stride[2]
                    row = d // stride[0] * edges[1] + h // stride[1]
                    distances[at] = start + image * apart + row * edges[2] + w // stride[2]
                    at += 1


@inlined
def _spread(x: Any, start: int, geometry: Any, edges: Any, rows: Any) -> None:
    """Copy an output's plane with the gaps between rows that images have, as zeros."""
    size = geometry[2]
    for k in range(_U(rows.size)):
        rows[k] = 0
    for i in range(size[0]):
        for j in range(size[1]):
            source = _U(start + (i * size[1] + j) * size[2])
            to = _U((i * edges[1] + j) * edges[2])
            for p in range(_U(size[2])):
                rows[to + p] = x[source + p]


@jit
def direct_output_loop(
    x: Any,
    weight: Any,
    bias: Any,
    channels: Any,
    geometry: Any,
    edges: Any,
    result: Any,
    all_images: Any,
    all_rows: Any,
    all_distances: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Write the outputs of some groups; a task is the number of a sample and of a group.

    `channels` are the number of groups, and the inputs and outputs of one.
    """
    tasks, images, rows = (start, stop), all_images[worker], all_rows[worker]
    distances = all_distances[worker]
    space, _, size, stride, _, _ = geometry
    groups, inputs, outputs = channels
    volume, places = space[0] * space[1] * space[2], size[0] * size[1] * size[2]
    area = edges[0] * edges[1] * edges[2]
    count = area * stride[0] * stride[1] * stride[2]
    find_distances(inputs, count, geometry, edges, area, distances)
    for task in range(tasks[0], tasks[1]):
        for channel in range(inputs):
            start = (task * inputs + channel) * volume
            image = images[channel * count : (channel + 1) * count]
            copy_image(x, start, geometry, edges, area, image, False)
        for output in range(outputs):
            plane = task % groups * outputs + output
            for first in range(0, rows.size, _CHUNK):
                length = _U(min(_CHUNK, rows.size - first))
                begin, start = _U(first), plane * distances.size
                for p in range(length):
                    rows[begin + p] = bias[plane]
                fours = distances.size // 4 * 4
                for k in range(0, fours, 4):  # four at a time save reads and writes of rows
                    w0, w1 = weight[start + k], weight[start + k + 1]
                    w2, w3 = weight[start + k + 2], weight[start + k + 3]
                    s0, s1 = _U(distances[k] + first), _U(distances[k + 1] + first)
                    s2, s3 = _U(distances[k + 2] + first), _U(distances[k + 3] + first)
                    for p in range(length):
                        pair = w0 * images[s0 + p] + w1 * images[s1 + p]
                        pair_ = w2 * images[s2 + p] + w3 * images[s3 + p]
                        rows[begin + p] += pair + pair_
                for k in range(fours, distances.size):
                    source, factor = _U(distances[k] + first), weight[start + k]
                    for p in range(length):
                        rows[begin + p] += factor * images[source + p]
            start = (task * outputs + output) * places
            for i in range(size[0]):
                for j in range(size[1]):
                    to = _U(start + (i * size[1] + j) * size[2])
                    source = _U((i * edges[1] + j) * edges[2])
                    for p in range(_U(size[2])):
                        result[to + p] = rows[source + p]


@jit
def direct_input_loop(
    x: Any,
    weight: Any,
    bias: Any,
    channels: Any,
    geometry: Any,
    edges: Any,
    result: Any,
    all_images: Any,
    all_rows: Any,
    all_distances: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Write the gradients of the inputs of some groups; arguments as in `direct_output_loop`."""
    tasks, images, rows = (start, stop), all_images[worker], all_rows[worker]
    distances = all_distances[worker]
    space, _, size, stride, _, _ = geometry
    groups, inputs, outputs = channels
    volume, places = space[0] * space[1] * space[2], size[0] * size[1] * size[2]
    area = edges[0] * edges[1] * edges[2]
    count = area * stride[0] * stride[1] * stride[2]
    find_distances(inputs, count, geometry, edges, area, distances)
    for task in range(tasks[0], tasks[1]):
        for k in range(_U(images.size)):
            images[k] = 0
        for output in range(outputs):
            plane = task % groups * outputs + output
            _spread(x, (task * outputs + output) * places, geometry, edges, rows)
            for first in range(0, rows.size, _CHUNK):
                length = _U(min(_CHUNK, rows.size - first))
                begin, start = _U(first), plane * distances.size
                for k in range(distances.size):
                    to, factor = _U(distances[k] + first), weight[start + k]
                    for p in range(length):
                        images[to + p] += factor * rows[begin + p]
        for channel in range(inputs):
            start = (task * inputs + channel) * volume
            for k in range(_U(volume)):
                result[_U(start) + k] = bias[task % groups * inputs + channel]
            image = images[channel * count : (channel + 1) * count]
            copy_image(result, start, geometry, edges, area, image, True)


@jit
def direct_weight_loop(
    small: Any,
    large: Any,
    channels: Any,
    of_part: int,
    samples: int,
    geometry: Any,
    edges: Any,
    results: Any,
    all_images: Any,
    all_rows: Any,
    all_distances: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Write the gradients of some groups' weights, from `of_part` of the samples each.

    A task is the number of a part of the samples, and of a group; other arguments are as in
    `direct_output_loop`.
    """
    tasks, images, rows = (start, stop), all_images[worker], all_rows[worker]
    distances = all_distances[worker]
    space, _, size, stride, _, _ = geometry
    groups, inputs, outputs = channels
    volume, places = space[0] * space[1] * space[2], size[0] * size[1] * size[2]
    area = edges[0] * edges[1] * edges[2]
    count = area * stride[0] * stride[1] * stride[2]
    elements, zero = distances.size, small.dtype.type(0)
    fours = elements // 4 * 4
    find_distances(inputs, count, geometry, edges, area, distances)
    for number in range(tasks[0], tasks[1]):
        part, group = number // groups, number % groups
        result = results[part]
        for k in range(group * outputs * elements, (group + 1) * outputs * elements):
            result[k] = 0
        for sample in range(part * of_part, min(samples, (part + 1) * of_part)):
            task = sample * groups + group
            for channel in range(inputs):
                start = (task * inputs + channel) * volume
                image = images[channel * count : (channel + 1) * count]
                copy_image(large, start, geometry, edges, area, image, False)
            for output in range(outputs):
                _spread(small, (task * outputs + output) * places, geometry, edges, rows)
                at = (group * outputs + output) * elements
                for first in range(0, rows.size, _CHUNK):
                    length, begin = _U(min(_CHUNK, rows.size - first)), _U(first)
                    for k in range(0, fours, 4):
                        s0, s1 = _U(distances[k] + first), _U(distances[k + 1] + first)
                        s2, s3 = _U(distances[k + 2] + first), _U(distances[k + 3] + first)
                        t0, t1, t2, t3 = zero, zero, zero, zero
                        for p in range(length):
                            value = rows[begin + p]
                            t0 += value * images[s0 + p]
                            t1 += value * images[s1 + p]
                            t2 += value * images[s2 + p]
                            t3 += value * images[s3 + p]
                        result[at + k] += t0
                        result[at + k + 1] += t1
                        result[at + k + 2] += t2
                        result[at + k + 3] += t3
                    for k in range(fours, elements):
                        source, total = _U(distances[k] + first), zero
                        for p in range(length):
                            total += rows[begin + p] * images[source + p]
                        result[at + k] += total


def usable(small: Array, large: Array, kernel: tuple[int, ...], steps: Steps) -> bool:
    """Whether this computes a convolution of one to three dimensions, in less time than others."""
    groups = steps.groups
    channels, outputs = large.shape[1] // groups, small.shape[1] // groups
    if not (
        groups > 1
        and 1 <= len(kernel) <= 3
        and small.dtype == large.dtype
        and 1 <= channels <= MAX_CHANNELS
        and 1 <= outputs <= MAX_CHANNELS
        and small.size > 0
        and large.size > 0
        and uses_numba(small, large)
    ):
        return False
    count: int = channels
    for each in zip(small.shape[2:], kernel, steps.stride, steps.dilation, strict=True):
        places, size, stride, dilation = each
        count *= (places + (size - 1) * dilation // stride) * stride
    return bool(count <= MAX_IMAGES)


def convolve(x: Array, weight: Array, out: Array, bias: Array | None, steps: Steps) -> None:
    """Write a convolution of C-contiguous arrays into `out`; see `_conv.convolve`."""
    geometry = three_dimensional(x, weight, out, steps)
    channels = steps.groups, weight.shape[1], out.shape[1] // steps.groups
    _tasks(direct_output_loop, x, weight, out, bias, channels, geometry)


def convolve_transposed(
    x: Array, weight: Array, out: Array, bias: Array | None, steps: Steps
) -> None:
    """Write a transposed convolution of C-contiguous arrays into `out`; see
    `_conv.convolve_transposed`.
    """
    geometry = three_dimensional(out, weight, x, steps)
    channels = steps.groups, weight.shape[1], x.shape[1] // steps.groups
    _tasks(direct_input_loop, x, weight, out, bias, channels, geometry)


def _tasks(
    loop: Any,
    x: Array,
    weight: Array,
    out: Array,
    bias: Array | None,
    channels: tuple[int, int, int],
    geometry: Any,
) -> None:
    add = np.zeros(out.shape[1], out.dtype) if bias is None else np.array(bias)
    count = len(x) * channels[0]
    workers = num_workers(count)
    body = partial(
        loop,
        x.reshape(-1),
        weight.reshape(-1),
        add,
        channels,
        geometry,
        image_edges(geometry),
        out.reshape(-1),
        *_scratch(channels, geometry, x.dtype, workers),
    )
    cost = (x.size + out.size) // count * weight[0].size // 4
    parallel_for(body, count, cost, merge=True, workers=workers)


def convolve_weight(small: Array, large: Array, out: Array, steps: Steps) -> None:
    """Write the gradient of a weight from C-contiguous arrays into `out`; see
    `_conv.convolve_weight`.
    """
    loop: Any = direct_weight_loop
    geometry, groups = three_dimensional(large, out, small, steps), steps.groups
    channels = groups, out.shape[1], len(out) // groups
    length = -(-len(small) // PARTS)
    parts = -(-len(small) // length)
    sums = memory.empty((parts, out.size), out.dtype)
    count = parts * groups
    workers = num_workers(count)
    body = partial(
        loop,
        small.reshape(-1),
        large.reshape(-1),
        channels,
        length,
        len(small),
        geometry,
        image_edges(geometry),
        sums,
        *_scratch(channels, geometry, out.dtype, workers),
    )
    cost = small.size // count * out[0].size // 4
    parallel_for(body, count, cost, merge=True, workers=workers)
    sum_rows(sums, out.reshape(-1))


def image_edges(geometry: Any) -> tuple[int, ...]:
    """Return the sizes of a padded image."""
    _, kernel, size, stride, _, dilation = geometry
    return tuple(
        [
            places + (count - 1) * step // distance
            for places, count, step, distance in zip(size, kernel, dilation, stride, strict=True)
        ]
    )


def _scratch(channels: Any, geometry: Any, dtype: np.dtype[Any], workers: int) -> tuple[Array, ...]:
    """Return what each thread needs: images, rows and distances."""
    _, kernel, size, stride, _, _ = geometry
    edges = image_edges(geometry)
    rows = ((size[0] - 1) * edges[1] + size[1] - 1) * edges[2] + size[2]
    images = channels[1] * int(np.prod(edges)) * int(np.prod(stride))
    return (
        memory.empty((workers, images), dtype),
        memory.empty((workers, rows), dtype),
        np.empty((workers, channels[1] * int(np.prod(kernel))), np.int64),
    )
