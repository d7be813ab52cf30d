"""Convolutions by products of matrices: the patches at some places, as columns, times the weight.

The patches of a block of places stay in a core's cache between the copy and the product. A block
may reach over several samples, so that small images give large products, too.

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
from offgrad.kernels._conv_columns_loops import (
    columns_input_loop,
    columns_output_loop,
    columns_weight_loop,
)
from offgrad.kernels._conv_numpy import Steps, three_dimensional
from offgrad.kernels._jit import uses_numba
from offgrad.kernels._openblas import library
from offgrad.kernels._parallel import Body, in_ranges, num_workers
from offgrad.kernels._reduce import sum_rows

MIN_COST = 1 << 14
"""Multiplications of a convolution for which the loops are worth their calls."""

MAX_COLUMNS = 1 << 17
"""Elements of the patches in a block: they stay in a core's cache."""

MIN_WIDTH, MAX_WIDTH = 128, 1024
"""Places of a block, at least and at most: BLAS copies the weight for each block."""

MIN_TASKS = 16
"""Parts, for the threads of an ordinary machine."""

MAX_PARTIAL = 1 << 22
"""Elements of the gradients of a weight that are added up in the end."""


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
    inner, count = prod(weight.shape[1:]), out.shape[1] // groups
    total = len(x) * prod(out.shape[2:])
    width = _width(inner, total * groups)
    tasks = -(-total // width) * groups
    workers = num_workers(tasks)
    body = partial(
        loop,
        _blas(x),
        x.reshape(-1),
        weight.reshape(-1),
        np.zeros(out.shape[1], number) if bias is None else np.array(bias),
        (groups, x.shape[1], out.shape[1]),
        three_dimensional(x, weight, out, steps),
        total,
        width,
        out.reshape(-1),
        np.empty((workers, width, 5), np.int64),
        memory.empty((workers, inner * width), number),
        memory.empty((workers, count * width), number),
    )
    _run(body, tasks, workers)


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
    width = min(MAX_WIDTH, samples * per_plane)
    at_once = max(1, min(step, 2 * MAX_COLUMNS // (area * width)))
    inputs, tasks = x.shape[1] // groups, groups * parts * -(-outputs // step)
    workers = num_workers(tasks)
    body = partial(
        loop,
        _blas(x),
        x.reshape(-1),
        weight.reshape(-1),
        np.zeros(out.shape[1], number) if bias is None else np.array(bias),
        (groups, outputs, x.shape[1]),
        (samples, step, width, at_once, len(x)),
        three_dimensional(out, weight, x, steps),
        out.reshape(-1),
        np.empty((workers, width, 5), np.int64),
        memory.empty((workers, inputs * width), number),
        memory.empty((workers, at_once * area * width), number),
    )
    _run(body, tasks, workers)


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
    width = min(_width(step * area, total), length)
    sums = memory.empty((ranges, out.size), number)
    tasks = groups * ranges * -(-channels // step)
    workers = num_workers(tasks)
    body = partial(
        loop,
        _blas(small),
        small.reshape(-1),
        large.reshape(-1),
        (groups, channels, small.shape[1]),
        (step, length, width, total),
        three_dimensional(large, out, small, steps),
        sums,
        np.empty((workers, width, 5), np.int64),
        memory.empty((workers, outputs * width), number),
        memory.empty((workers, step * area * width), number),
    )
    _run(body, tasks, workers)
    sum_rows(sums, out.reshape(-1))


def _width(inner: int, total: int) -> int:
    """Return the number of places of a block for patches of `inner` elements."""
    width = max(MIN_WIDTH, min(MAX_WIDTH, MAX_COLUMNS // inner))
    return max(1, min(width, -(-total // MIN_TASKS)))


def _blas(array: Array) -> tuple[Any, Any]:
    found = library()
    assert found is not None
    return np.uintp(found.gemm(array.dtype)), found.integer(0)


def _run(body: Body, tasks: int, workers: int) -> None:
    with single_threaded_blas():
        in_ranges(body, range(tasks + 1), workers)
