"""Products of bfloat16 matrices by the CPU's own instructions, in a compiled loop.

Both matrices are packed in pairs along the depth: b in panels of columns, and a in blocks of rows
unless its rows are contiguous and the depth has no remainder. Sums are float32, and each result
is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from offgrad import memory
from offgrad.kernels import _bfloat16_tiles
from offgrad.kernels._array_tables import array_at
from offgrad.kernels._arrays import Array
from offgrad.kernels._bfloat16_tiles import (
    DEPTH,
    MAX_HEIGHT,
    WIDTH,
    begin,
    end,
    instructions,
    multiply_pairs,
    round_row,
)
from offgrad.kernels._halves import bfloat16_bits
from offgrad.kernels._jit import inlined, jit
from offgrad.kernels._product_loops import tile_of
from offgrad.kernels._product_tiles import copy_turned

MIN_SIDE = 32
"""Rows, columns and depth at least: for smaller matrices, packing costs more than it gains."""

_ROWS = 96
"""Rows of a block of a: whole tiles of either height."""

_MAX_PANELS_NBYTES = 4 << 20
"""Bytes of the panels of b that are packed at a time, unless one panel takes more."""

_PAD_NBYTES = 128
"""Bytes between two panels: at powers of two, their rows would share few sets of a cache."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_SQUARE = 16
_ZERO16, _ZERO32, _ZERO = np.uint16(0), np.uint32(0), np.float32(0)
_SIXTEEN = np.uint32(16)


def usable(a: Array, b: Array, out: Array) -> bool:
    """Whether `tiles_body` is for ``a @ b`` of matrices."""
    return (
        a.dtype == b.dtype == out.dtype == _BFLOAT16
        and min(*a.shape, b.shape[1]) >= MIN_SIDE
        and out.strides[1] == 2
        and all(each >= 0 for each in (*a.strides, *b.strides, *out.strides))
        and bool(instructions())
    )


def tiles_body(
    a: Array, b: Array, out: Array, bias: Array | None, tile: tuple[int, int], workers: int
) -> Callable[..., None]:
    """Return the body of a `parallel_for` over the tiles of a batch of products.

    As `_product_loops.tiles_body`, for bfloat16.
    """
    _bfloat16_tiles.register()
    name = instructions()
    depth = a.shape[3]
    pairs = -(-depth // DEPTH) * DEPTH // 2
    start = np.zeros(out.shape[3], np.float32) if bias is None else np.array(bias, np.float32)
    panel = pairs * WIDTH * 4 + _PAD_NBYTES
    panels = min(-(-tile[1] // WIDTH), max(1, _MAX_PANELS_NBYTES // panel))
    sizes = (
        panels * panel,  # of b
        _ROWS * pairs * 4,  # a block of a
        MAX_HEIGHT * WIDTH * 4,  # sums of a tile
        _SQUARE * _SQUARE * 4,
    )
    room = -(-sum(sizes) // 4096) * 4096
    strides = *a.strides, *b.strides, *out.strides
    return partial(
        bfloat16_product_loop,
        _bfloat16_tiles.kind(name),
        (*a.shape[1:], out.shape[3]),
        tile,
        tuple([each // 2 for each in strides]),
        (a.ctypes.data, b.ctypes.data, out.ctypes.data),
        start,
        memory.empty(workers * room + 64, np.uint8),
        (room, *sizes[:-1]),
        (pairs, panels * WIDTH, _bfloat16_tiles.height(name)),
        _bfloat16_tiles.config_address(),
    )


@inlined
def pair_at(matrix: int, pair_step: int, step: int, pair: int, at: int, depth: int) -> Any:
    """Return two neighbours along the depth as one number; 0 beyond the depth."""
    first = 2 * pair
    if first >= depth:
        return _ZERO32
    place = matrix + 2 * (first * pair_step + at * step)
    low = np.uint32(array_at(place, 1, _ZERO16)[0])
    if first + 1 == depth:
        return low
    high = np.uint32(array_at(place + 2 * pair_step, 1, _ZERO16)[0])
    return np.uint32(low | np.uint32(high << _SIXTEEN))


@inlined
def interleave(upper: int, lower: int, count: int, target: int) -> None:
    """Write the pairs of two rows of numbers."""
    a, b = array_at(upper, count, _ZERO16), array_at(lower, count, _ZERO16)
    out = array_at(target, count, _ZERO32)
    for j in range(count):
        out[j] = np.uint32(a[j]) | np.uint32(np.uint32(b[j]) << _SIXTEEN)


@inlined
def pack_panels(
    b: int, b_row: int, b_column: int, depth: int, columns: int, pairs: int, target: int
) -> None:
    """Copy [depth, columns] to `target` as panels [pairs, WIDTH, 2], with zeros around."""
    step = 4 * pairs * WIDTH + _PAD_NBYTES
    whole = columns // WIDTH if b_column == 1 else 0
    for pair in range(depth // 2 if whole > 0 else 0):  # whole rows, which the CPU foresees
        upper = b + 4 * pair * b_row
        for panel in range(whole):
            from_, to = upper + 2 * panel * WIDTH, target + panel * step + 4 * pair * WIDTH
            interleave(from_, from_ + 2 * b_row, WIDTH, to)
    for panel in range((columns + WIDTH - 1) // WIDTH):
        left = panel * WIDTH
        from_, to = b + 2 * left * b_column, target + panel * step
        done = depth // 2 if panel < whole else 0
        pack_panel(from_, b_row, b_column, depth, min(WIDTH, columns - left), pairs, to, done)


@inlined
def pack_panel(
    b: int, b_row: int, b_column: int, depth: int, columns: int, pairs: int, target: int, done: int
) -> None:
    """Copy [depth, columns] to `target` as [pairs, WIDTH, 2], with zeros around.

    The first `done` pairs are there already.
    """
    whole = depth // 2
    if b_column == 1:
        for pair in range(done, whole):
            upper = b + 4 * pair * b_row
            interleave(upper, upper + 2 * b_row, columns, target + 4 * pair * WIDTH)
    elif b_row == 1 and b_column % 2 == 0:
        turned = whole // _SQUARE * _SQUARE
        across = columns // _SQUARE * _SQUARE
        for j in range(0, across, _SQUARE):
            for pair in range(0, turned, _SQUARE):
                from_ = b + 2 * (2 * pair + j * b_column)
                copy_turned(from_, b_column // 2, target + 4 * (pair * WIDTH + j), WIDTH, _ZERO)
        for pair in range(whole):
            line = array_at(target + 4 * pair * WIDTH, WIDTH, _ZERO32)
            for j in range(across if pair < turned else 0, columns):
                line[j] = pair_at(b, b_row, b_column, pair, j, depth)
    else:
        whole = 0
    for pair in range(whole, pairs):
        line = array_at(target + 4 * pair * WIDTH, WIDTH, _ZERO32)
        for j in range(columns):
            line[j] = pair_at(b, b_row, b_column, pair, j, depth)
    if columns < WIDTH:
        for pair in range(pairs):
            line = array_at(target + 4 * pair * WIDTH, WIDTH, _ZERO32)
            line[columns:] = _ZERO32


@inlined
def pack_rows(
    a: int, a_row: int, a_depth: int, rows: int, height: int, depth: int, pairs: int, target: int,
    square: int,
) -> None:  # fmt: skip
    """Copy [rows, depth] to `target` as [height, pairs, 2], with zeros around."""
    for i in range(height):
        line = array_at(target + 4 * i * pairs, pairs, _ZERO32)
        if i >= rows:
            line[:] = _ZERO32
        elif a_depth == 1:
            numbers = array_at(target + 4 * i * pairs, 2 * pairs, _ZERO16)
            numbers[:depth] = array_at(a + 2 * i * a_row, depth, _ZERO16)
            numbers[depth:] = _ZERO16
    if a_depth == 1:
        return
    whole = depth // DEPTH * _SQUARE if a_row == 1 else 0
    down = rows // _SQUARE * _SQUARE
    for i in range(0, down, _SQUARE):
        for first in range(0, whole, _SQUARE):
            for pair in range(_SQUARE):
                upper = a + 2 * (2 * (first + pair) * a_depth + i)
                interleave(upper, upper + 2 * a_depth, _SQUARE, square + 4 * pair * _SQUARE)
            copy_turned(square, _SQUARE, target + 4 * (i * pairs + first), pairs, _ZERO)
    for i in range(rows):
        line = array_at(target + 4 * i * pairs, pairs, _ZERO32)
        for pair in range(whole if i < down else 0, pairs):
            line[pair] = pair_at(a, a_depth, a_row, pair, i, depth)


@inlined
def write_tile(sums: int, bias: int, out: int, out_stride: int, rows: int, columns: int) -> None:
    """Write sums plus `bias`, rounded."""
    if columns == WIDTH:
        for i in range(rows):
            round_row(sums + 4 * i * WIDTH, bias, out + 2 * i * out_stride)
        return
    added = array_at(bias, columns, _ZERO)
    for i in range(rows):
        row = array_at(sums + 4 * i * WIDTH, columns, _ZERO)
        to = array_at(out + 2 * i * out_stride, columns, _ZERO16)
        for j in range(columns):
            to[j] = bfloat16_bits(np.float32(row[j] + added[j]).view(np.uint32))


@inlined
def _product(
    kind: Any, rows: int, depth: int, columns: int, pairs: int, group: int, height: int,
    a_row: int, a_depth: int, b_row: int, b_column: int, c_stride: int,
    a: int, b: int, bias: int, c: int, panels: int, block: int, sums: int, square: int, config: int,
) -> None:  # fmt: skip
    """Write bias + a b into `c`."""
    for begun in range(0, columns, group):
        ended = min(begun + group, columns)
        of_b = b + 2 * begun * b_column
        pack_panels(of_b, b_row, b_column, depth, ended - begun, pairs, panels)
        begin(kind, config)
        for first in range(0, rows, _ROWS):
            count = min(_ROWS, rows - first)
            source, stride = a + 2 * first * a_row, 2 * a_row
            if a_depth != 1 or depth != 2 * pairs or count % height != 0:
                whole = (count + height - 1) // height * height
                pack_rows(source, a_row, a_depth, count, whole, depth, pairs, block, square)
                source, stride = block, 4 * pairs
            panel, later = panels, 0
            for left in range(begun, ended, WIDTH):
                width = min(WIDTH, ended - left)
                for i in range(0, count, height):
                    # Two rows of the next block: where a is packed, they are in the cache.
                    ahead = source + (_ROWS + later if later < _ROWS else i) * stride
                    later += 2
                    multiply_pairs(kind, source + i * stride, stride, panel, pairs, sums, ahead)
                    to = c + 2 * ((first + i) * c_stride + left)
                    write_tile(sums, bias + 4 * left, to, c_stride, min(height, count - i), width)
                panel += 4 * pairs * WIDTH + _PAD_NBYTES
        end(kind)


@jit
def bfloat16_product_loop(
    kind: Any, shape: Any, of_tile: Any, strides: Any, addresses: Any, bias: Any, memory: Any,
    rooms: Any, packing: Any, config: int, start: int, stop: int, worker: int,
) -> None:  # fmt: skip
    room, of_panels, of_block, of_sums = rooms
    pairs, group, height = packing
    panels = (memory.ctypes.data + 63) // 64 * 64 + worker * room
    block = panels + of_panels
    sums = block + of_block
    for number in range(start, stop):
        rows, columns, left, a, b, c = tile_of(number, shape, of_tile, strides, addresses, 2)
        _product(
            kind, rows, shape[2], columns, pairs, group, height, strides[2], strides[3],
            strides[6], strides[7], strides[10], a, b, bias.ctypes.data + 4 * left, c, panels,
            block, sums, sums + of_sums, config,
        )  # fmt: skip
