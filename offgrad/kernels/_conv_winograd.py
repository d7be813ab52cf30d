"""Convolutions with kernels of 3x3 by Winograd's F(4x4, 3x3), with a quarter of the products.

Tiles of 4x4 outputs see 6x6 inputs. Both the tile and the kernel, as polynomials, are evaluated at
6x6 points; there a convolution is a product at each point, which for all tiles and channels is a
product of matrices, 36 in all; the outputs are interpolated from the products. The gradient of the
input is a convolution with the kernels turned around. The gradient of the weight takes the same
steps backwards, from the transforms of tiles of inputs and of gradients.

The points are 0, +-3/4, +-3/2 and infinity: powers of the points, and so the errors, are a third
to a half of those of the usual 0, +-1, +-2. Relative to the root mean square of the results, the
error of results and of the inputs' gradient is 5e-7 (16 channels) to 2e-6 (512), and in the worst
element 3e-5: 3 to 8 times that of a sum of products in float32. The weight's gradient, which sums
over tiles instead of single outputs, is as exact as a sum of products, or more so.

A group of blocks of 64 tiles is transformed, then multiplied: by ranges of outputs, on all threads.
Shapes alone decide groups, ranges and the order of sums.

Sources: A. Lavin and S. Gray, "Fast algorithms for convolutional neural networks",
arXiv:1509.09308; on the points, B. Barabasz, A. Anderson, K. M. Soodhalter and D. Gregg, "Error
analysis and improving the accuracy of Winograd convolution for deep neural networks",
arXiv:1803.10986.
"""

from __future__ import annotations

import functools
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from offgrad import memory
from offgrad.kernels import _array_tables, _product_tiles
from offgrad.kernels._arrays import Array
from offgrad.kernels._conv_numpy import Steps
from offgrad.kernels._conv_winograd_loops import (
    GAP,
    PITCH,
    winograd_input_loop,
    winograd_output_loop,
    winograd_weight_loop,
)
from offgrad.kernels._conv_winograd_passes import PLANE, SIDE, SQUARE, TILES
from offgrad.kernels._jit import uses_numba
from offgrad.kernels._parallel import in_ranges, num_workers
from offgrad.kernels._product_tiles import VECTORS
from offgrad.kernels._reduce import sum_rows

MIN_CHANNELS = 16
"""Of inputs and outputs: with fewer, the transforms take longer than the products."""

MIN_TILES, MIN_TILES_OF_WEIGHT = 24, 48
"""Tiles, at least: with fewer, the transform of the weight takes longer than the products, and that
of its gradient even more so.
"""

MAX_TRANSFORMS = 1 << 21
"""Elements of the transforms of a group of blocks, one block at least."""

OUTPUTS = 64
"""Outputs of a range: their transforms and products stay in a core's cache."""

MIN_OUTPUTS = 16
"""Outputs of a range if there are too few ranges for the threads: fewer are slow to multiply."""

MIN_TASKS = 16
"""Parts of a group, for the threads of an ordinary machine."""

_TASKS_OF_THREAD = 6
"""Parts of a group's transforms for each thread, so that all end at about the same time."""


class _Grid(NamedTuple):
    """The tiles of a convolution.

    Attributes:
        tiles: number of tiles, and of those down and across an image.
        channels, outputs: of the images.
        space: height and width of inputs.
        places: height and width of outputs.
        padding: rows and columns before the inputs.
    """

    tiles: tuple[int, int, int]
    channels: int
    outputs: int
    space: tuple[int, int]
    places: tuple[int, int]
    padding: tuple[int, int]

    @property
    def blocks(self) -> int:
        """The number of blocks of tiles."""
        return -(-self.tiles[0] // TILES)

    def groups(self) -> list[range]:
        """Return the blocks of each group."""
        most = max(1, MAX_TRANSFORMS // (PLANE * self.channels))
        step = -(-self.blocks // -(-self.blocks // most))
        return [range(at, min(at + step, self.blocks)) for at in range(0, self.blocks, step)]


def _grid(x: Array, out: Array, padding: tuple[int, ...]) -> _Grid:
    down, across = (-(-size // SIDE) for size in out.shape[2:])
    height, width = x.shape[2:]
    return _Grid(
        (len(x) * down * across, down, across),
        x.shape[1],
        out.shape[1],
        (height, width),
        (out.shape[2], out.shape[3]),
        (padding[0], padding[1]),
    )


def usable(
    small: Array, large: Array, kernel: tuple[int, ...], steps: Steps, of_weight: bool = False
) -> bool:
    """Whether this computes a convolution, and in less time than other ways.

    Args:
        small: its output, or the gradient of it.
        large: its input, or the gradient of it.
        kernel: the sizes of its kernel.
        steps: how the kernel passes over `large`.
        of_weight: whether the gradient of the weight is asked for.
    """
    least = MIN_TILES_OF_WEIGHT if of_weight else MIN_TILES
    return (
        kernel == (3, 3)
        and steps.stride == steps.dilation == (1, 1)
        and steps.groups == 1
        and small.dtype == large.dtype == np.float32
        and min(small.shape[1], large.shape[1]) >= MIN_CHANNELS
        and len(small) * prod(-(-size // SIDE) for size in small.shape[2:]) >= least
        and uses_numba(small)
    )


def convolve(x: Array, weight: Array, out: Array, bias: Array | None, steps: Steps) -> None:
    """Write a convolution of C-contiguous arrays into `out`; see `_conv.convolve`."""
    channels = x.shape[1]
    _forward(_grid(x, out, steps.padding), x, weight, (9 * channels, 9, 1, 0), out, bias)


def convolve_transposed(
    x: Array, weight: Array, out: Array, bias: Array | None, steps: Steps
) -> None:
    """Write a transposed convolution of C-contiguous arrays into `out`; see
    `_conv.convolve_transposed`.
    """
    padding = tuple(2 - each for each in steps.padding)
    _forward(_grid(x, out, padding), x, weight, (9, 9 * out.shape[1], -1, 8), out, bias)


def convolve_weight(small: Array, large: Array, out: Array, steps: Steps) -> None:
    """Write the gradient of a weight from C-contiguous arrays into `out`; see
    `_conv.convolve_weight`.
    """
    _register()
    loop: Any = winograd_weight_loop
    grid, number = _grid(large, small, steps.padding), large.dtype.type
    tile = most, lanes = _tile(large)
    zeros, lines = np.zeros(VECTORS * lanes, number), -(-grid.channels // most) * most
    groups = grid.groups()
    threads = num_workers()
    tasks = [_tasks(grid, group, threads, are_summed=True) for group in groups]
    workers = num_workers(max(map(len, tasks)))
    totals = np.zeros((max(int(each[-1, 4]) for each in tasks) + 1, out.size), number)
    rows = min(OUTPUTS, grid.outputs)
    line = -(-rows // lanes) * lanes
    scratch = (
        *_planes(workers, number),
        memory.empty((workers, rows * PITCH), number),
        memory.empty((workers, 2 * lanes * line), number),
        memory.empty((workers, SQUARE * lines * line), number),
    )
    for group, own in zip(groups, tasks, strict=True):
        body = partial(
            loop,
            tile,
            _transforms(grid, large, group),
            small.reshape(-1),
            own,
            grid.outputs,
            grid.channels,
            grid.places,
            grid.tiles,
            group.start,
            totals,
            *scratch,
            zeros,
        )
        in_ranges(body, range(len(own) + 1), workers)
        del body
    sum_rows(totals, out.reshape(-1))


def _forward(
    grid: _Grid, x: Array, weight: Array, steps: Any, out: Array, bias: Array | None
) -> None:
    _register()
    loop: Any = winograd_output_loop
    number, groups = x.dtype.type, grid.groups()
    threads = num_workers()
    tasks = [_tasks(grid, group, threads) for group in groups]
    workers = num_workers(max(map(len, tasks)))
    tile = most, lanes = _tile(x)
    zeros = np.zeros(VECTORS * lanes, number)
    add = np.zeros(grid.outputs, number) if bias is None else np.array(bias)
    rows = min(OUTPUTS, grid.outputs)
    scratch = (
        *_planes(workers, number),
        memory.empty((workers, SQUARE * rows * (grid.channels + GAP)), number),
        memory.empty((workers, -(-rows // most) * most * PITCH), number),
    )
    for group, own in zip(groups, tasks, strict=True):
        body = partial(
            loop,
            tile,
            _transforms(grid, x, group),
            weight.reshape(-1),
            steps,
            own,
            grid.outputs,
            grid.channels,
            add,
            grid.places,
            grid.tiles,
            group.start,
            out.reshape(-1),
            *scratch,
            zeros,
        )
        in_ranges(body, range(len(own) + 1), workers)
        del body


@functools.lru_cache(maxsize=1024)
def _tasks(grid: _Grid, group: range, threads: int, are_summed: bool = False) -> Array:
    """Return ranges of outputs, and with each one after another all parts of a group.

    A row has the first output, the end, the first block, the end, and the part's number. The shape
    alone fixes parts that are summed; outputs are computed by themselves.
    """
    parts = MIN_TASKS // -(-grid.outputs // OUTPUTS)
    step = max(2, len(group) // max(1, parts))
    rows = OUTPUTS
    while rows > MIN_OUTPUTS and -(-grid.outputs // rows) * -(-len(group) // step) < 2 * threads:
        rows //= 2
    if not are_summed and -(-grid.outputs // rows) * -(-len(group) // step) < threads:
        step = 1
    blocks = range(group.start, group.stop, step)
    return np.array([
        (first, min(first + rows, grid.outputs), at, min(at + blocks.step, group.stop), part)
        for first in range(0, grid.outputs, rows)
        for part, at in enumerate(blocks)
    ])  # fmt: skip


def _transforms(grid: _Grid, x: Array, group: range) -> Array:
    """Return the transforms of a group's tiles."""
    loop: Any = winograd_input_loop
    channels, number = grid.channels, x.dtype.type
    result = memory.empty(len(group) * SQUARE * (channels * TILES + GAP), number)
    tasks = _transform_tasks(channels, group, num_workers())
    workers = num_workers(len(tasks))
    body = partial(
        loop,
        _tile(x)[1],
        x.reshape(-1),
        tasks,
        channels,
        grid.space,
        grid.padding,
        grid.tiles,
        group.start,
        result,
        *_planes(workers, number),
    )
    in_ranges(body, range(len(tasks) + 1), workers)
    return result


@functools.lru_cache(maxsize=1024)
def _transform_tasks(channels: int, group: range, threads: int) -> Array:
    """Return parts of a group's transforms: the first channel, the end, and the block."""
    parts = -(-max(MIN_TASKS, _TASKS_OF_THREAD * threads) // len(group))
    step = -(-channels // (8 * parts)) * 8
    return np.array([
        (at, min(at + step, channels), block)
        for block in group
        for at in range(0, channels, step)
    ])  # fmt: skip


def _planes(workers: int, number: Any) -> tuple[Array, Array]:
    """Return each worker's three planes, and the places of a block's tiles."""
    return np.empty((workers, 3, PLANE), number), np.empty((workers, TILES, 5), np.int64)


def _register() -> None:
    _array_tables.register()
    _product_tiles.register()


def _tile(array: Array) -> tuple[int, int]:
    """Return the rows of a product that registers hold, and the elements of a vector."""
    nbytes, most = _product_tiles.vector_shape()
    return most, nbytes // array.itemsize
