"""Products of large matrices in a compiled loop, instead of BLAS.

The second matrix is copied in blocks that stay in a core's cache, as panels: some vectors wide,
row after row. The first is read where it is. Each element of the result is the sum, in order, of
sums over blocks of the depth: the bits depend on nothing else, and not on the tiles of threads.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels import _array_tables
from offgrad.kernels._array_tables import array_at
from offgrad.kernels._arrays import Array, address_of
from offgrad.kernels._jit import inlined, jit, uses_numba
from offgrad.kernels._product_tiles import (
    VECTORS,
    copy_turned,
    copy_vector,
    multiply,
    register,
    vector_shape,
)

BLOCK_DEPTH = 512
"""Rows of a block of the second matrix."""

_BLOCK_COLUMNS = 18
"""Columns of a block, in vectors: together 590 KB of 64-byte vectors. More if it is not deep."""

_GROUP_ROWS = 16
"""Rows of the first matrix that meet all panels of a block, one after another."""

_TURNED_ROWS = 64
"""Rows of the first matrix that are copied at once, if it is transposed."""

_MIN_TURNED = 6
"""Columns, in vectors, for which it pays to copy a transposed first matrix."""

MIN_ROWS = 4
"""Rows for which it pays to copy the second matrix."""

MIN_DEPTH = 2
"""Depth at least."""

MIN_COLUMNS = 6
"""Columns at least: of fewer, most of a vector would be empty."""

_MIN_NBYTES = 32
"""Bytes of a CPU's vectors; with shorter ones BLAS is as good."""


def usable(a: Array, b: Array, out: Array, bias: Array | None) -> bool:
    """Whether `tiles_body` computes ``a @ b + bias`` of matrices, and fast."""
    rows, depth = a.shape
    size = out.itemsize
    return (
        rows >= MIN_ROWS
        and depth >= MIN_DEPTH
        and uses_numba(a, b, out)
        and a.dtype == b.dtype == out.dtype
        and (bias is None or bias.dtype == out.dtype)
        and out.shape[1] >= MIN_COLUMNS
        and vector_shape()[0] >= _MIN_NBYTES
        and out.strides[1] == size
        and all(each % size == 0 <= each for each in (*a.strides, *b.strides, *out.strides))
    )


def tiles_body(
    a: Array, b: Array, out: Array, bias: Array | None, tile: tuple[int, int], workers: int
) -> Callable[..., None]:
    """Return the body of a `parallel_for` over the tiles of a batch of products.

    Args:
        a: [outer, inner, n, k] floats of any strides, as `b`.
        b: [outer, inner, k, m].
        out: [outer, inner, n, m]; each row is contiguous.
        bias: [m].
        tile: rows and columns of a tile. Those of a matrix follow one another, row by row.
        workers: threads that may compute.
    """
    register()
    _array_tables.register()
    size, number = out.itemsize, out.dtype.type
    start = np.zeros(out.shape[3], number) if bias is None else np.array(bias)
    lanes = vector_shape()[0] // size
    strides = *a.strides, *b.strides, *out.strides
    return partial(
        product_loop,
        (*a.shape[1:], out.shape[3]),
        tile,
        _elements(strides, size),
        (address_of(a), address_of(b), address_of(out)),
        start,
        *scratch.memory(workers, _room_nbytes()),
        vector_shape()[1],
        lanes,
        size,
        number(0),
    )


@functools.lru_cache(maxsize=4096)
def _elements(strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple([stride // size for stride in strides])


class _Scratch(threading.local):
    def __init__(self) -> None:
        self._memory: Array = np.empty(0, np.uint8)

    def memory(self, workers: int, nbytes: int) -> tuple[Array, int]:
        """Return memory with a room of `nbytes` for each worker, and the bytes between two rooms.

        The calling thread keeps the memory.
        """
        room = -(-nbytes // 4096) * 4096
        if self._memory.size < workers * room + 64:
            self._memory = np.empty(workers * room + 64, np.uint8)
        return self._memory, room


scratch = _Scratch()


@functools.cache
def _room_nbytes() -> int:
    """Return the bytes of a block of each matrix and a tile."""
    nbytes, rows = vector_shape()
    vectors = BLOCK_DEPTH * _BLOCK_COLUMNS + rows * VECTORS
    turned = _TURNED_ROWS * (BLOCK_DEPTH * np.dtype(np.float64).itemsize + nbytes)
    return vectors * nbytes + turned


@inlined
def panel_vectors(columns: int, lanes: int) -> int:
    """Return the vectors of the next panel of the last `columns` columns."""
    vectors = (columns + lanes - 1) // lanes
    # Two panels of 2 rather than one of 3 and a narrow one.
    return 2 if vectors == 4 or vectors == 2 else min(vectors, 3)


@inlined
def copy_panel(
    b: int,
    b_row: int,
    b_column: int,
    depth: int,
    columns: int,
    vectors: int,
    lanes: int,
    size: int,
    target: int,
    like: Any,
) -> None:
    """Copy [depth, columns] of any strides at `b` to `target`, as [depth, vectors * lanes]."""
    width = vectors * lanes
    whole = columns // lanes * lanes
    first = 0  # the first column that is not copied yet
    if b_column == 1 and whole == width:
        for k in range(depth):
            for j in range(0, width, lanes):
                copy_vector(b + (k * b_row + j) * size, target + (k * width + j) * size, like)
        first = width
    elif b_row == 1:
        turned = depth // lanes * lanes
        for j in range(0, whole, lanes):
            for k in range(0, turned, lanes):
                from_, to = b + (k + j * b_column) * size, target + (k * width + j) * size
                copy_turned(from_, b_column, to, width, like)
            for i in range(j, j + lanes):
                column = array_at(b + i * b_column * size, depth, like)
                panel = array_at(target, depth * width, like)
                for k in range(turned, depth):
                    panel[k * width + i] = column[k]
        first = whole
    for k in range(depth):
        line = array_at(target + k * width * size, width, like)
        row = array_at(b + k * b_row * size, (columns - 1) * b_column + 1, like)
        for j in range(first, columns):
            line[j] = row[j * b_column]
        for j in range(max(first, columns), width):
            line[j] = like


@inlined
def copy_tile(
    source: int, stride: int, target: int, target_stride: int, rows: int, columns: int, size: int,
    like: Any,
) -> None:  # fmt: skip
    """Copy rows of `columns` elements."""
    for i in range(rows):
        row = array_at(source + i * stride * size, columns, like)
        to = array_at(target + i * target_stride * size, columns, like)
        for j in range(columns):
            to[j] = row[j]


@inlined
def copy_panels(
    b: int, b_row: int, b_column: int, depth: int, columns: int, lanes: int, size: int,
    target: int, like: Any,
) -> None:  # fmt: skip
    """Copy [depth, columns] at `b` to `target` as panels, one after another."""
    column = 0
    if b_column == 1:  # whole rows, which the CPU foresees, not first the parts of one panel
        whole = VECTORS * lanes
        count = columns // whole
        if 0 < columns - count * whole <= lanes:  # of the last four vectors, panels have two
            count -= 1
        for k in range(depth if count > 0 else 0):
            row = b + k * b_row * size
            for panel in range(count):
                to = target + (panel * depth + k) * whole * size
                for j in range(0, whole, lanes):
                    copy_vector(row + (panel * whole + j) * size, to + j * size, like)
        if count > 0:
            column = count * whole
            target += depth * column * size
    while column < columns:
        vectors = panel_vectors(columns - column, lanes)
        width = min(vectors * lanes, columns - column)
        from_ = b + column * b_column * size
        copy_panel(from_, b_row, b_column, depth, width, vectors, lanes, size, target, like)
        target += depth * vectors * lanes * size
        column += vectors * lanes


@inlined
def multiply_panels(
    a: int, a_row: int, a_depth: int, rows: int, depth: int, panels: int, panel_depth: int,
    columns: int, used: int, lanes: int, most: int, size: int, start: int, c: int, c_stride: int,
    like: Any,
) -> None:  # fmt: skip
    """Write start + a b into `c`, whose rows and columns have room for whole tiles.

    Args:
        a, a_row, a_depth: address and strides of [rows, depth].
        panels: address of what `copy_panels` made of b.
        panel_depth, columns: the size of b, of which `depth` rows and `used` columns count.
        lanes, most, size: of a vector, a tile, and an element.
        start: address of a row of zeros, or `c`.
        c, c_stride: address and stride.
        like: any number of the arrays' dtype.
    """
    column = 0
    whole = rows // most
    left = rows - whole * most
    start_stride = c_stride if start == c else 0
    while column < used:
        vectors = panel_vectors(columns - column, lanes)
        to = c + column * size
        begin = to if start == c else start
        if whole > 0:
            multiply(
                vectors, whole, most, depth, a, a_row, a_depth, panels, begin, start_stride,
                to, c_stride, 0, like,
            )  # fmt: skip
        if left > 0:
            rest = whole * most
            multiply(
                vectors, 1, left, depth, a + rest * a_row * size, a_row, a_depth, panels,
                begin + rest * start_stride * size, start_stride, to + rest * c_stride * size,
                c_stride, 0, like,
            )  # fmt: skip
        panels += panel_depth * vectors * lanes * size
        column += vectors * lanes


@inlined
def multiply_panel(
    vectors: int, rows: int, depth: int, a: int, a_row: int, a_depth: int, panel: int,
    start: int, start_stride: int, c: int, c_stride: int, used: int, tile: int, most: int,
    lanes: int, size: int, ahead: int, like: Any,
) -> None:  # fmt: skip
    """Write start + a b into `c`, for one panel of b.

    Args:
        vectors, used: columns of the panel, in vectors, and of `c`.
        rows, depth, a, a_row, a_depth: size, address and strides of a.
        panel: address of b.
        start, start_stride: address and stride of what is added.
        c, c_stride: address and stride.
        tile: address of room for a tile, for those that are not whole.
        most, lanes, size: of a tile, a vector, and an element.
        ahead: see `multiply`.
        like: any number of the arrays' dtype.
    """
    width = vectors * lanes
    row = 0
    while row < rows:
        from_, begin, to = a + row * a_row * size, start + row * start_stride * size, c
        to += row * c_stride * size
        valid = min(most, rows - row)
        tiles = (rows - row) // most
        if used == width and tiles > 0:
            multiply(
                vectors, tiles, valid, depth, from_, a_row, a_depth, panel, begin, start_stride,
                to, c_stride, ahead, like,
            )  # fmt: skip
        else:
            tiles = 1
            copy_tile(begin, start_stride, tile, width, valid, used, size, like)
            multiply(
                vectors, tiles, valid, depth, from_, a_row, a_depth, panel, tile, width, tile,
                width, ahead, like,
            )  # fmt: skip
            copy_tile(tile, width, to, c_stride, valid, used, size, like)
        row += tiles * most


@inlined
def _product(
    rows: int, depth: int, columns: int, most: int, lanes: int,
    a_row: int, a_depth: int, b_row: int, b_column: int, c_stride: int,
    a: int, b: int, bias: int, c: int, memory: int, size: int, zero: Any,
) -> None:  # fmt: skip
    """Write bias + a b into `c`; `memory` has room for a block of each matrix and a tile."""
    step = _BLOCK_COLUMNS * lanes
    tile = memory + BLOCK_DEPTH * step * size
    turned = tile + most * VECTORS * lanes * size
    step *= max(1, BLOCK_DEPTH // depth)
    for left in range(0, columns, step):
        right = min(left + step, columns)
        # The rows of a transposed matrix are columns in memory, far apart from one another: the
        # cache would hold few of their numbers until the next panel needs them.
        turns = a_row == 1 and right - left >= _MIN_TURNED * lanes
        for top in range(0, depth, BLOCK_DEPTH):
            count = min(BLOCK_DEPTH, depth - top)
            of_b = b + (top * b_row + left * b_column) * size
            copy_panels(of_b, b_row, b_column, count, right - left, lanes, size, memory, zero)
            # A transposed matrix is copied in blocks, others are read where they are.
            for first in range(0, rows, _TURNED_ROWS):
                height = min(_TURNED_ROWS, rows - first)
                block, block_row, block_depth = a + top * a_depth * size, a_row, a_depth
                block += first * a_row * size
                if turns:
                    # One vector more than the depth: rows 2 KiB apart would share sets of a cache.
                    line = (count + lanes - 1) // lanes + 1
                    copy_panel(
                        block, a_row, a_depth, height, count, line, lanes, size, turned, zero
                    )
                    block, block_row, block_depth = turned, line * lanes, 1
                for group in range(0, height, _GROUP_ROWS):
                    some = min(_GROUP_ROWS, height - group)
                    from_ = block + group * block_row * size
                    at, column = memory, left
                    later = _GROUP_ROWS  # with each panel, another row of the next group
                    while column < right:
                        vectors = panel_vectors(right - column, lanes)
                        width = vectors * lanes
                        to = c + ((first + group) * c_stride + column) * size
                        start, stride = to, c_stride
                        if top == 0:
                            start, stride = bias + column * size, 0
                        multiply_panel(
                            vectors, some, count, from_, block_row, block_depth, at, start, stride,
                            to, c_stride, min(width, right - column), tile, most, lanes, size,
                            later * block_row * size, zero,
                        )  # fmt: skip
                        at += count * width * size
                        column += width
                        later += 1


@inlined
def tile_of(number: int, shape: Any, tile: Any, strides: Any, addresses: Any, size: int) -> Any:
    """Return a tile's rows, columns and first column, and where its part of each matrix begins.

    Args:
        number: of the tile; those of a matrix follow one another, row by row.
        shape: matrices of the inner dimension, rows, depth and columns.
        tile: rows and columns of a whole tile.
        strides: of a, b and the result, four each.
        addresses: of a, b and the result.
        size: bytes of a unit of the strides.
    """
    batch, all_rows, _, all_columns = shape
    height, width = tile
    a_outer, a_inner, a_row, _, b_outer, b_inner, _, b_column = strides[:8]
    c_outer, c_inner, c_row, c_column = strides[8:]
    across = (all_columns + width - 1) // width
    tiles = (all_rows + height - 1) // height * across
    item, place = number // tiles, number % tiles
    outer, inner = item // batch, item % batch
    top, left = place // across * height, place % across * width
    a = addresses[0] + (outer * a_outer + inner * a_inner + top * a_row) * size
    b = addresses[1] + (outer * b_outer + inner * b_inner + left * b_column) * size
    c = addresses[2] + (outer * c_outer + inner * c_inner + top * c_row + left * c_column) * size
    return min(height, all_rows - top), min(width, all_columns - left), left, a, b, c


@jit
def product_loop(
    shape: Any, of_tile: Any, strides: Any, addresses: Any, bias: Any, memory: Any, room: int,
    most: int, lanes: int, size: int, zero: Any, start: int, stop: int, worker: int,
) -> None:  # fmt: skip
    of_bias, of_memory = bias.ctypes.data, (memory.ctypes.data + 63) // 64 * 64 + worker * room
    for number in range(start, stop):
        rows, columns, left, a, b, c = tile_of(number, shape, of_tile, strides, addresses, size)
        _product(
            rows, shape[2], columns, most, lanes, strides[2], strides[3], strides[6], strides[7],
            strides[10], a, b, of_bias + left * size, c, of_memory, size, zero,
        )  # fmt: skip
