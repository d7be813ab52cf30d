"""Factors and solutions of many small matrices at once, a column after the other.

LAPACK takes one matrix a call, and a call from Python takes longer than a small matrix.
"""

from math import prod
from typing import Any

import numpy as np

from offgrad.autograd.op import Array
from offgrad.memory.meta import MetaArray

_MAX_SIZE = 64
_MIN_PER_COLUMN = 8
"""A step over all matrices takes about as long as so many calls of LAPACK."""


def are_many_and_small(matrices: Array) -> bool:
    """Return whether the functions below are faster than LAPACK called for each matrix."""
    size = max(matrices.shape[-2:])
    return (
        type(matrices) is not MetaArray
        and min(matrices.shape[-2:]) > 0
        and size <= _MAX_SIZE
        and prod(matrices.shape[:-2]) >= _MIN_PER_COLUMN * size
    )


@np.errstate(all="ignore")
def substituted(a: Array, b: Array, upper: bool, unitriangular: bool) -> Array:
    """Return X with A X = B for triangular A; a zero on the diagonal gives infinities and NaN.

    Args:
        a: [..., n, n], of which one triangle is read.
        b: [..., n, k].
        upper: which triangle.
        unitriangular: whether the diagonal counts as ones.
    """
    out = np.array(b)
    order = range(a.shape[-1])
    for i in reversed(order) if upper else order:
        row = out[..., i : i + 1, :]
        if not unitriangular:
            row /= a[..., i : i + 1, i : i + 1]
        rest = slice(0, i) if upper else slice(i + 1, None)
        out[..., rest, :] -= a[..., rest, i : i + 1] * row
    return out


@np.errstate(all="ignore")
def cholesky(matrices: Array) -> tuple[Array, Array]:
    """Return lower Cholesky factors, and for each the order of a minor that is not positive, or 0.

    Args:
        matrices: [..., n, n], of which the lower triangle is read.
    """
    factor = np.tril(matrices)
    info = np.zeros(matrices.shape[:-2], np.int32)
    for j in range(matrices.shape[-1]):
        pivot = factor[..., j, j].real.copy()
        info[~(pivot > 0) & (info == 0)] = j + 1
        root = np.sqrt(pivot)
        factor[..., j, j] = root
        column = factor[..., j + 1 :, j : j + 1]
        column /= root[..., None, None]
        factor[..., j + 1 :, j + 1 :] -= np.tril(column * column.swapaxes(-1, -2).conj())
    return factor, info


@np.errstate(all="ignore")
def lu(matrices: Array) -> tuple[Array, Array, Array]:
    """Return LU factors with row exchanges: factors, pivots from 1, and the first zero pivot or 0.

    Args:
        matrices: [..., m, n].
    """
    *batch, rows, columns = matrices.shape
    factor = np.array(matrices).reshape(-1, rows, columns)
    steps, count = min(rows, columns), np.arange(len(factor))
    pivots = np.empty((len(factor), steps), np.int32)
    info = np.zeros(len(factor), np.int32)
    for k in range(steps):
        place = k + _magnitude(factor[:, k:, k]).argmax(-1)
        pivots[:, k] = place + 1
        chosen = factor[count, place]
        factor[count, place] = factor[:, k]
        factor[:, k] = chosen
        pivot = factor[:, k, k]
        is_zero = pivot == 0
        info[is_zero & (info == 0)] = k + 1
        below = factor[:, k + 1 :, k : k + 1]
        below /= np.where(is_zero, 1, pivot)[:, None, None]
        factor[:, k + 1 :, k + 1 :] -= below * factor[:, k : k + 1, k + 1 :]
    return (
        factor.reshape(matrices.shape),
        pivots.reshape(*batch, steps),
        info.reshape(tuple(batch)),
    )


def row_order(pivots: Array, size: int) -> Array:
    """Return [count, size] where each row goes by the exchanges `pivots` [count, steps], from 1."""
    order = np.broadcast_to(np.arange(size), (len(pivots), size)).copy()
    count = np.arange(len(pivots))
    for i in range(pivots.shape[1]):
        j = pivots[:, i] - 1
        order[:, i], order[count, j] = order[count, j], order[:, i].copy()
    return order


def _magnitude(values: Array) -> Any:
    """Return what LAPACK compares to choose a pivot."""
    if values.dtype.kind == "c":
        return np.abs(values.real) + np.abs(values.imag)
    return np.abs(values)
