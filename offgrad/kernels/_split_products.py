"""Products of float32 matrices by AMX, as sums of products of bfloat16.

Each number is split into two of bfloat16: high, the rounded number, and low, the rounded rest. A
product is high high + high low + low high, summed in float32. The error of a result is below 2**-16
of the sum of its terms' absolute values; float32 has about 2**-24. The low part of a number below
1e-33 counts as 0.

Both matrices are packed in blocks that stay in a core's caches: groups of 32 lanes (rows of a, or
columns of b), as tiles of 16 lanes by 16 pairs of neighbours along the depth. Each element of the
result is the sum, in order, of blocks of the depth: its bits depend on nothing else.

Source of the scheme: G. Henry, P. T. P. Tang, A. Heinecke, "Leveraging the bfloat16 Artificial
Intelligence Datatype For Higher-Precision Computations", ARITH 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels import _bfloat16_tiles
from offgrad.kernels._array_tables import array_at
from offgrad.kernels._arrays import Array, address_of
from offgrad.kernels._bfloat16_tiles import (
    begin,
    end,
    instructions,
    is_finite,
    multiply_split,
    split,
)
from offgrad.kernels._jit import inlined, jit
from offgrad.kernels._product_loops import scratch, tile_of
from offgrad.kernels._product_tiles import copy_turned

MIN_SIDE = 64
"""Rows, columns and depth at least: for smaller matrices, packing costs more than it gains."""

_BLOCK_DEPTH = 512
"""Numbers along the depth of a block."""

_BLOCK_ROWS, _BLOCK_COLUMNS = 256, 768
"""Rows and columns of a block: together 2 MB in two parts."""

_LANES = 32
_SQUARE = 16
_STEP = 32  # numbers along the depth in a tile
_TILE_NBYTES = _SQUARE * _SQUARE * 4
_STEP_NBYTES = 4 * _TILE_NBYTES  # of a group: high and low, each of two tiles
_GROUP_NBYTES = _BLOCK_DEPTH // _STEP * _STEP_NBYTES
_ZERO = np.float32(0)


def usable(a: Array, b: Array, out: Array) -> bool:
    """Whether `tiles_body` is for ``a @ b`` of matrices."""
    return (
        a.dtype == b.dtype == out.dtype == np.float32
        and min(*a.shape, b.shape[1]) >= MIN_SIDE
        and out.strides[1] == 4
        and all(each % 4 == 0 <= each for each in (*a.strides, *b.strides, *out.strides))
        and instructions() == "amx"
    )


def tiles_body(
    a: Array, b: Array, out: Array, bias: Array | None, tile: tuple[int, int], workers: int
) -> tuple[Callable[..., None], Array]:
    """Return the body of a `parallel_for` over the tiles of a batch of products, and flags.

    As `_product_loops.tiles_body`. A worker sets its flag if a result is not finite: the parts of
    an infinite number, or of one that rounds to infinity, do not add up to it. All results must be
    computed in another way then.
    """
    _bfloat16_tiles.register()
    columns = -(-out.shape[3] // _LANES) * _LANES
    start = np.zeros(columns, np.float32)
    if bias is not None:
        start[: out.shape[3]] = bias
    sizes = (
        _BLOCK_ROWS // _LANES * _GROUP_NBYTES,
        _BLOCK_COLUMNS // _LANES * _GROUP_NBYTES,
        _LANES * _LANES * 4,  # a tile of the result
        2 * _TILE_NBYTES,  # to turn
        _SQUARE * _STEP * 4,  # numbers at the edges
    )
    rooms, room = scratch.memory(workers, sum(sizes))
    flags = np.zeros(workers, np.uint8)
    body = partial(
        split_product_loop,
        _bfloat16_tiles.kind("amx"),
        (*a.shape[1:], out.shape[3]),
        tile,
        (*a.strides, *b.strides, *out.strides),
        (address_of(a), address_of(b), address_of(out)),
        start,
        rooms,
        (room, *sizes[:-1]),
        _bfloat16_tiles.config_address(),
        flags,
    )
    return body, flags


@inlined
def pack_group(
    source: int, lane: int, along: int, lanes: int, depth: int, is_turned: bool, target: int,
    square: int, edge: int,
) -> None:  # fmt: skip
    """Copy [lanes, depth] to `target`, with zeros around.

    Args:
        source: address.
        lane, along: bytes from one lane, and from one number along the depth, to the next.
        lanes: at most 32.
        depth: at least 1.
        is_turned: whether tiles are [pair, lane], instead of [lane, pair].
        target: address of [steps, high and low, half of the lanes, tile].
        square, edge: addresses of scratch memory.
    """
    for step in range((depth + _STEP - 1) // _STEP):
        deep = min(_STEP, depth - step * _STEP)
        for half in range(2):
            wide = min(_SQUARE, lanes - half * _SQUARE)
            from_ = source + half * _SQUARE * lane + step * _STEP * along
            to = target + step * _STEP_NBYTES + half * _TILE_NBYTES
            lane_, along_ = lane, along
            if wide < _SQUARE or deep < _STEP or (lane != 4 and along != 4):
                numbers = array_at(edge, _SQUARE * _STEP, _ZERO)
                numbers[:] = _ZERO
                for i in range(wide):
                    for k in range(deep):
                        place = from_ + i * lane + k * along
                        numbers[i * _STEP + k] = array_at(place, 1, _ZERO)[0]
                from_, lane_, along_ = edge, 4 * _STEP, 4
            by_lane = along_ == 4
            high, low = to, to + 2 * _TILE_NBYTES
            if by_lane == is_turned:
                high, low = square, square + _TILE_NBYTES
            ahead = _LANES * lane
            for i in range(_SQUARE):
                if by_lane:
                    first = from_ + i * lane_
                    split(first, first + 64, high + 64 * i, low + 64 * i, ahead, False)
                else:
                    first = from_ + 2 * i * along_
                    split(first, first + along_, high + 64 * i, low + 64 * i, ahead, True)
            if by_lane == is_turned:
                copy_turned(high, _SQUARE, to, _SQUARE, _ZERO)
                copy_turned(low, _SQUARE, to + 2 * _TILE_NBYTES, _SQUARE, _ZERO)


@inlined
def write_tile(
    kind: Any, steps: int, rows: int, columns: int, is_first: bool, is_last: bool,
    a: int, b: int, bias: int, c: int, c_stride: int, scratch: int,
) -> bool:  # fmt: skip
    """Write a tile of bias + a b, or add a b to it; return whether the last results are finite.

    A tile at an edge is computed in `scratch`.
    """
    out, stride = c, c_stride
    if rows < _LANES or columns < _LANES:
        out, stride = scratch, 4 * _LANES
        if not is_first:
            copy_rows(c, c_stride, out, stride, rows, columns)
    start, start_stride = out, stride
    if is_first:
        start, start_stride = bias, 0
    below = c + _LANES * c_stride
    multiply_split(kind, steps, a, b, start, start_stride, out, stride, below)
    finite = is_finite(out, stride) if is_last else True
    if out != c:
        copy_rows(out, stride, c, c_stride, rows, columns)
    return finite


@inlined
def copy_rows(
    source: int, source_stride: int, target: int, target_stride: int, rows: int, columns: int
) -> None:
    for i in range(rows):
        line = array_at(source + i * source_stride, columns, _ZERO)
        array_at(target + i * target_stride, columns, _ZERO)[:] = line


@inlined
def _product(
    kind: Any, rows: int, depth: int, columns: int,
    a_row: int, a_depth: int, b_row: int, b_column: int, c_stride: int,
    a: int, b: int, bias: int, c: int,
    block: int, panels: int, tile: int, square: int, edge: int, config: int,
) -> bool:  # fmt: skip
    """Write bias + a b into `c`; return whether all of it is finite."""
    finite = True
    begin(kind, config)
    for deep in range(0, depth, _BLOCK_DEPTH):
        numbers = min(_BLOCK_DEPTH, depth - deep)
        steps = (numbers + _STEP - 1) // _STEP
        of_a, of_b = a + deep * a_depth, b + deep * b_row
        is_first, is_last = deep == 0, deep + numbers == depth
        for left in range(0, columns, _BLOCK_COLUMNS):
            right = min(left + _BLOCK_COLUMNS, columns)
            panel = panels
            for column in range(left, right, _LANES):
                from_, lanes = of_b + column * b_column, min(_LANES, right - column)
                pack_group(from_, b_column, b_row, lanes, numbers, True, panel, square, edge)
                panel += _GROUP_NBYTES
            for top in range(0, rows, _BLOCK_ROWS):
                bottom = min(top + _BLOCK_ROWS, rows)
                group = block
                for row in range(top, bottom, _LANES):
                    from_, lanes = of_a + row * a_row, min(_LANES, bottom - row)
                    pack_group(from_, a_row, a_depth, lanes, numbers, False, group, square, edge)
                    group += _GROUP_NBYTES
                panel = panels
                for column in range(left, right, _LANES):
                    group = block
                    for row in range(top, bottom, _LANES):
                        finite &= write_tile(
                            kind, steps, min(_LANES, bottom - row), min(_LANES, right - column),
                            is_first, is_last, group, panel, bias + 4 * column,
                            c + row * c_stride + 4 * column, c_stride, tile,
                        )  # fmt: skip
                        group += _GROUP_NBYTES
                    panel += _GROUP_NBYTES
    end(kind)
    return finite


@jit
def split_product_loop(
    kind: Any, shape: Any, of_tile: Any, strides: Any, addresses: Any, bias: Any, memory: Any,
    rooms: Any, config: int, flags: Any, start: int, stop: int, worker: int,
) -> None:  # fmt: skip
    room, of_block, of_panels, of_scratch, of_square = rooms
    block = (memory.ctypes.data + 63) // 64 * 64 + worker * room
    panels = block + of_block
    scratch = panels + of_panels
    square = scratch + of_scratch
    for number in range(start, stop):
        rows, columns, left, a, b, c = tile_of(number, shape, of_tile, strides, addresses, 1)
        finite = _product(
            kind, rows, shape[2], columns, strides[2], strides[3], strides[6], strides[7],
            strides[10], a, b, bias.ctypes.data + 4 * left, c, block, panels, scratch, square,
            square + of_square, config,
        )  # fmt: skip
        if not finite:
            flags[worker] = 1
