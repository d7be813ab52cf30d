"""The loops of `_batch_norm`: over channels that are runs of numbers, or columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._arrays import SUM_BLOCK, SUM_ROWS
from offgrad.kernels._jit import jit


@jit
def planes_loop(
    x: Any,
    weight: Any,
    bias: Any,
    eps: Any,
    out: Any,
    mean: Any,
    invstd: Any,
    variance: Any,
    sums: Any,
    tile: int,
    start: int,
    stop: int,
) -> None:
    number = x.dtype.type
    near = sums[0]
    total = sums[1]
    squares = sums[2]
    count = x.shape[0] * x.shape[2]
    for first in range(start, stop, tile):
        last = min(first + tile, stop)
        if variance.size > 0 and count > 0:
            for c in range(first, last):
                # Sums of differences from a number near the mean: squares keep their digits.
                plane = x[0, c]
                part = number(0)
                for j in range(plane.size):
                    part += plane[j]
                near[c] = part / number(plane.size)
                total[c] = 0.0
                squares[c] = 0.0
            for n in range(x.shape[0]):
                for c in range(first, last):
                    plane = x[n, c]
                    centre = number(near[c])
                    for begin in range(0, plane.size, SUM_BLOCK):
                        block = plane[begin : begin + SUM_BLOCK]
                        part = number(0)
                        square = number(0)
                        for j in range(block.size):
                            difference = block[j] - centre
                            part += difference
                            square += difference * difference
                        total[c] += part
                        squares[c] += square
            for c in range(first, last):
                shift = total[c] / count
                mean[c] = number(number(near[c]) + shift)
                spread = squares[c] / count - shift * shift
                # NaN stays.
                variance[c] = number(0) if spread < 0 else number(spread)
                invstd[c] = number(1) / number(np.sqrt(variance[c] + eps))
        for n in range(x.shape[0]):
            for c in range(first, last):
                m = mean[c]
                scale = invstd[c] * weight[c]
                b = bias[c]
                row = x[n, c]
                y = out[n, c]
                for j in range(row.size):
                    y[j] = (row[j] - m) * scale + b


@jit
def planes_backward_loop(
    grad: Any,
    x: Any,
    weight: Any,
    mean: Any,
    invstd: Any,
    dx: Any,
    dweight: Any,
    dbias: Any,
    training: bool,
    sums: Any,
    tile: int,
    start: int,
    stop: int,
) -> None:
    number = x.dtype.type
    total = sums[0]
    product = sums[1]
    count = number(x.shape[0] * x.shape[2])
    for first in range(start, stop, tile):
        last = min(first + tile, stop)
        for c in range(first, last):
            total[c] = 0.0
            product[c] = 0.0
        for n in range(x.shape[0]):
            for c in range(first, last):
                g = grad[n, c]
                row = x[n, c]
                m = mean[c]
                for begin in range(0, row.size, SUM_BLOCK):
                    block = row[begin : begin + SUM_BLOCK]
                    grads = g[begin : begin + SUM_BLOCK]
                    part = number(0)
                    products = number(0)
                    for j in range(block.size):
                        part += grads[j]
                        products += grads[j] * (block[j] - m)
                    total[c] += part
                    product[c] += products
        for c in range(first, last):
            dweight[c] = number(product[c]) * invstd[c]
            dbias[c] = number(total[c])
        for n in range(x.shape[0] if dx.size > 0 else 0):
            for c in range(first, last):
                m = mean[c]
                r = invstd[c]
                scale = weight[c] * r
                average = dbias[c] / count if training else number(0)
                slope = dweight[c] * r / count if training else number(0)
                g = grad[n, c]
                row = x[n, c]
                d = dx[n, c]
                for j in range(row.size):
                    d[j] = (g[j] - average - (row[j] - m) * slope) * scale


@jit
def column_spreads_loop(x: Any, near: Any, parts: Any, width: int, start: int, stop: int) -> None:
    """Sums of differences from `near`, and of their squares, over blocks of some columns."""
    strips = -(-x.shape[1] // width)
    for index in range(start, stop):
        block = index // strips
        first = index % strips * width
        last = min(first + width, x.shape[1])
        centre = near[first:last]
        part = parts[0, block, first:last]
        square = parts[1, block, first:last]
        part[:] = 0
        square[:] = 0
        for i in range(block * SUM_ROWS, min((block + 1) * SUM_ROWS, x.shape[0])):
            row = x[i, first:last]
            for j in range(row.size):
                difference = row[j] - centre[j]
                part[j] += difference
                square[j] += difference * difference


@jit
def columns_loop(x: Any, scale: Any, bias: Any, mean: Any, out: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        row = x[i]
        y = out[i]
        for j in range(row.size):
            y[j] = (row[j] - mean[j]) * scale[j] + bias[j]


@jit
def column_products_loop(
    grad: Any, x: Any, mean: Any, parts: Any, width: int, start: int, stop: int
) -> None:
    """Sums of `grad`, and of `grad` times x - mean, over blocks of some columns."""
    strips = -(-x.shape[1] // width)
    for index in range(start, stop):
        block = index // strips
        first = index % strips * width
        last = min(first + width, x.shape[1])
        m = mean[first:last]
        part = parts[0, block, first:last]
        products = parts[1, block, first:last]
        part[:] = 0
        products[:] = 0
        for i in range(block * SUM_ROWS, min((block + 1) * SUM_ROWS, x.shape[0])):
            g = grad[i, first:last]
            row = x[i, first:last]
            for j in range(row.size):
                part[j] += g[j]
                products[j] += g[j] * (row[j] - m[j])


@jit
def columns_backward_loop(
    grad: Any,
    x: Any,
    scale: Any,
    mean: Any,
    means: Any,
    slopes: Any,
    dx: Any,
    start: int,
    stop: int,
) -> None:
    for i in range(start, stop):
        g = grad[i]
        row = x[i]
        d = dx[i]
        for j in range(row.size):
            d[j] = (g[j] - means[j] - (row[j] - mean[j]) * slopes[j]) * scale[j]
