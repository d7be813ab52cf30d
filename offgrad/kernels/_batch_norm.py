"""Batch normalisation: over all axes but that of the channels, and its gradients.

y = (x - mean) * invstd * weight + bias for each channel, with invstd = 1 / sqrt(variance + eps) and
the variance's divisor the number of elements of a channel. Backward needs x and the two statistics
of each channel.

Arrays are [N, C, L], whose channels consist of N runs of L numbers, or [R, C], whose channels are
columns. A channel's numbers stay in a core's cache between the pass that adds them up and the pass
that writes: both run over one channel before the next.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from offgrad.kernels._arrays import SUM_ROWS, Array, or_constant, same_shape
from offgrad.kernels._batch_norm_loops import (
    column_products_loop,
    column_spreads_loop,
    columns_backward_loop,
    columns_loop,
    planes_backward_loop,
    planes_loop,
)
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import Kernel, uses_numba
from offgrad.kernels._parallel import parallel_for

_TILE = 2048
"""Numbers of a sample, of one channel or several, that the loops pass over together."""

_COLUMNS = 256
"""Channels that are columns, and that one thread adds up."""


@in_float32("out")
def batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    out: Array,
    mean: Array,
    invstd: Array,
    variance: Array | None,
) -> None:
    """Write the normalised `x` into `out`.

    Args:
        x: [N, C, L] or [R, C] floats, C-contiguous; `out` has the same shape.
        weight: [C] factors, or None for 1.
        bias: [C] added, or None for 0.
        eps: Added to the variance.
        mean: [C], written; read if `variance` is None.
        invstd: As mean; 1 / sqrt(variance + eps).
        variance: [C], written; None to normalise with given statistics.
    """
    same_shape(x=x, out=out)
    statistics = [mean, invstd] if variance is None else [mean, invstd, variance]
    _check(x, weight, bias, *statistics)
    if not uses_numba(x, out, *statistics):
        _batch_norm_numpy(x, weight, bias, eps, out, mean, invstd, variance)
        return
    count, channels = x.size // max(1, x.shape[1]), x.shape[1]
    w, b = or_constant(weight, x.shape[1], x, 1), or_constant(bias, x.shape[1], x, 0)
    v = np.empty(0, x.dtype) if variance is None else variance
    small = x.dtype.type(eps)
    if x.ndim == 3:
        sums, tile = np.empty((3, channels), np.float64), _tile(x)
        body = partial(planes_loop, x, w, b, small, out, mean, invstd, v, sums, tile)
        parallel_for(body, channels, count, merge=True)
        return
    if variance is not None and count:
        # Sums of differences from a number near the mean: squares keep their digits.
        with np.errstate(all="ignore"):
            near = x[:16].mean(0, dtype=np.float64).astype(x.dtype)
            total, squares = _column_sums(column_spreads_loop, x, near)
            shift = total / count
            mean[...] = near + shift
            variance[...] = np.maximum(squares / count - shift * shift, 0)
            invstd[...] = 1 / np.sqrt(variance + small)
    scale = invstd * w
    parallel_for(partial(columns_loop, x, scale, b, mean, out), count, channels, merge=True)


@in_float32("dx", "dweight", "dbias")
def batch_norm_backward(
    grad: Array,
    x: Array,
    weight: Array | None,
    mean: Array,
    invstd: Array,
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
    training: bool,
) -> None:
    """Write the gradients of x, weight [C] and bias [C]; None skips one.

    Args:
        grad: of the shape of x.
        x: [N, C, L] or [R, C].
        weight: [C], or None for 1.
        mean: the forward's.
        invstd: the forward's.
        dx: as x.
        dweight: [C].
        dbias: [C].
        training: Whether the statistics are those of x, and not constants.
    """
    same_shape(grad=grad, x=x)
    _check(x, weight, None, mean, invstd)
    wanted = [array for array in (dx, dweight, dbias) if array is not None]
    if not uses_numba(grad, x, mean, invstd, *wanted):
        _batch_norm_backward_numpy(
            grad, x, weight, mean, invstd, dx, dweight, dbias, training=training
        )
        return
    count, channels = x.size // max(1, x.shape[1]), x.shape[1]
    w = or_constant(weight, x.shape[1], x, 1)
    dw = np.empty(channels, x.dtype) if dweight is None else dweight
    db = np.empty(channels, x.dtype) if dbias is None else dbias
    d = np.empty((0,) * x.ndim, x.dtype) if dx is None else dx
    if x.ndim == 3:
        totals, tile = np.empty((2, channels), np.float64), _tile(x)
        given = mean, invstd, d, dw, db, training, totals, tile
        parallel_for(partial(planes_backward_loop, grad, x, w, *given), channels, count, merge=True)
        return
    total, product = _column_sums(column_products_loop, grad, x, mean)
    with np.errstate(all="ignore"):
        dw[...], db[...] = product.astype(x.dtype) * invstd, total
    if dx is None or not x.size:
        return
    scale = w * invstd
    means = (db / x.dtype.type(count)) if training else np.zeros_like(db)
    slopes = (dw * invstd / x.dtype.type(count)) if training else means
    parallel_for(
        partial(columns_backward_loop, grad, x, scale, mean, means, slopes, dx),
        count,
        channels,
        merge=True,
    )


def _column_sums(loop: Kernel[..., None], *arrays: Array) -> Array:
    """Return the two sums of each column that `loop` adds up by blocks of rows: float64 [2, C]."""
    rows, channels = arrays[0].shape
    blocks, width = -(-rows // SUM_ROWS), min(channels, _COLUMNS)
    parts = np.empty((2, blocks, channels), arrays[0].dtype)
    parallel_for(
        partial(loop, *arrays, parts, width),
        blocks * -(-channels // max(1, width)),
        SUM_ROWS * width,
        merge=True,
    )
    sums: Array = parts.sum(1, dtype=np.float64)
    return sums


def _tile(x: Array) -> int:
    """How many channels to take together: neighbours in memory, if their planes are small."""
    width: int = x.shape[2]
    return max(1, _TILE // max(1, width))


def _check(x: Array, weight: Array | None, bias: Array | None, *statistics: Array) -> None:
    if x.ndim not in (2, 3) or not x.flags.c_contiguous:
        raise ValueError(
            f"batch_norm takes contiguous arrays [N, C, L] or [R, C], got shape {x.shape} with "
            f"strides {x.strides}"
        )
    for array in (weight, bias, *statistics):
        if array is not None and array.shape != x.shape[1:2]:
            raise ValueError(
                f"batch_norm's weight, bias and statistics must have one element per channel "
                f"({x.shape[1]}), got {array.shape}"
            )


def _by_channel(array: Array, x: Array) -> Array:
    """[C] as an array that broadcasts to x."""
    return array.reshape(array.size, *(1,) * (x.ndim - 2))


@np.errstate(all="ignore")
def _batch_norm_numpy(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    out: Array,
    mean: Array,
    invstd: Array,
    variance: Array | None,
) -> None:
    axes = (0, 2)[: x.ndim - 1]
    if variance is not None and x.size:
        m = x.mean(axes, dtype=np.float64)
        squares = np.square(x - _by_channel(m, x), dtype=np.float64)
        v = squares.mean(axes)
        mean[...], variance[...] = m, v
        invstd[...] = 1 / np.sqrt(v + eps)
    y = (x - _by_channel(mean, x)) * _by_channel(invstd, x)
    if weight is not None:
        y = y * _by_channel(weight, x)
    if bias is not None:
        y = y + _by_channel(bias, x)
    out[...] = y


@np.errstate(all="ignore")
def _batch_norm_backward_numpy(
    grad: Array,
    x: Array,
    weight: Array | None,
    mean: Array,
    invstd: Array,
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
    training: bool,
) -> None:
    g, axes = grad, (0, 2)[: x.ndim - 1]
    normal = (x - _by_channel(mean, x)) * _by_channel(invstd, x)
    total, product = g.sum(axes, dtype=np.float64), (g * normal).sum(axes, dtype=np.float64)
    if dweight is not None:
        dweight[...] = product
    if dbias is not None:
        dbias[...] = total
    if dx is None or not x.size:
        return
    if training:
        count = x.size // x.shape[1]
        g = g - _by_channel(total / count, x) - normal * _by_channel(product / count, x)
    scale = invstd if weight is None else invstd * weight
    dx[...] = g * _by_channel(scale, x)
