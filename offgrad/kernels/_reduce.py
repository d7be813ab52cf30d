"""Sums over rows, for bias gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array, as_float, rows
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
    step = block_items(cols)
    if count <= step:
        _sum_rows_loop(a, out, 0, count)
        return
    partial = np.empty((-(-count // step), cols), dtype=out.dtype)
    parallel_for(
        lambda start, stop: _sum_rows_loop(a, partial[start // step], start, stop), count, cols
    )
    partial.sum(axis=0, out=out)


@np.errstate(all="ignore")
def _sum_rows_numpy(x: Array, out: Array) -> None:
    out[...] = as_float(x).sum(axis=0)


@jit
def _sum_rows_loop(x: Any, out: Any, start: int, stop: int) -> None:
    out[:] = out.dtype.type(0)
    for i in range(start, stop):
        row = x[i]
        for j in range(row.size):
            out[j] += row[j]
