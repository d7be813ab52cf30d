"""PReLU: x above 0, else a weight times x, one weight for each channel; and its gradients.

Arrays are [N, C, L], C-contiguous, weights [C].
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import SUM_BLOCK, Array, same_shape
from offgrad.kernels._chunks import scratch
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import parallel_for
from offgrad.kernels._reduce import sum_rows


@in_float32("out")
def prelu(x: Array, weight: Array, out: Array) -> None:
    """Write x where it is above 0, else the channel's weight times x, into `out`."""
    same_shape(x=x, out=out)
    if not uses_numba(x, weight, out):
        with np.errstate(all="ignore"):
            out[...] = np.where(x > 0, x, x * weight[:, None])
        return
    if x.shape[2] == 1:
        rows, results = x.reshape(x.shape[:2]), out.reshape(x.shape[:2])
        parallel_for(
            partial(_prelu_rows_loop, rows, weight, results), x.shape[0], x.shape[1], merge=True
        )
        return
    parallel_for(
        partial(_prelu_loop, x, weight, out), x.shape[0] * x.shape[1], x.shape[2], merge=True
    )


@in_float32("dx", "dweight")
def prelu_backward(
    grad: Array, x: Array, weight: Array, dx: Array | None, dweight: Array | None
) -> None:
    """Write the gradients of x [N, C, L] and weight [C]; None skips one."""
    same_shape(grad=grad, x=x)
    wanted = [array for array in (dx, dweight) if array is not None]
    if not uses_numba(grad, x, weight, *wanted):
        _prelu_backward_numpy(grad, x, weight, dx, dweight)
        return
    if x.shape[2] == 1:
        _prelu_backward_rows(grad, x, weight, dx, dweight)
        return
    d = np.empty((0, 0, 0), x.dtype) if dx is None else dx
    # Of each channel of each sample.
    sums = np.zeros(x.shape[:2] if dweight is not None else (0, 0), np.float64)
    parallel_for(
        partial(_prelu_backward_loop, grad, x, weight, d, sums),
        x.shape[0] * x.shape[1],
        x.shape[2],
        merge=True,
    )
    if dweight is not None:
        dweight[...] = sums.sum(0)


def _prelu_backward_rows(
    grad: Array, x: Array, weight: Array, dx: Array | None, dweight: Array | None
) -> None:
    """Write the gradients of samples without further dimensions: x [N, C, 1]."""
    shape = x.shape[:2]
    empty = np.empty((0, 0), x.dtype)
    g, rows = grad.reshape(shape), x.reshape(shape)
    d = empty if dx is None else dx.reshape(shape)
    shares = empty if dweight is None else scratch(0, x.size, x.dtype).reshape(shape)
    parallel_for(
        partial(_prelu_backward_rows_loop, g, rows, weight, d, shares),
        shape[0],
        shape[1],
        merge=True,
    )
    if dweight is not None:
        sum_rows(shares, dweight)


@np.errstate(all="ignore")
def _prelu_backward_numpy(
    grad: Array, x: Array, weight: Array, dx: Array | None, dweight: Array | None
) -> None:
    if dx is not None:
        dx[...] = np.where(x > 0, grad, grad * weight[:, None])
    if dweight is not None:
        dweight[...] = np.where(x > 0, 0, grad * x).sum((0, 2), dtype=np.float64)


@jit
def _prelu_loop(x: Any, weight: Any, out: Any, start: int, stop: int) -> None:
    for item in range(start, stop):
        n = item // x.shape[1]
        c = item % x.shape[1]
        row = x[n, c]
        y = out[n, c]
        w = weight[c]
        for j in range(row.size):
            y[j] = row[j] if row[j] > 0 else row[j] * w


@jit
def _prelu_backward_loop(
    grad: Any, x: Any, weight: Any, dx: Any, sums: Any, start: int, stop: int
) -> None:
    number = x.dtype.type
    for item in range(start, stop):
        n = item // x.shape[1]
        c = item % x.shape[1]
        g = grad[n, c]
        row = x[n, c]
        w = weight[c]
        if dx.size > 0:
            d = dx[n, c]
            for j in range(row.size):
                d[j] = g[j] if row[j] > 0 else g[j] * w
        if sums.size > 0:
            total = 0.0
            for begin in range(0, row.size, SUM_BLOCK):
                block = row[begin : begin + SUM_BLOCK]
                grads = g[begin : begin + SUM_BLOCK]
                part = number(0)
                for j in range(block.size):
                    part += number(0) if block[j] > 0 else grads[j] * block[j]
                total += part
            sums[n, c] = total


@jit
def _prelu_rows_loop(x: Any, weight: Any, out: Any, start: int, stop: int) -> None:
    for n in range(start, stop):
        row = x[n]
        y = out[n]
        for c in range(row.size):
            scaled = row[c] * weight[c]
            y[c] = row[c] if row[c] > 0 else scaled


@jit
def _prelu_backward_rows_loop(
    grad: Any, x: Any, weight: Any, dx: Any, shares: Any, start: int, stop: int
) -> None:
    zero = x.dtype.type(0)
    for n in range(start, stop):
        g = grad[n]
        row = x[n]
        if dx.size > 0:
            d = dx[n]
            for c in range(row.size):
                scaled = g[c] * weight[c]
                d[c] = g[c] if row[c] > 0 else scaled
        if shares.size > 0:
            share = shares[n]
            for c in range(row.size):
                product = g[c] * row[c]
                share[c] = zero if row[c] > 0 else product
