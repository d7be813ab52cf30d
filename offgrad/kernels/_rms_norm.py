"""Normalisation by the root of the mean square over the last axis, and its gradients.

y = x * rstd * weight, with rstd = 1 / sqrt(mean square + eps). Backward needs x and each row's
rstd.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import (
    SUM_BLOCK,
    SUM_ROWS,
    Array,
    flat,
    or_constant,
    rows,
    same_shape,
    sum_axes,
)
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import block_items, parallel_for, shared_cost


@in_float32("out", "rstd")
def rms_norm(x: Array, weight: Array | None, eps: float, out: Array, rstd: Array) -> None:
    """Write the normalised rows into `out` and each row's rstd.

    Args:
        x: [..., C] floats; `out` has the same shape.
        weight: [C] factors, or None for 1.
        eps: Added to the mean square.
        rstd: As many elements as x has rows, written.
    """
    same_shape(x=x, out=out)
    _check(x, weight, rstd)
    if not uses_numba(x, out, rstd):
        _rms_norm_numpy(x, weight, eps, out, rstd)
        return
    a, o, r = rows(x), rows(out), flat(rstd)
    w, small = or_constant(weight, a.shape[1], a, 1), a.dtype.type(eps)
    parallel_for(partial(_rms_norm_loop, a, w, small, o, r), a.shape[0], a.shape[1], merge=True)


@in_float32("dx", "dweight")
def rms_norm_backward(
    grad: Array,
    x: Array,
    weight: Array | None,
    rstd: Array,
    dx: Array | None,
    dweight: Array | None,
) -> None:
    """Write the gradients of x [..., C] and weight [C]; None skips one.

    `grad` has x's shape, `rstd` is the forward's. Sums over rows are partial sums of fixed blocks
    of rows, so their bits do not depend on the number of threads.
    """
    same_shape(grad=grad, x=x)
    _check(x, weight, rstd)
    wanted = [array for array in (dx, dweight) if array is not None]
    if not uses_numba(grad, x, rstd, *wanted):
        _rms_norm_backward_numpy(grad, x, weight, rstd, dx, dweight)
        return
    g, a, r = rows(grad), rows(x), flat(rstd)
    w = or_constant(weight, a.shape[1], a, 1)
    count, cols = a.shape
    cost = shared_cost(cols)
    step = block_items(cost)
    none = np.empty((0, cols), dtype=a.dtype)
    d = none if dx is None else rows(dx)
    parts = -(-min(step, count) // SUM_ROWS)
    sums = none if dweight is None else np.zeros((-(-count // step) * parts, cols), a.dtype)
    parallel_for(
        partial(_rms_norm_backward_loop, g, a, w, r, d, sums, step, parts),
        count,
        cost,
    )
    if dweight is not None:
        sum_axes(sums, (0,), out=dweight)


def _check(x: Array, weight: Array | None, rstd: Array) -> None:
    cols = x.shape[-1]
    if weight is not None and weight.shape != (cols,):
        raise ValueError(
            f"rms_norm's weight must have one element per column ({cols}), got {weight.shape}"
        )
    count = x.size // cols if cols else rows(x).shape[0]
    if rstd.size != count:
        raise ValueError(
            f"rms_norm's rstd must have one element per row ({count}), got {rstd.shape}"
        )


@np.errstate(all="ignore")
def _rms_norm_numpy(x: Array, weight: Array | None, eps: float, out: Array, rstd: Array) -> None:
    if x.size == 0:
        return
    a = rows(x)
    r = 1 / np.sqrt((a * a).mean(axis=1) + a.dtype.type(eps))
    y = a * r[:, None]
    rows(out)[...] = y if weight is None else y * weight
    flat(rstd)[...] = r


@np.errstate(all="ignore")
def _rms_norm_backward_numpy(
    grad: Array,
    x: Array,
    weight: Array | None,
    rstd: Array,
    dx: Array | None,
    dweight: Array | None,
) -> None:
    g, a = rows(grad), rows(x)
    r = flat(rstd)[:, None]
    normal = a * r
    if dx is not None and x.size:
        h = g if weight is None else g * weight
        rows(dx)[...] = r * (h - normal * (h * normal).mean(axis=1, keepdims=True))
    if dweight is not None:
        dweight[...] = sum_axes(g * normal, (0,))


@jit
def _rms_norm_loop(
    x: Any, weight: Any, eps: Any, out: Any, rstd: Any, start: int, stop: int
) -> None:
    number = x.dtype.type
    for i in range(start, stop):
        row = x[i]
        y = out[i]
        squares = 0.0
        for first in range(0, row.size, SUM_BLOCK):
            block = row[first : first + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += block[j] * block[j]
            squares += part
        r = number(1) / number(np.sqrt(number(squares) / number(row.size) + eps))
        for j in range(row.size):
            y[j] = row[j] * r * weight[j]
        rstd[i] = r


@jit
def _rms_norm_backward_loop(
    grad: Any,
    x: Any,
    weight: Any,
    rstd: Any,
    dx: Any,
    weights: Any,
    step: int,
    parts: int,
    start: int,
    stop: int,
) -> None:
    number = x.dtype.type
    for i in range(start, stop):
        g = grad[i]
        row = x[i]
        r = number(rstd[i])
        if dx.shape[0] > 0:
            d = dx[i]
            total = 0.0
            for first in range(0, row.size, SUM_BLOCK):
                block = row[first : first + SUM_BLOCK]
                factors = weight[first : first + SUM_BLOCK]
                grads = g[first : first + SUM_BLOCK]
                part = number(0)
                for j in range(block.size):
                    part += grads[j] * factors[j] * block[j]
                total += part
            slope = number(total) / number(row.size) * r * r
            for j in range(row.size):
                d[j] = r * (g[j] * weight[j] - row[j] * slope)
        if weights.shape[0] > 0:
            dweight = weights[start // step * parts + (i - start) // SUM_ROWS]
            for j in range(row.size):
                dweight[j] += g[j] * (row[j] * r)
