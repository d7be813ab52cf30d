"""Layer normalisation over the last axis, and its gradients.

y = (x - mean) * rstd * weight + bias, with rstd = 1 / sqrt(variance + eps) and the variance's
divisor the number of columns. Backward needs x and the two statistics of each row.
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


@in_float32("out", "mean", "rstd")
def layer_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    out: Array,
    mean: Array,
    rstd: Array,
) -> None:
    """Write the normalised rows into `out` and each row's statistics into `mean` and `rstd`.

    Args:
        x: [..., C] floats; `out` has the same shape.
        weight: [C] factors, or None for 1.
        bias: [C] added, or None for 0.
        eps: Added to the variance.
        mean: As many elements as x has rows, written.
        rstd: As mean; 1 / sqrt(variance + eps).
    """
    same_shape(x=x, out=out)
    _check(x, weight, bias, mean, rstd)
    if not uses_numba(x, out, mean, rstd):
        _layer_norm_numpy(x, weight, bias, eps, out, mean, rstd)
        return
    a, o, m, r = rows(x), rows(out), flat(mean), flat(rstd)
    w, b = or_constant(weight, a.shape[1], a, 1), or_constant(bias, a.shape[1], a, 0)
    small = a.dtype.type(eps)
    parallel_for(
        partial(_layer_norm_loop, a, w, b, small, o, m, r), a.shape[0], a.shape[1], merge=True
    )


@in_float32("dx", "dweight", "dbias")
def layer_norm_backward(
    grad: Array,
    x: Array,
    weight: Array | None,
    mean: Array,
    rstd: Array,
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
) -> None:
    """Write the gradients of x [..., C], weight [C] and bias [C]; None skips one.

    `grad` has x's shape, `mean` and `rstd` are the forward's. Sums over rows are partial sums of
    fixed blocks of rows, so their bits do not depend on the number of threads.
    """
    same_shape(grad=grad, x=x)
    _check(x, weight, None, mean, rstd)
    wanted = [array for array in (dx, dweight, dbias) if array is not None]
    if not uses_numba(grad, x, mean, rstd, *wanted):
        _layer_norm_backward_numpy(grad, x, weight, mean, rstd, dx, dweight, dbias)
        return
    g, a, m, r = rows(grad), rows(x), flat(mean), flat(rstd)
    w = or_constant(weight, a.shape[1], a, 1)
    count, cols = a.shape
    cost = shared_cost(cols)
    step = block_items(cost)
    parts = -(-min(step, count) // SUM_ROWS)
    sums = np.zeros((2, -(-count // step) * parts, cols), dtype=a.dtype)
    d = np.empty((0, cols), dtype=a.dtype) if dx is None else rows(dx)
    parallel_for(
        partial(_layer_norm_backward_loop, g, a, w, m, r, d, sums[0], sums[1], step, parts),
        count,
        cost,
    )
    for array, sum_ in ((dweight, sums[0]), (dbias, sums[1])):
        if array is not None:
            sum_axes(sum_, (0,), out=array)


def _check(x: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array) -> None:
    cols = x.shape[-1]
    for name, array in (("weight", weight), ("bias", bias)):
        if array is not None and array.shape != (cols,):
            raise ValueError(
                f"layer_norm's {name} must have one element per column ({cols}), got {array.shape}"
            )
    count = x.size // cols if cols else rows(x).shape[0]
    for name, array in (("mean", mean), ("rstd", rstd)):
        if array.size != count:
            raise ValueError(
                f"layer_norm's {name} must have one element per row ({count}), got {array.shape}"
            )


@np.errstate(all="ignore")
def _layer_norm_numpy(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    out: Array,
    mean: Array,
    rstd: Array,
) -> None:
    if x.size == 0:
        return
    a = rows(x)
    m = a.mean(axis=1)
    centred = a - m[:, None]
    r = 1 / np.sqrt((centred * centred).mean(axis=1) + a.dtype.type(eps))
    y = centred * r[:, None]
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    rows(out)[...] = y
    flat(mean)[...] = m
    flat(rstd)[...] = r


@np.errstate(all="ignore")
def _layer_norm_backward_numpy(
    grad: Array,
    x: Array,
    weight: Array | None,
    mean: Array,
    rstd: Array,
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
) -> None:
    g, a = rows(grad), rows(x)
    r = flat(rstd)[:, None]
    normal = (a - flat(mean)[:, None]) * r
    if dx is not None and x.size:
        h = g if weight is None else g * weight
        projection = (h * normal).mean(axis=1, keepdims=True)
        rows(dx)[...] = r * (h - h.mean(axis=1, keepdims=True) - normal * projection)
    if dweight is not None:
        dweight[...] = sum_axes(g * normal, (0,))
    if dbias is not None:
        dbias[...] = sum_axes(g, (0,))


@jit
def _layer_norm_loop(
    x: Any,
    weight: Any,
    bias: Any,
    eps: Any,
    out: Any,
    mean: Any,
    rstd: Any,
    start: int,
    stop: int,
) -> None:
    number = x.dtype.type
    for i in range(start, stop):
        row = x[i]
        y = out[i]
        count = number(row.size)
        total = 0.0
        for first in range(0, row.size, SUM_BLOCK):
            block = row[first : first + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += block[j]
            total += part
        m = number(total) / count
        squares = 0.0
        for first in range(0, row.size, SUM_BLOCK):
            block = row[first : first + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += (block[j] - m) * (block[j] - m)
            squares += part
        r = number(1) / number(np.sqrt(number(squares) / count + eps))
        for j in range(row.size):
            y[j] = (row[j] - m) * r * weight[j] + bias[j]
        mean[i] = m
        rstd[i] = r


@jit
def _layer_norm_backward_loop(
    grad: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    dx: Any,
    weights: Any,
    biases: Any,
    step: int,
    parts: int,
    start: int,
    stop: int,
) -> None:
    number = x.dtype.type
    for i in range(start, stop):
        at = start // step * parts + (i - start) // SUM_ROWS
        g, row = grad[i], x[i]
        dweight, dbias = weights[at], biases[at]
        m, r = number(mean[i]), number(rstd[i])
        sum_h = 0.0
        sum_product = 0.0
        for first in range(0, row.size, SUM_BLOCK):
            block = row[first : first + SUM_BLOCK]
            factors = weight[first : first + SUM_BLOCK]
            grads = g[first : first + SUM_BLOCK]
            of_weight = dweight[first : first + SUM_BLOCK]
            of_bias = dbias[first : first + SUM_BLOCK]
            part = number(0)
            product = number(0)
            for j in range(block.size):
                normal = (block[j] - m) * r
                h = grads[j] * factors[j]
                part += h
                product += h * normal
                of_weight[j] += grads[j] * normal
                of_bias[j] += grads[j]
            sum_h += part
            sum_product += product
        if dx.shape[0] > 0:
            d = dx[i]
            total = number(sum_h) / number(row.size)
            projection = number(sum_product) / number(row.size)
            for j in range(row.size):
                d[j] = r * (g[j] * weight[j] - total - (row[j] - m) * r * projection)
