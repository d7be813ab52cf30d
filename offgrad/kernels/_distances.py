"""Distances between the rows of two matrices, without an array of all differences."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import parallel_for
from offgrad.kernels._products import matmul


def distances(x: Array, y: Array, p: float, out: Array) -> None:
    """Write the p-norms of ``x[i] - y[j]`` into `out`: x [B, N, M], y [B, R, M], out [B, N, R].

    All are C-contiguous, float32 or float64.
    """
    if not x.size or not y.size:
        out.fill(0)
        return
    body = _distances_loop if uses_numba(x, y, out) else _distances_numpy
    parallel_for(partial(body, x, y, out, _power(p, x)), *_rows_and_cost(x, y))


def distances_backward(
    grad: Array, x: Array, y: Array, distances: Array, p: float, dx: Array
) -> None:
    """Write the gradient of x into `dx` [B, N, M], given that of the distances [B, N, R].

    A distance of 0 has gradient 0.
    """
    arrays = grad, x, y, distances, dx
    if not x.size or not y.size:
        dx.fill(0)
        return
    body = _gradient_loop if uses_numba(*arrays) else _gradient_numpy
    parallel_for(partial(body, *arrays, _power(p, x)), *_rows_and_cost(x, y))


def _power(p: float, x: Array) -> float:
    """Return p as a number of the arrays' dtype, perhaps infinite."""
    with np.errstate(over="ignore"):
        return float(x.dtype.type(p))


def _rows_and_cost(x: Array, y: Array) -> tuple[int, int]:
    return x.shape[0] * x.shape[1], y.shape[1] * y.shape[2]


def euclidean_distances(x: Array, y: Array, out: Array) -> None:
    """Write the 2-norms of ``x[i] - y[j]`` into `out`, by a product of the matrices.

    From |x|^2 + |y|^2 - 2 xy: distances far below the norms of the rows lose digits. The arrays are
    those of `distances`.
    """
    matmul(x, y.swapaxes(1, 2), out)
    a, b = (np.einsum("bij,bij->bi", each, each) for each in (x, y))
    body: Any = _from_products_loop if uses_numba(out) else _from_products_numpy
    parallel_for(partial(body, a, b, out), out.shape[0] * out.shape[1], out.shape[2])


@jit
def _from_products_loop(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    number = out.dtype.type
    rows = out.shape[1]
    for at in range(start, stop):
        batch, i = at // rows, at % rows
        row, first, second = out[batch, i], a[batch, i], b[batch]
        for j in range(row.size):
            square = (first + second[j]) - number(2) * row[j]
            row[j] = np.sqrt(number(0) if square < number(0) else square)


def _from_products_numpy(a: Array, b: Array, out: Array, start: int, stop: int) -> None:
    for at in range(start, stop):
        batch, i = divmod(at, out.shape[1])
        row = out[batch, i]
        np.sqrt(np.maximum(a[batch, i] + b[batch] - 2 * row, 0), out=row)


@jit
def _distances_loop(x: Any, y: Any, out: Any, p: float, start: int, stop: int) -> None:
    number = x.dtype.type
    zero, one, power = number(0), number(1), number(p)
    rows = x.shape[1]
    for at in range(start, stop):
        batch, i = at // rows, at % rows
        a, others, row = x[batch, i], y[batch], out[batch, i]
        for j in range(row.size):
            b, total = others[j], zero
            if p == 2:
                for k in range(a.size):
                    total += (a[k] - b[k]) * (a[k] - b[k])
                total = np.sqrt(total)
            elif p == 1:
                for k in range(a.size):
                    total += abs(a[k] - b[k])
            elif p == inf:
                for k in range(a.size):
                    size = abs(a[k] - b[k])
                    total = total if size <= total or total != total else size  # NaN stays
            elif p == 0:
                for k in range(a.size):
                    total += zero if a[k] - b[k] == zero else one
            else:
                for k in range(a.size):
                    total += abs(a[k] - b[k]) ** power
                total **= one / power
            row[j] = total


def _distances_numpy(x: Array, y: Array, out: Array, p: float, start: int, stop: int) -> None:
    for at in range(start, stop):
        batch, i = divmod(at, x.shape[1])
        out[batch, i] = np.linalg.norm(x[batch, i] - y[batch], p, axis=-1)


@jit
def _gradient_loop(
    grad: Any, x: Any, y: Any, distances: Any, dx: Any, p: float, start: int, stop: int
) -> None:
    number = x.dtype.type
    zero, power = number(0), number(p - 1)
    rows = x.shape[1]
    for at in range(start, stop):
        batch, i = at // rows, at % rows
        a, others, to = x[batch, i], y[batch], dx[batch, i]
        to[:] = 0
        for j in range(others.shape[0]):
            distance, factor, b = distances[batch, i, j], grad[batch, i, j], others[j]
            if distance == 0:
                continue
            if distance != distance:  # a NaN stays, in all coordinates
                to += distance
            elif p == 2:
                factor /= distance
                for k in range(a.size):
                    to[k] += factor * (a[k] - b[k])
            elif p == 1:
                for k in range(a.size):
                    to[k] += factor * np.sign(a[k] - b[k])
            elif p == inf:
                for k in range(a.size):
                    difference = a[k] - b[k]
                    to[k] += factor * np.sign(difference) if abs(difference) == distance else zero
            elif p > 0:
                factor /= distance**power
                for k in range(a.size):
                    difference = a[k] - b[k]
                    slope = np.sign(difference) * abs(difference) ** power
                    to[k] += factor * slope if difference != 0 else zero


@np.errstate(all="ignore")
def _gradient_numpy(
    grad: Array, x: Array, y: Array, distances: Array, dx: Array, p: float, start: int, stop: int
) -> None:
    for at in range(start, stop):
        batch, i = divmod(at, x.shape[1])
        difference = x[batch, i] - y[batch]
        distance, factor = distances[batch, i][:, None], grad[batch, i][:, None]
        sign, size = np.sign(difference), np.abs(difference)
        if p == inf:
            slopes = sign * (size == distance)
        elif p == 0:
            slopes = np.zeros_like(sign)
        else:
            slopes = sign * np.where(size == 0, 1, size) ** (p - 1) / distance ** (p - 1)
        slopes = np.where(np.isnan(distance), np.nan, factor * slopes)
        dx[batch, i] = np.where(distance == 0, 0, slopes).sum(0)
