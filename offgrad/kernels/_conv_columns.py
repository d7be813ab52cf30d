"""Convolutions by products of matrices: the patches at some places, as columns, times the weight.

The patches of a block of places stay in a core's cache between the copy and the product. A block
may reach over several samples, so that small images give large products, too.

Shapes alone decide the blocks and the order of sums.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from offgrad import memory
from offgrad.kernels import _gemm
from offgrad.kernels._arrays import Array
from offgrad.kernels._blas import limited_in_each_thread, single_threaded_blas
from offgrad.kernels._conv_columns_loops import (
    columns_input_loop,
    columns_output_loop,
    columns_weight_loop,
)
from offgrad.kernels._conv_numpy import Steps, three_dimensional
from offgrad.kernels._jit import uses_numba
from offgrad.kernels._openblas import library
from offgrad.kernels._parallel import BLOCK, Body, parallel_for

MIN_COST = 1 << 14
"""Multiplications of a convolution for which the loops are worth their calls."""

MAX_COLUMNS = 1 << 17
"""Elements of the patches in a block: they stay in a core's cache."""

MIN_WIDTH, MAX_WIDTH = 128, 1024
"""Places of a block, at least and at most: BLAS copies the weight for each block."""

MIN_TASKS = 8
"""Parts, for the threads of an ordinary machine."""

MAX_PARTIAL = 1 << 22
"""Elements of the gradients of a weight that are added up in the end."""

Planes = tuple[int, int, int]


def usable(small: Array, large: Array, kernel: tuple[int, ...]) -> bool:
    """Whether this computes a convolution of one to three dimensions."""
    return (
        1 <= len(kernel) <= 3
        and small.dtype == large.dtype
        and small.size * large.shape[1] * prod(kernel) >= MIN_COST
        and large.size > 0
        and uses_numba(small, large)
        and library() is not None
    )


def convolve(x: Array, weight: Array, out: Array, bias: Array | None, steps: Steps) -> None:
    """Write a convolution of C-contiguous arrays into `out`; see `_conv.convolve`."""
    _gemm.register()
    loop: Any = columns_output_loop
    groups, number = steps.groups, x.dtype.type
    add = np.zeros(out.shape[1], number) if bias is None else np.ascontiguousarray(bias)
    inner, count = prod(weight.shape[1:]), out.shape[1] // groups
    total = len(x) * prod(out.shape[2:])
    width = _width(inner, total * groups)
    blocks = -(-total // width)
    geometry = three_dimensional(x, weight, out, steps)

    def run(start: int, stop: int) -> None:
        segments = np.empty((width, 5), np.int64)
        columns, products = memory.empty(inner * width, number), memory.empty(count * width, number)
        for task in range(start, stop):
            group, block = divmod(task, blocks)
            loop(
                _blas(x),
                x.reshape(-1),
                _planes(x, group, groups),
                weight.reshape(-1),
                _planes(out, group, groups),
                add,
                geometry,
                (block * width, min(total, (block + 1) * width)),
                out.reshape(-1),
                segments,
                columns,
                products,
            )

    _run(run, blocks * groups, inner * count * width)


def convolve_transposed(
    x: Array, weight: Array, out: Array, bias: Array | None, steps: Steps
) -> None:
    """Write a transposed convolution of C-contiguous arrays into `out`; see
    `_conv.convolve_transposed`.
    """
    _gemm.register()
    loop: Any = columns_input_loop
    groups, number = steps.groups, x.dtype.type
    area, per_plane, outputs = prod(weight.shape[2:]), prod(x.shape[2:]), weight.shape[1]
    # Samples are independent, and so are outputs: each task has some of either.
    samples = max(1, min(MIN_WIDTH // max(1, per_plane), len(x) // MIN_TASKS))
    parts = -(-len(x) // samples)
    of_parts = min(outputs, max(1, -(-MIN_TASKS // (parts * groups))))
    step = -(-outputs // of_parts)
    of_parts = -(-outputs // step)
    width = min(MAX_WIDTH, samples * per_plane)
    at_once = max(1, min(step, 2 * MAX_COLUMNS // (area * width)))
    geometry = three_dimensional(out, weight, x, steps)
    inputs = x.shape[1] // groups

    def run(start: int, stop: int) -> None:
        segments = np.empty((width, 5), np.int64)
        rows, columns = (
            memory.empty(inputs * width, number),
            memory.empty(at_once * area * width, number),
        )
        for task in range(start, stop):
            rest, part = divmod(task, of_parts)
            group, block = divmod(rest, parts)
            first = part * step
            count = min(step, outputs - first)
            own = slice(block * samples, (block + 1) * samples)
            begin = group * outputs + first
            target = out[own, begin : begin + count]
            target[...] = (
                0
                if bias is None
                else bias[begin : begin + count].reshape(-1, *(1,) * (out.ndim - 2))
            )
            last = min(len(x), (block + 1) * samples) * per_plane
            for place in range(block * samples * per_plane, last, width):
                loop(
                    _blas(x),
                    x.reshape(-1),
                    _planes(x, group, groups),
                    weight.reshape(-1),
                    outputs * area,
                    (group * inputs * outputs + first) * area,
                    (begin, count, out.shape[1]),
                    at_once,
                    geometry,
                    (place, min(last, place + width)),
                    out.reshape(-1),
                    segments,
                    rows,
                    columns,
                )

    cost = inputs * step * area * samples * per_plane
    _run(run, groups * parts * of_parts, cost)


def convolve_weight(small: Array, large: Array, out: Array, steps: Steps) -> None:
    """Write the gradient of a weight from C-contiguous arrays into `out`; see
    `_conv.convolve_weight`.
    """
    _gemm.register()
    loop: Any = columns_weight_loop
    groups, number = steps.groups, large.dtype.type
    area, channels = prod(out.shape[2:]), out.shape[1]
    total, outputs = len(small) * prod(small.shape[2:]), out.shape[0] // groups
    # Channels are independent; the sums over ranges of places are added up in the end.
    wanted = -(-MIN_TASKS // groups)
    ranges = max(1, min(wanted, MAX_PARTIAL // out.size, total // MIN_WIDTH))
    length = -(-total // ranges)
    ranges = -(-total // length)
    step = -(-channels // min(channels, -(-wanted // ranges)))
    parts = -(-channels // step)
    width = min(_width(step * area, total), length)
    partial = memory.empty((ranges, out.size), number)
    geometry = three_dimensional(large, out, small, steps)

    def run(start: int, stop: int) -> None:
        segments = np.empty((width, 5), np.int64)
        rows, columns = (
            memory.empty(outputs * width, number),
            memory.empty(step * area * width, number),
        )
        for task in range(start, stop):
            rest, number_of_range = divmod(task, ranges)
            group, part = divmod(rest, parts)
            first = part * step
            loop(
                _blas(small),
                small.reshape(-1),
                _planes(small, group, groups),
                large.reshape(-1),
                (group * channels + first, min(step, channels - first), large.shape[1]),
                geometry,
                (number_of_range * length, min(total, (number_of_range + 1) * length)),
                width,
                partial[number_of_range],
                channels * area,
                (group * outputs * channels + first) * area,
                segments,
                rows,
                columns,
            )

    _run(run, groups * parts * ranges, outputs * step * area * length)
    np.sum(partial, axis=0, out=out.reshape(-1))


def _width(inner: int, total: int) -> int:
    """Return the number of places of a block for patches of `inner` elements."""
    width = max(MIN_WIDTH, min(MAX_WIDTH, MAX_COLUMNS // inner))
    return max(1, min(width, -(-total // MIN_TASKS)))


def _planes(x: Array, group: int, groups: int) -> Planes:
    count = x.shape[1] // groups
    return group * count, count, x.shape[1]


def _blas(array: Array) -> tuple[Any, Any]:
    found = library()
    assert found is not None
    return np.uintp(found.gemm(array.dtype)), found.integer(0)


def _run(body: Body, count: int, cost: int) -> None:
    with single_threaded_blas():
        parallel_for(limited_in_each_thread(body), count, min(BLOCK, cost // 16))
