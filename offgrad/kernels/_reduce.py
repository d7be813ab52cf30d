"""Reductions over dimensions, on several threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from offgrad.kernels import _arrays
from offgrad.kernels._arrays import SUM_ROWS, Array, as_float, rows
from offgrad.kernels._chunks import in_chunks, scratch
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import BLOCK, block_items, parallel_for

Reduce = Callable[..., Any]

_MIN_COLUMNS = 64


def sum_axes(
    x: Array, axes: tuple[int, ...], keepdims: bool = False, out: Array | None = None
) -> Array:
    """The sum of `x` over `axes`, written into `out` if given; in its dtype, else that of x.

    Sizes and strides alone decide the order of the additions.
    """
    kind = x.dtype if out is None else out.dtype
    if x.size <= BLOCK or x.dtype != kind or kind.kind not in "fc" or kind.itemsize < 4:
        return _arrays.sum_axes(x, axes, keepdims, out)
    if out is None:
        out = np.empty(_reduced_shape(x, axes, keepdims), kind)
    wide = np.complex128 if kind.kind == "c" else np.float64
    reduce_axes(
        lambda part, axis, out: _arrays.sum_axes(part, axis, False, out),
        x,
        axes,
        out,
        lambda parts: parts.sum(dtype=wide),
    )
    return out


def reduce_axes(
    reduce: Reduce, x: Array, axes: tuple[int, ...], out: Array, join: Reduce | None = None
) -> None:
    """Write the reduction of `x` over `axes` into `out`, with or without the reduced dimensions.

    Args:
        reduce: ``reduce(x, axis=..., out=...)`` reduces a part.
        x: not empty.
        axes: from the front.
        out: C-contiguous.
        join: reduces a vector of results of parts to one, None for `reduce`.

    A large x is divided along a dimension that stays; if none does, x is divided if contiguous.
    """
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    result = out.reshape([x.shape[axis] for axis in kept])
    if x.size <= BLOCK:
        reduce(x, axis=axes, out=result)
        return
    at = next((axis for axis in kept if x.shape[axis] >= _smallest(x, axis)), None)
    if at is not None:
        before, out_before = (slice(None),) * at, (slice(None),) * kept.index(at)

        def part(start: int, stop: int) -> None:
            with np.errstate(all="ignore"):
                reduce(
                    x[(*before, slice(start, stop))],
                    axis=axes,
                    out=result[(*out_before, slice(start, stop))],
                )

        parallel_for(part, x.shape[at], x.size // x.shape[at])
    elif not kept and x.flags.c_contiguous:
        flat, step = x.reshape(-1), block_items(1)
        parts = np.empty(-(-x.size // step), out.dtype)

        def block(start: int, stop: int) -> None:
            with np.errstate(all="ignore"):
                reduce(flat[start:stop], axis=(0,), out=parts[start // step, ...])

        parallel_for(block, flat.size)
        if join is None:
            reduce(parts, axis=(0,), out=result)
        else:
            result[...] = join(parts)
    else:
        reduce(x, axis=axes, out=result)


def _smallest(x: Array, axis: int) -> int:
    """The smallest size of a dimension that is divided: a part has whole lines of the cache."""
    return _MIN_COLUMNS if abs(x.strides[axis]) == x.itemsize else 2


def _reduced_shape(x: Array, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple([1 if axis in axes else size for axis, size in enumerate(x.shape)])
    return tuple([size for axis, size in enumerate(x.shape) if axis not in axes])


def arg_extreme(find: Reduce, x: Array) -> Array:
    """The indices that np.argmax or np.argmin, `find`, returns along the last axis."""
    table = rows(x)
    out = np.empty(len(table), np.int64)
    parallel_for(lambda a, b: find(table[a:b], axis=-1, out=out[a:b]), len(table), table.shape[1])
    return out.reshape(x.shape[:-1])


def log_sum_exp(x: Array, out: Array) -> None:
    """Write log(sum(exp(x))) of each row into `out`: x [..., C] not empty, out [...].

    Without overflow; -inf of a row of -inf.
    """
    a, result = rows(x), out.reshape(-1)
    cols = a.shape[1]

    def reduce(start: int, stop: int) -> None:
        part = a[start:stop]
        highest = part.max(axis=1)
        highest = np.where(np.isfinite(highest), highest, highest.dtype.type(0))
        powers = scratch(0, part.size, a.dtype).reshape(part.shape)
        np.subtract(part, highest[:, None], out=powers)
        np.exp(powers, out=powers)
        np.log(powers.sum(axis=1), out=result[start:stop])
        result[start:stop] += highest

    in_chunks(reduce, len(a), cols)


def log_sum_exp_backward(grad: Array, x: Array, result: Array, out: Array) -> None:
    """Write ``grad * exp(x - result)`` into `out`: x and out [..., C], grad and result [...]."""
    a, o = rows(x), rows(out)
    g, r = grad.reshape(-1, 1), result.reshape(-1, 1)

    def write(start: int, stop: int) -> None:
        part = o[start:stop]
        np.subtract(a[start:stop], r[start:stop], out=part)
        np.exp(part, out=part)
        np.multiply(part, g[start:stop], out=part)

    in_chunks(write, len(a), a.shape[1])


def sum_rows(x: Array, out: Array) -> None:
    """Write the sum of x's rows into `out`: x [..., C], out [C]; 0 without rows.

    Partial sums of fixed blocks of rows: the bits do not depend on the number of threads, nor on
    BLAS, whose `ones @ x` is as fast.
    """
    a = rows(x)
    count, cols = a.shape
    if out.shape != (cols,):
        raise ValueError(
            f"sum_rows' out must have one element per column ({cols}), got {out.shape}"
        )
    if not uses_numba(a, out):
        _sum_rows_numpy(a, out)
        return
    if count <= SUM_ROWS:
        out[...] = 0
        _sum_rows_loop(a, out.reshape(1, cols), 0, 0, count)
        return
    step = block_items(cols)
    parts = -(-min(step, count) // SUM_ROWS)
    sums = np.zeros((-(-count // step) * parts, cols), dtype=out.dtype)
    parallel_for(
        lambda start, stop: _sum_rows_loop(a, sums, start // step * parts, start, stop), count, cols
    )
    _arrays.sum_axes(sums, (0,), out=out)


@np.errstate(all="ignore")
def _sum_rows_numpy(x: Array, out: Array) -> None:
    out[...] = _arrays.sum_axes(as_float(x), (0,))


@jit
def _sum_rows_loop(x: Any, sums: Any, first_sum: int, start: int, stop: int) -> None:
    for i in range(start, stop):
        row = x[i]
        total = sums[first_sum + (i - start) // SUM_ROWS]
        for j in range(row.size):
            total[j] += row[j]
