"""Convolutions of many channels, whose patches are not copied.

The images of a few samples are copied with their padding, as in `_conv_direct`: with a stride into
as many images, one for each remainder. Then the inputs that an element of the kernel meets at all
outputs are a matrix of channels by places within the copy, gaps between rows included. For each
element, the product with its weights is added to the outputs; for the gradient of the input, the
product is added to the copy.

Shapes alone decide the blocks and the order of sums.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from offgrad import memory
from offgrad.kernels import _gemm
from offgrad.kernels._arrays import Array
from offgrad.kernels._blas import single_threaded_blas
from offgrad.kernels._conv_direct import copy_image, find_distances, image_edges
from offgrad.kernels._conv_numpy import Steps, three_dimensional
from offgrad.kernels._copy import copy_into
from offgrad.kernels._gemm import strided_gemm
from offgrad.kernels._jit import inlined, jit, uses_numba
from offgrad.kernels._openblas import library
from offgrad.kernels._parallel import in_ranges, num_workers

MIN_CHANNELS = 16
"""Channels of a group, and outputs of one, at least: sums over fewer are short products."""

MAX_GAPS = 1.35
"""Places, gaps included, for each output, at most: small images have wide gaps."""

MAX_IMAGES = 1 << 21
"""Elements of the copied images of a sample, at most."""

IMAGES = 1 << 18
"""Elements of the copied images of a block of samples, if it has more than one."""

MIN_TASKS = 16
"""Blocks, for the threads of an ordinary machine."""

SIDE, INNER = 64, 128
"""Rows and columns of a tile of a product, and its sums' length at a time: OpenBLAS has kernels of
its own for products of less than a million multiplications."""

_U = np.uintp


@inlined
def _shifted_output(
    blas: Any,
    x: Any,
    weight: Any,
    bias: Any,
    channels: Any,
    samples: Any,
    group: int,
    geometry: Any,
    edges: Any,
    pitches: Any,
    result: Any,
    images: Any,
    rows: Any,
    distances: Any,
) -> None:
    """Write the outputs of a group for some samples.

    Args:
        weight: [element of the kernel, output, channel].
        channels: the number of groups, and the inputs and outputs of one.
        samples: the first, and the end.
        edges: the sizes of an image.
        pitches: elements from one channel to the next, of images and of rows, and from one output
            to the next, of the weight.
    """
    space, _, size, _, _, _ = geometry
    groups, inputs, outputs = channels
    volume, places = space[0] * space[1] * space[2], size[0] * size[1] * size[2]
    area, item, number = edges[0] * edges[1] * edges[2], weight.itemsize, weight.dtype.type
    apart = area * (samples[1] - samples[0])
    find_distances(1, 0, geometry, edges, apart, distances)
    for channel in range(inputs):
        for sample in range(samples[0], samples[1]):
            start = ((sample * groups + group) * inputs + channel) * volume
            to = channel * pitches[0] + (sample - samples[0]) * area
            copy_image(x, start, geometry, edges, apart, images[to:], False)
    last = ((size[0] - 1) * edges[1] + size[1] - 1) * edges[2] + size[2]
    width = apart - area + last
    for j in range(0, width, SIDE):
        for i in range(0, outputs, SIDE):
            beta = number(0)
            for k in range(distances.size):
                for start in range(0, inputs, INNER):
                    of_weight = ((k * groups + group) * outputs + i) * pitches[2] + start
                    of_image = start * pitches[0] + distances[k] + j
                    strided_gemm(
                        blas,
                        min(SIDE, outputs - i),
                        min(SIDE, width - j),
                        min(INNER, inputs - start),
                        weight.ctypes.data + of_weight * item,
                        pitches[2],
                        0,
                        images.ctypes.data + of_image * item,
                        pitches[0],
                        0,
                        beta,
                        rows.ctypes.data + (i * pitches[1] + j) * item,
                        pitches[1],
                    )
                    beta = number(1)
    for output in range(outputs):
        plane, add = group * outputs + output, bias[group * outputs + output]
        for sample in range(samples[0], samples[1]):
            at = output * pitches[1] + (sample - samples[0]) * area
            to = (sample * groups * outputs + plane) * places
            for i in range(size[0] * size[1]):
                source = _U(at + (i // size[1] * edges[1] + i % size[1]) * edges[2])
                target = _U(to + i * size[2])
                for p in range(_U(size[2])):
                    result[target + p] = rows[source + p] + add


@inlined
def _shifted_input(
    blas: Any,
    x: Any,
    weight: Any,
    bias: Any,
    channels: Any,
    samples: Any,
    group: int,
    geometry: Any,
    edges: Any,
    pitches: Any,
    result: Any,
    images: Any,
    rows: Any,
    distances: Any,
) -> None:
    """Write the gradients of a group's inputs for some samples; see `_shifted_output`."""
    space, _, size, _, _, _ = geometry
    groups, inputs, outputs = channels
    volume, places = space[0] * space[1] * space[2], size[0] * size[1] * size[2]
    area, item, number = edges[0] * edges[1] * edges[2], weight.itemsize, weight.dtype.type
    apart = area * (samples[1] - samples[0])
    find_distances(1, 0, geometry, edges, apart, distances)
    for k in range(_U(images.size)):
        images[k] = 0
    for k in range(_U(rows.size)):
        rows[k] = 0
    for output in range(outputs):
        plane = group * outputs + output
        for sample in range(samples[0], samples[1]):
            at = output * pitches[1] + (sample - samples[0]) * area
            start = (sample * groups * outputs + plane) * places
            for i in range(size[0] * size[1]):
                to = _U(at + (i // size[1] * edges[1] + i % size[1]) * edges[2])
                source = _U(start + i * size[2])
                for p in range(_U(size[2])):
                    rows[to + p] = x[source + p]
    last = ((size[0] - 1) * edges[1] + size[1] - 1) * edges[2] + size[2]
    width = apart - area + last
    for j in range(0, width, SIDE):
        for i in range(0, inputs, SIDE):
            for k in range(distances.size):
                for start in range(0, outputs, INNER):
                    of_weight = ((k * groups + group) * outputs + start) * pitches[2] + i
                    strided_gemm(
                        blas,
                        min(SIDE, inputs - i),
                        min(SIDE, width - j),
                        min(INNER, outputs - start),
                        weight.ctypes.data + of_weight * item,
                        pitches[2],
                        1,
                        rows.ctypes.data + (start * pitches[1] + j) * item,
                        pitches[1],
                        0,
                        number(1),
                        images.ctypes.data + (i * pitches[0] + distances[k] + j) * item,
                        pitches[0],
                    )
    for channel in range(inputs):
        plane = group * inputs + channel
        for sample in range(samples[0], samples[1]):
            start = (sample * groups * inputs + plane) * volume
            for k in range(_U(volume)):
                result[_U(start) + k] = bias[plane]
            at = channel * pitches[0] + (sample - samples[0]) * area
            copy_image(result, start, geometry, edges, apart, images[at:], True)


@jit
def shifted_output_loop(
    blas: Any,
    x: Any,
    weight: Any,
    bias: Any,
    channels: Any,
    count: int,
    step: int,
    geometry: Any,
    edges: Any,
    pitches: Any,
    result: Any,
    all_images: Any,
    all_rows: Any,
    all_distances: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Write outputs; a task is the number of a group, and of a block of `step` samples."""
    blocks = (count + step - 1) // step
    for task in range(start, stop):
        group, block = task // blocks, task % blocks
        _shifted_output(
            blas,
            x,
            weight,
            bias,
            channels,
            (block * step, min(count, (block + 1) * step)),
            group,
            geometry,
            edges,
            pitches,
            result,
            all_images[worker],
            all_rows[worker],
            all_distances[worker],
        )


@jit
def shifted_input_loop(
    blas: Any,
    x: Any,
    weight: Any,
    bias: Any,
    channels: Any,
    count: int,
    step: int,
    geometry: Any,
    edges: Any,
    pitches: Any,
    result: Any,
    all_images: Any,
    all_rows: Any,
    all_distances: Any,
    start: int,
    stop: int,
    worker: int,
) -> None:
    """Write the gradients of inputs; see `shifted_output_loop`."""
    blocks = (count + step - 1) // step
    for task in range(start, stop):
        group, block = task // blocks, task % blocks
        _shifted_input(
            blas,
            x,
            weight,
            bias,
            channels,
            (block * step, min(count, (block + 1) * step)),
            group,
            geometry,
            edges,
            pitches,
            result,
            all_images[worker],
            all_rows[worker],
            all_distances[worker],
        )


def usable(small: Array, large: Array, kernel: tuple[int, ...], steps: Steps) -> bool:
    """Whether this computes a convolution of one to three dimensions, in less time than others."""
    groups = steps.groups
    channels, outputs = large.shape[1] // groups, small.shape[1] // groups
    if not (
        1 <= len(kernel) <= 3
        and prod(kernel) > 1
        and small.dtype == large.dtype
        and min(channels, outputs) >= MIN_CHANNELS
        and small.size > 0
        and large.size > 0
        and uses_numba(small, large)
        and library() is not None
    ):
        return False
    with_gaps = 1
    for each in zip(small.shape[2:], kernel, steps.stride, steps.dilation, strict=True):
        places, size, stride, dilation = each
        with_gaps *= places + (size - 1) * dilation // stride
    return (
        with_gaps <= MAX_GAPS * prod(small.shape[2:])
        and with_gaps * prod(steps.stride) * channels <= MAX_IMAGES
        and with_gaps * outputs <= MAX_IMAGES
    )


def convolve(x: Array, weight: Array, out: Array, bias: Array | None, steps: Steps) -> None:
    """Write a convolution of C-contiguous arrays into `out`; see `_conv.convolve`."""
    geometry = three_dimensional(x, weight, out, steps)
    channels = steps.groups, weight.shape[1], out.shape[1] // steps.groups
    _blocks(shifted_output_loop, x, weight, out, bias, channels, geometry)


def convolve_transposed(
    x: Array, weight: Array, out: Array, bias: Array | None, steps: Steps
) -> None:
    """Write a transposed convolution of C-contiguous arrays into `out`; see
    `_conv.convolve_transposed`.
    """
    geometry = three_dimensional(out, weight, x, steps)
    channels = steps.groups, weight.shape[1], x.shape[1] // steps.groups
    _blocks(shifted_input_loop, x, weight, out, bias, channels, geometry)


def _blocks(
    loop: Any,
    x: Array,
    weight: Array,
    out: Array,
    bias: Array | None,
    channels: tuple[int, int, int],
    geometry: Any,
) -> None:
    _gemm.register()
    add = np.zeros(out.shape[1], out.dtype) if bias is None else np.array(bias)
    groups, inputs, outputs = channels
    edges, number = image_edges(geometry), x.dtype.type
    images, rows = prod(edges) * prod(geometry[3]), prod(edges)
    largest = max(inputs * images, outputs * rows)
    samples = max(1, min(IMAGES // largest, len(x) * groups // MIN_TASKS))
    blocks = -(-len(x) // samples)
    if blocks > MIN_TASKS:  # as many for each thread
        samples = max(1, len(x) // (-(-blocks // MIN_TASKS) * MIN_TASKS))
        blocks = -(-len(x) // samples)
    pitches = _pitch(samples * images), _pitch(samples * rows), _pitch(inputs)
    elements = prod(weight.shape[2:])
    turned = memory.empty((elements, weight.shape[0], pitches[2]), number)
    copy_into(turned[..., :inputs], np.moveaxis(weight.reshape(*weight.shape[:2], elements), 2, 0))
    found = library()
    assert found is not None
    blas = np.uintp(found.gemm(x.dtype)), found.integer(0)

    workers = num_workers(groups * blocks)
    body = partial(
        loop,
        blas,
        x.reshape(-1),
        turned.reshape(-1),
        add,
        channels,
        len(x),
        samples,
        geometry,
        edges,
        pitches,
        out.reshape(-1),
        memory.empty((workers, inputs * pitches[0]), number),
        memory.empty((workers, outputs * pitches[1]), number),
        np.empty((workers, elements), np.int64),
    )
    with single_threaded_blas():
        in_ranges(body, range(groups * blocks + 1), workers)


def _pitch(size: int) -> int:
    """Return an odd number of cache lines: rows a power of two apart would displace each other."""
    return (size + 31) // 32 * 32 + 16
