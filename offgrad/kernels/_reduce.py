"""Sums over rows, for bias gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._arrays import SUM_ROWS, Array, as_float, rows, sum_axes
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import block_items, parallel_for


def sum_rows(x: Array, out: Array) -> None:
    """Write the sum of x's rows into `out`: x [..., C], out [C]; 0 without rows.

    Partial sums of fixed blocks of rows: the bits do not depend on the number of threads, nor on
    BLAS, whose `ones @ x` is as fast.
    """
    a = rows(x)
    count, cols = a.shape
    if out.shape != (cols,):
        raise ValueError(
            f"sum_rows' out must have one element per column ({cols}), got {out.shape}"
        )
    if not uses_numba(a, out):
        _sum_rows_numpy(a, out)
        return
    if count <= SUM_ROWS:
        out[...] = 0
        _sum_rows_loop(a, out.reshape(1, cols), 0, 0, count)
        return
    step = block_items(cols)
    parts = -(-min(step, count) // SUM_ROWS)
    sums = np.zeros((-(-count // step) * parts, cols), dtype=out.dtype)
    parallel_for(
        lambda start, stop: _sum_rows_loop(a, sums, start // step * parts, start, stop), count, cols
    )
    sum_axes(sums, (0,), out=out)


@np.errstate(all="ignore")
def _sum_rows_numpy(x: Array, out: Array) -> None:
    out[...] = sum_axes(as_float(x), (0,))


@jit
def _sum_rows_loop(x: Any, sums: Any, first_sum: int, start: int, stop: int) -> None:
    for i in range(start, stop):
        row = x[i]
        total = sums[first_sum + (i - start) // SUM_ROWS]
        for j in range(row.size):
            total[j] += row[j]
