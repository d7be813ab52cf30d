"""softmax and log_softmax over the last axis, and their gradients from the result alone.

A row of -inf alone gives NaN, as in torch; otherwise -inf masks an element.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import (
    SUM_BLOCK,
    Array,
    rows,
    same_shape,
)
from offgrad.kernels._fastmath import exp, log_share, row_max
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import Kernel, jit, uses_numba
from offgrad.kernels._parallel import parallel_for


@in_float32("out")
def softmax(x: Array, out: Array) -> None:
    """Write exp(x) / sum(exp(x)) along the last axis into `out`, of x's shape."""
    same_shape(x=x, out=out)
    if uses_numba(x, out):
        _over_rows(_softmax_loop, x, out)
    else:
        _softmax_numpy(x, out)


@in_float32("out")
def softmax_backward(grad: Array, result: Array, out: Array) -> None:
    """Write softmax's gradient into `out`, from `grad` and the forward's `result`."""
    same_shape(grad=grad, result=result, out=out)
    if uses_numba(grad, result, out):
        _over_rows(_softmax_backward_loop, grad, result, out)
    else:
        _softmax_backward_numpy(grad, result, out)


@in_float32("out")
def log_softmax(x: Array, out: Array) -> None:
    """Write x - log(sum(exp(x))) along the last axis into `out`, of x's shape."""
    same_shape(x=x, out=out)
    if uses_numba(x, out):
        _over_rows(_log_softmax_loop, x, out)
    else:
        _log_softmax_numpy(x, out)


@in_float32("out")
def log_softmax_backward(grad: Array, result: Array, out: Array) -> None:
    """Write log_softmax's gradient into `out`, from `grad` and the forward's `result`."""
    same_shape(grad=grad, result=result, out=out)
    if uses_numba(grad, result, out):
        _over_rows(_log_softmax_backward_loop, grad, result, out)
    else:
        _log_softmax_backward_numpy(grad, result, out)


def _over_rows(loop: Kernel[..., None], *arrays: Array) -> None:
    views = [rows(array) for array in arrays]
    count, cols = views[0].shape
    parallel_for(partial(loop, *views), count if cols else 0, cols, merge=True)


@np.errstate(all="ignore")
def _softmax_numpy(x: Array, out: Array) -> None:
    if x.size == 0:
        return
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    out[...] = powers / powers.sum(axis=-1, keepdims=True)


@np.errstate(all="ignore")
def _softmax_backward_numpy(grad: Array, result: Array, out: Array) -> None:
    out[...] = result * (grad - (grad * result).sum(axis=-1, keepdims=True))


@np.errstate(all="ignore")
def _log_softmax_numpy(x: Array, out: Array) -> None:
    if x.size == 0:
        return
    shifted = x - x.max(axis=-1, keepdims=True)
    out[...] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@np.errstate(all="ignore")
def _log_softmax_backward_numpy(grad: Array, result: Array, out: Array) -> None:
    out[...] = grad - np.exp(result) * grad.sum(axis=-1, keepdims=True)


@jit
def _softmax_loop(x: Any, out: Any, start: int, stop: int) -> None:
    number = x.dtype.type
    for i in range(start, stop):
        row = x[i]
        powers = out[i]
        highest = row_max(row)
        total = 0.0
        for j in range(row.size):
            powers[j] = exp(row[j] - highest)
        # Separate from the stores: a loop with both is not vectorised, and so sums in another
        # order, if the arrays lie so close that LLVM's alias check fails.
        for first in range(0, row.size, SUM_BLOCK):
            block = powers[first : first + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += block[j]
            total += part
        share = number(1.0 / total)
        for j in range(row.size):
            powers[j] *= share


@jit
def _softmax_backward_loop(grad: Any, result: Any, out: Any, start: int, stop: int) -> None:
    number = result.dtype.type
    for i in range(start, stop):
        g = grad[i]
        y = result[i]
        d = out[i]
        total = 0.0
        for first in range(0, y.size, SUM_BLOCK):
            grads = g[first : first + SUM_BLOCK]
            block = y[first : first + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += grads[j] * block[j]
            total += part
        dot = number(total)
        for j in range(y.size):
            d[j] = y[j] * (g[j] - dot)


@jit
def _log_softmax_loop(x: Any, out: Any, start: int, stop: int) -> None:
    number = x.dtype.type
    for i in range(start, stop):
        row = x[i]
        logs = out[i]
        highest = row_max(row)
        total = 0.0
        for first in range(0, row.size, SUM_BLOCK):
            block = row[first : first + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += exp(block[j] - highest)
            total += part
        log_total = number(np.log(total))
        for j in range(row.size):
            logs[j] = log_share(row[j], highest, log_total)


@jit
def _log_softmax_backward_loop(grad: Any, result: Any, out: Any, start: int, stop: int) -> None:
    number = result.dtype.type
    for i in range(start, stop):
        g = grad[i]
        y = result[i]
        d = out[i]
        total = 0.0
        for first in range(0, y.size, SUM_BLOCK):
            grads = g[first : first + SUM_BLOCK]
            part = number(0)
            for j in range(grads.size):
                part += grads[j]
            total += part
        factor = number(total)
        for j in range(y.size):
            d[j] = g[j] - exp(y[j]) * factor
