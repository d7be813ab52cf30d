"""softmax, log_softmax and cross-entropy over the middle axis of [N, C, L] arrays.

For classes that are planes, such as those of the pixels of images: loops run along L, where
memory is contiguous, over blocks of columns that stay in a core's cache.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad import memory
from offgrad.kernels._arrays import Array, same_shape
from offgrad.kernels._fastmath import exp, log_share
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import Kernel, jit, uses_numba
from offgrad.kernels._parallel import parallel_for

_TILE = 512
"""Columns of a block."""

_CLASSES = 64
"""Loops add up so many classes before they start another sum."""

MIN_LENGTH = 16
"""The length of planes from which on these loops are faster than copies to rows."""


@in_float32("out")
def softmax_planes(x: Array, out: Array, is_log: bool) -> None:
    """Write softmax over axis 1, or its logarithm, into `out`; both are [N, C, L], contiguous."""
    same_shape(x=x, out=out)
    if not uses_numba(x, out):
        _softmax_numpy(x, out, is_log)
        return
    highest, total, part = memory.empty((3, x.shape[0], x.shape[2]), x.dtype)
    _over_tiles(_softmax_loop, x, x, out, highest, total, part, is_log)


@in_float32("out")
def softmax_planes_backward(grad: Array, result: Array, out: Array, is_log: bool) -> None:
    """Write the gradient of `softmax_planes`, from `grad` and the forward's `result`."""
    same_shape(grad=grad, result=result, out=out)
    if not uses_numba(grad, result, out):
        _softmax_backward_numpy(grad, result, out, is_log)
        return
    total, part = memory.empty((2, result.shape[0], result.shape[2]), result.dtype)
    _over_tiles(_softmax_backward_loop, result, grad, result, out, total, part, is_log)


@in_float32("lse")
def log_sum_exp_planes(x: Array, lse: Array) -> None:
    """Write the logarithms of the sums of exponentials over axis 1 of [N, C, L] into [N, L]."""
    if not uses_numba(x, lse):
        _log_sum_exp_numpy(x, lse)
        return
    highest, part = memory.empty((2, *lse.shape), x.dtype)
    _over_tiles(_log_sum_exp_loop, x, x, lse, highest, part)


@in_float32("out")
def scaled_softmax_planes(x: Array, lse: Array, factor: Array, out: Array) -> None:
    """Write ``exp(x - lse) * factor`` into `out` [N, C, L]; `lse` and `factor` are [N, L]."""
    same_shape(x=x, out=out)
    same_shape(lse=lse, factor=factor)
    if not uses_numba(x, lse, factor, out):
        _scaled_softmax_numpy(x, lse, factor, out)
        return
    _over_tiles(_scaled_softmax_loop, x, x, lse, factor, out)


def _over_tiles(loop: Kernel[..., None], like: Array, *arguments: Any) -> None:
    count, classes, length = like.shape
    tiles = -(-length // _TILE)
    parallel_for(
        partial(loop, *arguments, tiles),
        count * tiles if classes else 0,
        classes * min(length, _TILE),
        merge=True,
    )


@np.errstate(all="ignore")
def _softmax_numpy(x: Array, out: Array, is_log: bool) -> None:
    if not x.size:
        return
    shifted = x - x.max(axis=1, keepdims=True)
    powers = np.exp(shifted)
    total = powers.sum(axis=1, keepdims=True)
    out[...] = shifted - np.log(total) if is_log else powers / total


@np.errstate(all="ignore")
def _softmax_backward_numpy(grad: Array, result: Array, out: Array, is_log: bool) -> None:
    if is_log:
        out[...] = grad - np.exp(result) * grad.sum(axis=1, keepdims=True)
    else:
        out[...] = result * (grad - (grad * result).sum(axis=1, keepdims=True))


@np.errstate(all="ignore")
def _log_sum_exp_numpy(x: Array, lse: Array) -> None:
    if x.size:
        highest = x.max(axis=1, keepdims=True)
        lse[...] = np.log(np.exp(x - highest).sum(axis=1)) + highest[:, 0]


@np.errstate(all="ignore")
def _scaled_softmax_numpy(x: Array, lse: Array, factor: Array, out: Array) -> None:
    out[...] = np.exp(x - lse[:, None]) * factor[:, None]


@jit
def _softmax_loop(
    x: Any,
    out: Any,
    highest: Any,
    total: Any,
    part: Any,
    is_log: bool,
    tiles: int,
    start: int,
    stop: int,
) -> None:
    for item in range(start, stop):
        n = item // tiles
        first = item % tiles * _TILE
        last = min(first + _TILE, x.shape[2])
        most = highest[n, first:last]
        sums = total[n, first:last]
        few = part[n, first:last]
        most[:] = x[n, 0, first:last]
        for c in range(1, x.shape[1]):
            row = x[n, c, first:last]
            for j in range(row.size):
                most[j] = row[j] if row[j] > most[j] else most[j]
        sums[:] = 0
        for begin in range(0, x.shape[1], _CLASSES):
            few[:] = 0
            for c in range(begin, min(begin + _CLASSES, x.shape[1])):
                row = x[n, c, first:last]
                powers = out[n, c, first:last]
                for j in range(row.size):
                    power = exp(row[j] - most[j])
                    powers[j] = power
                    few[j] += power
            for j in range(few.size):
                sums[j] += few[j]
        if is_log:
            for j in range(sums.size):
                sums[j] = np.log(sums[j])
            for c in range(x.shape[1]):
                row = x[n, c, first:last]
                logs = out[n, c, first:last]
                for j in range(row.size):
                    logs[j] = log_share(row[j], most[j], sums[j])
        else:
            for j in range(sums.size):
                sums[j] = 1 / sums[j]
            for c in range(x.shape[1]):
                powers = out[n, c, first:last]
                for j in range(powers.size):
                    powers[j] *= sums[j]


@jit
def _softmax_backward_loop(
    grad: Any,
    result: Any,
    out: Any,
    total: Any,
    part: Any,
    is_log: bool,
    tiles: int,
    start: int,
    stop: int,
) -> None:
    for item in range(start, stop):
        n = item // tiles
        first = item % tiles * _TILE
        last = min(first + _TILE, result.shape[2])
        sums = total[n, first:last]
        few = part[n, first:last]
        sums[:] = 0
        for begin in range(0, result.shape[1], _CLASSES):
            few[:] = 0
            for c in range(begin, min(begin + _CLASSES, result.shape[1])):
                g = grad[n, c, first:last]
                y = result[n, c, first:last]
                if is_log:
                    for j in range(g.size):
                        few[j] += g[j]
                else:
                    for j in range(g.size):
                        few[j] += g[j] * y[j]
            for j in range(few.size):
                sums[j] += few[j]
        for c in range(result.shape[1]):
            g = grad[n, c, first:last]
            y = result[n, c, first:last]
            d = out[n, c, first:last]
            if is_log:
                for j in range(g.size):
                    d[j] = g[j] - exp(y[j]) * sums[j]
            else:
                for j in range(g.size):
                    d[j] = y[j] * (g[j] - sums[j])


@jit
def _log_sum_exp_loop(
    x: Any, lse: Any, highest: Any, part: Any, tiles: int, start: int, stop: int
) -> None:
    for item in range(start, stop):
        n = item // tiles
        first = item % tiles * _TILE
        last = min(first + _TILE, x.shape[2])
        most = highest[n, first:last]
        few = part[n, first:last]
        sums = lse[n, first:last]
        most[:] = x[n, 0, first:last]
        for c in range(1, x.shape[1]):
            row = x[n, c, first:last]
            for j in range(row.size):
                most[j] = row[j] if row[j] > most[j] else most[j]
        sums[:] = 0
        for begin in range(0, x.shape[1], _CLASSES):
            few[:] = 0
            for c in range(begin, min(begin + _CLASSES, x.shape[1])):
                row = x[n, c, first:last]
                for j in range(row.size):
                    few[j] += exp(row[j] - most[j])
            for j in range(few.size):
                sums[j] += few[j]
        for j in range(sums.size):
            sums[j] = np.log(sums[j]) + most[j]


@jit
def _scaled_softmax_loop(
    x: Any, lse: Any, factor: Any, out: Any, tiles: int, start: int, stop: int
) -> None:
    for item in range(start, stop):
        n = item // tiles
        first = item % tiles * _TILE
        last = min(first + _TILE, x.shape[2])
        sums = lse[n, first:last]
        scale = factor[n, first:last]
        for c in range(x.shape[1]):
            row = x[n, c, first:last]
            d = out[n, c, first:last]
            for j in range(row.size):
                d[j] = exp(row[j] - sums[j]) * scale[j]
