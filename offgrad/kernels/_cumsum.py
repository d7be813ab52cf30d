"""Cumulative sums along a dimension, from either end."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import BLOCK, num_workers, parallel_for

_WIDE = {
    np.dtype(narrow): np.dtype(wide)
    for narrow, wide in (
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (np.float32, np.float64),
        (np.complex64, np.complex128),
    )
}
_LANES = 4
_COLUMNS = 256


def cumsum(x: Array, out: Array, dim: int, reverse: bool = False) -> None:
    """Write the cumulative sums of `x` along `dim`, from the end if `reverse`, into `out`.

    Args:
        x: any strides, at least one dimension.
        out: C-contiguous, of the same shape and dtype.

    Sums are kept in the next wider dtype, so that the error does not grow with the length; all are
    added in the order of the dimension.
    """
    if x.size <= BLOCK or not x.flags.c_contiguous or not uses_numba(x, out):
        _cumsum_numpy(x, out, dim, reverse)
        return
    length, inner = x.shape[dim], prod(x.shape[dim + 1 :])
    source, target = x.reshape(-1), out.reshape(-1)
    if inner == 1:
        parallel_for(
            partial(_rows_loop, source, target, length, reverse),
            x.size // length,
            length,
            merge=True,
        )
        return
    parts = -(-inner // _COLUMNS)
    count = prod(x.shape[:dim]) * parts
    workers = num_workers(count)
    sums = np.empty((workers, _COLUMNS), np.float64)
    body = partial(_columns_loop, source, target, sums, length, inner, reverse)
    parallel_for(body, count, length * min(inner, _COLUMNS), merge=True, workers=workers)


@np.errstate(all="ignore")
def _cumsum_numpy(x: Array, out: Array, dim: int, reverse: bool) -> None:
    if reverse:
        x, target = np.flip(x, dim), np.flip(out, dim)
    else:
        target = out
    np.add.accumulate(x, axis=dim, dtype=_WIDE.get(x.dtype, x.dtype), out=target)


@jit
def _rows_loop(x: Any, out: Any, length: int, reverse: bool, start: int, stop: int) -> None:
    row = start
    first = length - 1 if reverse else 0
    step = -1 if reverse else 1
    # Several rows at once: each sum waits for the one before it.
    while row + _LANES <= stop:
        a = x[row * length : (row + _LANES) * length]
        o = out[row * length : (row + _LANES) * length]
        s0 = s1 = s2 = s3 = 0.0
        for k in range(length):
            j = first + step * k
            s0 += a[j]
            s1 += a[j + length]
            s2 += a[j + 2 * length]
            s3 += a[j + 3 * length]
            o[j] = s0
            o[j + length] = s1
            o[j + 2 * length] = s2
            o[j + 3 * length] = s3
        row += _LANES
    while row < stop:
        a = x[row * length : (row + 1) * length]
        o = out[row * length : (row + 1) * length]
        total = 0.0
        for k in range(length):
            j = first + step * k
            total += a[j]
            o[j] = total
        row += 1


@jit
def _columns_loop(
    x: Any,
    out: Any,
    all_sums: Any,
    length: int,
    inner: int,
    reverse: bool,
    start: int,
    stop: int,
    worker: int,
) -> None:
    sums = all_sums[worker]
    parts = (inner + _COLUMNS - 1) // _COLUMNS
    for item in range(start, stop):
        plane = item // parts
        begin = (item - plane * parts) * _COLUMNS
        count = min(_COLUMNS, inner - begin)
        sums[:] = 0.0
        for k in range(length):
            j = length - 1 - k if reverse else k
            at = (plane * length + j) * inner + begin
            row = x[at : at + count]
            line = out[at : at + count]
            for r in range(row.size):
                sums[r] += row[r]
                line[r] = sums[r]
