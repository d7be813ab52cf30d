"""Scans along rows in which each element depends on the one before it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array, rows
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import BLOCK, parallel_for


def has_scans(*arrays: Array) -> bool:
    """Whether the scans of this module take these arrays: large, real and compiled."""
    return arrays[0].size > BLOCK and uses_numba(*arrays)


def running_extreme(x: Array, out: Array, largest: bool) -> None:
    """Write the index of the maximum, or minimum, up to each element of a row into `out`.

    Args:
        x: C-contiguous [..., C] for which `has_scans` is true.
        out: int64, of x's shape.
        largest: whether maxima are searched.

    Of equal elements it is the last; NaN is extreme.
    """
    a, o = rows(x), rows(out)
    sign = x.dtype.type(1 if largest else -1)
    parallel_for(partial(_extreme_loop, a, o, sign), a.shape[0], a.shape[1], merge=True)


def log_cumsum_exp(x: Array, out: Array) -> None:
    """Write the logarithm of the cumulative sum of exp(x) of each row into `out`, of x's shape.

    `has_scans` must be true. Sums are kept in float64, relative to the largest element so far.
    """
    a, o = rows(x), rows(out)
    parallel_for(partial(_log_cumsum_exp_loop, a, o), a.shape[0], a.shape[1], merge=True)


def cumprod(x: Array, out: Array) -> None:
    """Write the cumulative product of each row into `out`, of x's shape; in float64.

    `has_scans` must be true.
    """
    a, o = rows(x), rows(out)
    parallel_for(partial(_cumprod_loop, a, o), a.shape[0], a.shape[1], merge=True)


def recurrence(b: Array, a: Array, out: Array) -> None:
    """Write s[j] = b[j] + a[j] s[j - 1] along each row into `out`; s[-1] is 0.

    All are C-contiguous, of one shape and dtype; `has_scans` must be true.
    """
    arrays = rows(b), rows(a), rows(out)
    parallel_for(
        partial(_recurrence_loop, *arrays), arrays[0].shape[0], arrays[0].shape[1], merge=True
    )


@jit
def _extreme_loop(x: Any, out: Any, sign: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        row = x[i]
        at = out[i]
        best = row[0] * sign
        index = 0
        for j in range(row.size):
            value = row[j] * sign
            if value >= best or value != value:
                best = value
                index = j
            at[j] = index


@jit
def _log_cumsum_exp_loop(x: Any, out: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        row = x[i]
        logs = out[i]
        highest = -np.inf
        total = 0.0
        for j in range(row.size):
            value = np.float64(row[j])
            if value > highest:
                total = total * math.exp(highest - value) + 1.0
                highest = value
            elif value == highest:  # both may be infinite
                total += 1.0
            else:
                total += math.exp(value - highest)
            logs[j] = highest + math.log(total)


@jit
def _cumprod_loop(x: Any, out: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        row = x[i]
        products = out[i]
        total = 1.0
        for j in range(row.size):
            total *= row[j]
            products[j] = total


@jit
def _recurrence_loop(b: Any, a: Any, out: Any, start: int, stop: int) -> None:
    number = b.dtype.type
    for i in range(start, stop):
        steps = b[i]
        factors = a[i]
        sums = out[i]
        last = number(0)
        for j in range(steps.size):
            # The first one has no predecessor: its factor, which may be infinite, does not count.
            last = steps[j] + (factors[j] * last if j else number(0))
            sums[j] = last
