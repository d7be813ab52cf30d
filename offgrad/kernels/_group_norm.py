"""Group normalisation: over the channels of each group of a sample, and its gradients.

y = (x - mean) * rstd * weight + bias, mean and rstd of the group, weight and bias of the channel.
Backward needs x and the two statistics of each group.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import SUM_BLOCK, Array, or_constant, same_shape
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import parallel_for


@in_float32("out", "mean", "rstd")
def group_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    out: Array,
    mean: Array,
    rstd: Array,
) -> None:
    """Write the normalised `x` into `out`, and each group's statistics.

    Args:
        x: [N, G, C / G, L] floats, C-contiguous; `out` has the same shape.
        weight: [C] factors, or None for 1.
        bias: [C] added, or None for 0.
        eps: Added to the variance.
        mean: [N, G], written.
        rstd: As mean; 1 / sqrt(variance + eps).
    """
    same_shape(x=x, out=out)
    _check(x, weight, bias, mean, rstd)
    if not uses_numba(x, out, mean, rstd):
        _group_norm_numpy(x, weight, bias, eps, out, mean, rstd)
        return
    channels = x.shape[1] * x.shape[2]
    w, b = or_constant(weight, channels, x, 1), or_constant(bias, channels, x, 0)
    small = x.dtype.type(eps)
    parallel_for(
        partial(_group_norm_loop, x, w, b, small, out, mean, rstd),
        mean.size,
        x.size // max(1, mean.size),
        merge=True,
    )


@in_float32("dx", "dweight", "dbias")
def group_norm_backward(
    grad: Array,
    x: Array,
    weight: Array | None,
    mean: Array,
    rstd: Array,
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
) -> None:
    """Write the gradients of x [N, G, C / G, L], weight [C] and bias [C]; None skips one.

    `grad` has x's shape, `mean` and `rstd` are the forward's.
    """
    same_shape(grad=grad, x=x)
    _check(x, weight, None, mean, rstd)
    wanted = [array for array in (dx, dweight, dbias) if array is not None]
    if not uses_numba(grad, x, mean, rstd, *wanted):
        _group_norm_backward_numpy(grad, x, weight, mean, rstd, dx, dweight, dbias)
        return
    w = or_constant(weight, x.shape[1] * x.shape[2], x, 1)
    d = np.empty((0, 0, 0, 0), x.dtype) if dx is None else dx
    # Of each channel of each sample.
    products, totals = np.zeros((2, *x.shape[:3]), np.float64)
    parallel_for(
        partial(_group_norm_backward_loop, grad, x, w, mean, rstd, d, products, totals),
        mean.size,
        x.size // max(1, mean.size),
        merge=True,
    )
    if dweight is not None:
        dweight[...] = products.sum(0).reshape(-1)
    if dbias is not None:
        dbias[...] = totals.sum(0).reshape(-1)


def _check(x: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array) -> None:
    if x.ndim != 4 or not x.flags.c_contiguous:
        raise ValueError(
            f"group_norm takes contiguous arrays [N, G, C / G, L], got shape {x.shape} with "
            f"strides {x.strides}"
        )
    channels = x.shape[1] * x.shape[2]
    for array in (weight, bias):
        if array is not None and array.shape != (channels,):
            raise ValueError(
                f"group_norm's weight and bias must have one element per channel ({channels}), "
                f"got {array.shape}"
            )
    for array in (mean, rstd):
        if array.shape != x.shape[:2]:
            raise ValueError(
                f"group_norm's statistics must have one element per group ({x.shape[:2]}), got "
                f"{array.shape}"
            )


@np.errstate(all="ignore")
def _group_norm_numpy(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    out: Array,
    mean: Array,
    rstd: Array,
) -> None:
    if not x.size:
        return
    m = x.mean((2, 3), dtype=np.float64)
    v = np.square(x - m[..., None, None], dtype=np.float64).mean((2, 3))
    mean[...], rstd[...] = m, 1 / np.sqrt(v + eps)
    y = (x - mean[..., None, None]) * rstd[..., None, None]
    if weight is not None:
        y = y * weight.reshape(*x.shape[1:3], 1)
    if bias is not None:
        y = y + bias.reshape(*x.shape[1:3], 1)
    out[...] = y


@np.errstate(all="ignore")
def _group_norm_backward_numpy(
    grad: Array,
    x: Array,
    weight: Array | None,
    mean: Array,
    rstd: Array,
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
) -> None:
    r = rstd[..., None, None]
    normal = (x - mean[..., None, None]) * r
    if dweight is not None:
        dweight[...] = (grad * normal).sum((0, 3), dtype=np.float64).reshape(-1)
    if dbias is not None:
        dbias[...] = grad.sum((0, 3), dtype=np.float64).reshape(-1)
    if dx is not None and x.size:
        h = grad if weight is None else grad * weight.reshape(*x.shape[1:3], 1)
        average = h.mean((2, 3), keepdims=True)
        projection = (h * normal).mean((2, 3), keepdims=True)
        dx[...] = r * (h - average - normal * projection)


@jit
def _group_norm_loop(
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
    groups = x.shape[1]
    width = x.shape[2]
    for at in range(start, stop):
        n = at // groups
        group = at % groups
        block_of_group = x[n, group].reshape(width * x.shape[3])
        total = 0.0
        for begin in range(0, block_of_group.size, SUM_BLOCK):
            block = block_of_group[begin : begin + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += block[j]
            total += part
        m = number(total / block_of_group.size)
        squares = 0.0
        for begin in range(0, block_of_group.size, SUM_BLOCK):
            block = block_of_group[begin : begin + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += (block[j] - m) * (block[j] - m)
            squares += part
        r = number(1) / number(np.sqrt(number(squares / block_of_group.size) + eps))
        mean[n, group] = m
        rstd[n, group] = r
        for k in range(width):
            row = x[n, group, k]
            y = out[n, group, k]
            scale = r * weight[group * width + k]
            b = bias[group * width + k]
            for j in range(row.size):
                y[j] = (row[j] - m) * scale + b


@jit
def _group_norm_backward_loop(
    grad: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    dx: Any,
    products: Any,
    totals: Any,
    start: int,
    stop: int,
) -> None:
    number = x.dtype.type
    groups = x.shape[1]
    width = x.shape[2]
    for at in range(start, stop):
        n = at // groups
        group = at % groups
        m = mean[n, group]
        r = rstd[n, group]
        sum_h = 0.0
        sum_product = 0.0
        for k in range(width):
            g = grad[n, group, k]
            row = x[n, group, k]
            total = 0.0
            product = 0.0
            for begin in range(0, row.size, SUM_BLOCK):
                block = row[begin : begin + SUM_BLOCK]
                grads = g[begin : begin + SUM_BLOCK]
                part = number(0)
                partial = number(0)
                for j in range(block.size):
                    part += grads[j]
                    partial += grads[j] * ((block[j] - m) * r)
                total += part
                product += partial
            totals[n, group, k] = total
            products[n, group, k] = product
            sum_h += total * weight[group * width + k]
            sum_product += product * weight[group * width + k]
        if dx.size > 0:
            count = width * x.shape[3]
            average = number(sum_h / count) * r
            slope = number(sum_product / count) * r * r
            for k in range(width):
                g = grad[n, group, k]
                row = x[n, group, k]
                d = dx[n, group, k]
                scale = r * weight[group * width + k]
                for j in range(row.size):
                    d[j] = g[j] * scale - average - (row[j] - m) * slope
