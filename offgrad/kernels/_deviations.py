"""Sums of squared distances from a centre, of which variances are made."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import SUM_BLOCK, Array
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import BLOCK, parallel_for
from offgrad.kernels._reduce import sum_axes, sum_rows

_PART = 4 * BLOCK  # of a row
_BLOCK_ROWS, _BLOCK_COLUMNS = 128, 256  # of the columns that a thread adds up at once


def squared_deviations(x: Array, centre: Array, axis: int, out: Array) -> None:
    """Write the sums of ``(x - centre) ** 2`` along an axis into `out`.

    Sizes alone decide the order of the additions.

    Args:
        x: [R, C], of 32 or 64 bits.
        centre: [R] of the rows for the axis 1, [C] of the columns for 0.
        axis: 0 or 1.
        out: as `centre`.
    """
    if not uses_numba(x, centre, out):
        _numpy(x, centre, axis, out)
        return
    count, cols = x.shape
    if axis == 1:
        parts = max(1, cols // _PART)
        sums = out if parts == 1 else np.empty(count * parts, out.dtype)
        loop = partial(_row_squares_loop, x, centre, sums, parts)
        parallel_for(loop, count * parts, min(cols, _PART) // 2, merge=True)
        if parts > 1:
            out[...] = sums.reshape(count, parts).sum(axis=1, dtype=np.float64)
        return
    down = max(1, -(-count // _BLOCK_ROWS))
    across = -(-cols // _BLOCK_COLUMNS)
    blocks = out.reshape(1, cols) if down == 1 else np.empty((down, cols), out.dtype)
    loop = partial(_column_squares_loop, x, centre, blocks)
    parallel_for(loop, down * across, min(count, _BLOCK_ROWS) * _BLOCK_COLUMNS, merge=True)
    if down > 1:
        sum_rows(blocks, out)


@np.errstate(all="ignore")
def _numpy(x: Array, centre: Array, axis: int, out: Array) -> None:
    distances = x - (centre[:, None] if axis == 1 else centre)
    sum_axes(distances * distances, (axis,), False, out)


@jit
def _row_squares_loop(x: Any, centre: Any, sums: Any, parts: int, start: int, stop: int) -> None:
    number = x.dtype.type
    cols = x.shape[1]
    for item in range(start, stop):
        at, part_of_row = item // parts, item % parts
        begin = part_of_row * _PART
        row = x[at, begin : cols if part_of_row == parts - 1 else begin + _PART]
        middle, total = centre[at], 0.0
        for first in range(0, row.size, SUM_BLOCK):
            block = row[first : first + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += (block[j] - middle) * (block[j] - middle)
            total += part
        sums[item] = total


@jit
def _column_squares_loop(x: Any, centre: Any, sums: Any, start: int, stop: int) -> None:
    across = (x.shape[1] + _BLOCK_COLUMNS - 1) // _BLOCK_COLUMNS
    for item in range(start, stop):
        block, left = item // across, item % across * _BLOCK_COLUMNS
        total, middle = sums[block, left : left + _BLOCK_COLUMNS], centre[left:]
        total[:] = 0
        for i in range(block * _BLOCK_ROWS, min((block + 1) * _BLOCK_ROWS, x.shape[0])):
            row = x[i, left:]
            for j in range(total.size):
                total[j] += (row[j] - middle[j]) * (row[j] - middle[j])
