"""Reductions over dimensions, on several threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from offgrad.kernels import _arrays
from offgrad.kernels._arrays import SUM_BLOCK, SUM_ROWS, Array, is_half, rows
from offgrad.kernels._chunks import CHUNK, in_chunks, scratch
from offgrad.kernels._halves import as_float, convert, in_float32
from offgrad.kernels._jit import inlined, jit, uses_numba
from offgrad.kernels._parallel import BLOCK, parallel_for

Reduce = Callable[..., Any]

_MIN_COLUMNS = 64
_BLOCK_ROWS, _BLOCK_COLUMNS = 128, 256  # of the sums of columns that a thread adds up at once
_PART = 4 * BLOCK


def sum_axes(
    x: Array, axes: tuple[int, ...], keepdims: bool = False, out: Array | None = None
) -> Array:
    """The sum of `x` over `axes`, written into `out` if given; in its dtype, else that of x.

    Sizes and strides alone decide the order of the additions. 16-bit floats are added up in
    float32.
    """
    kind = x.dtype if out is None else out.dtype
    if is_half(kind):
        result = np.empty(_reduced_shape(x, axes, keepdims), kind) if out is None else out
        total = np.empty(result.shape, np.float32)
        convert(sum_axes(as_float(x), axes, keepdims, total), result)
        return result
    x = as_float(x)
    if x.size <= BLOCK:
        return _arrays.sum_axes(x, axes, keepdims, out)
    if x.dtype != kind or kind.kind not in "fc" or kind.itemsize < 4:
        return _arrays.sum_axes(x, axes, keepdims, out)
    if out is None:
        out = np.empty(_reduced_shape(x, axes, keepdims), kind)
    if x.flags.c_contiguous and out.flags.c_contiguous and uses_numba(x):
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        if kept == list(range(len(kept))):
            _sum_last(x.reshape(prod(x.shape[: len(kept)]), -1), out.reshape(-1))
            return out
        if x.ndim - 1 in axes:  # the last dimensions first
            most = x.shape[: kept[-1] + 1]
            sums = np.empty(most, kind)
            _sum_last(x.reshape(prod(most), -1), sums.reshape(-1))
            rest = tuple([axis for axis in axes if axis < len(most)])
            sum_axes(sums, rest, False, out.reshape([x.shape[axis] for axis in kept]))
            return out
        if kept == list(range(x.ndim - len(kept), x.ndim)):
            width = prod(x.shape[len(axes) :])
            sum_rows(x.reshape(-1, width), out.reshape(width))
            return out
        first, last = min(axes), max(axes) + 1
        if last - first == len(axes) and prod(x.shape[first:last]) <= SUM_ROWS:
            _sum_planes(x, first, last, out)
            return out
    wide = np.complex128 if kind.kind == "c" else np.float64
    reduce_axes(
        lambda part, axis, out: _arrays.sum_axes(part, axis, False, out),
        x,
        axes,
        out,
        lambda parts: parts.sum(dtype=wide),
    )
    return out


def _sum_planes(x: Array, first: int, last: int, out: Array) -> None:
    """Write the sum over the dimensions `first` to ``last - 1``, of at most SUM_ROWS rows."""
    planes, width = prod(x.shape[:first]), prod(x.shape[last:])
    a, o = x.reshape(planes, -1, width), out.reshape(planes, width)
    parallel_for(
        partial(_plane_sums_loop, a, o),
        planes,
        a.shape[1] * width // 4,
        merge=True,
    )


def _sum_last(x: Array, out: Array) -> None:
    """Write the sum of each row of a matrix into `out`."""
    count, cols = x.shape
    parts = max(1, cols // _PART)
    if parts == 1:
        parallel_for(partial(_part_sums_loop, x, out, 1), count, cols // 4, merge=True)
        return
    # Long rows: the sums of their parts first.
    sums = np.empty((count, parts), x.dtype)
    parallel_for(partial(_part_sums_loop, x, sums.reshape(-1), parts), sums.size, BLOCK, merge=True)
    out[...] = sums.sum(axis=1, dtype=np.float64)


@in_float32("out")
def prod_axes(x: Array, axes: tuple[int, ...], keepdims: bool, out: Array) -> None:
    """Write the product of `x` over `axes` into `out`, in its dtype.

    That of float32 rows is computed in float64, in the order of the elements: products of parts
    may overflow, or vanish, where the whole does not.
    """
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    if (
        x.size <= BLOCK
        or kept != list(range(len(kept)))
        or not x.flags.c_contiguous
        or x.dtype != np.float32
        or not uses_numba(x, out)
    ):
        np.prod(x, axis=axes, keepdims=keepdims, dtype=out.dtype, out=out)
        return
    a, o = x.reshape(prod(x.shape[: len(kept)]), -1), out.reshape(-1)
    parallel_for(partial(_products_loop, a, o), a.shape[0], a.shape[1], merge=True)


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
    if x.size <= BLOCK:
        reduce(x, axis=axes, keepdims=out.ndim == x.ndim, out=out)
        return
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    result = out.reshape([x.shape[axis] for axis in kept])
    at = _axis_to_divide(x, axes)
    if at is not None:
        before, out_before = (slice(None),) * at, (slice(None),) * kept.index(at)

        def part(start: int, stop: int) -> None:
            with np.errstate(all="ignore"):
                reduce(
                    x[(*before, slice(start, stop))],
                    axis=axes,
                    out=result[(*out_before, slice(start, stop))],
                )

        parallel_for(part, x.shape[at], x.size // x.shape[at] // 4)
    elif not kept and x.flags.c_contiguous:
        flat = x.reshape(-1)
        parts = np.empty(-(-x.size // _PART), out.dtype)

        def block(start: int, stop: int) -> None:
            for item in range(start, stop):
                with np.errstate(all="ignore"):
                    piece = flat[item * _PART : (item + 1) * _PART]
                    reduce(piece, axis=(0,), out=parts[item, ...])

        parallel_for(block, parts.size, BLOCK)
        if join is None:
            reduce(parts, axis=(0,), out=result)
        else:
            result[...] = join(parts)
    else:
        reduce(x, axis=axes, out=result)


def in_parts(body: Callable[[tuple[Any, ...]], None], x: Array, axes: tuple[int, ...]) -> None:
    """Call ``body(index)`` for parts of `x` that have the dimensions `axes` whole.

    On several threads if x is large and another dimension can be divided.
    """
    at = _axis_to_divide(x, axes) if x.size > BLOCK else None
    if at is None:
        body((...,))
        return
    before = (slice(None),) * at
    parallel_for(
        lambda start, stop: body((*before, slice(start, stop))),
        x.shape[at],
        x.size // x.shape[at],
    )


def _axis_to_divide(x: Array, axes: tuple[int, ...]) -> int | None:
    """The first dimension not among `axes` that is long enough; None if there is none.

    A part of the contiguous dimension has whole lines of the cache.
    """
    for axis, (size, stride) in enumerate(zip(x.shape, x.strides, strict=True)):
        if axis not in axes and size >= (_MIN_COLUMNS if abs(stride) == x.itemsize else 2):
            return axis
    return None


def _reduced_shape(x: Array, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple([1 if axis in axes else size for axis, size in enumerate(x.shape)])
    return tuple([size for axis, size in enumerate(x.shape) if axis not in axes])


@in_float32()
def arg_extreme(find: Reduce, x: Array) -> Array:
    """The indices that np.argmax or np.argmin, `find`, returns along the last axis."""
    table = rows(x)
    out = np.empty(len(table), np.int64)
    parallel_for(
        lambda a, b: find(table[a:b], axis=-1, out=out[a:b]), len(table), table.shape[1] // 4
    )
    return out.reshape(x.shape[:-1])


def log_sum_exp(x: Array, out: Array) -> None:
    """Write log(sum(exp(x))) of each row into `out`: x [..., C] not empty, out [...].

    Without overflow; -inf of a row of -inf.
    """
    a, result = rows(x), out.reshape(-1)
    count, cols = a.shape
    if cols > 2 * CHUNK:  # of each row first the parts
        parts = -(-cols // CHUNK)
        sums = np.empty((count, parts), a.dtype)
        parallel_for(
            lambda start, stop: _log_sum_exp_parts(a, sums, start, stop), count * parts, CHUNK
        )
        log_sum_exp(sums, out)
        return

    def reduce(start: int, stop: int) -> None:
        part = a[start:stop]
        highest = part.max(axis=1)
        highest = np.where(np.isfinite(highest), highest, highest.dtype.type(0))
        powers = scratch(0, part.size, a.dtype).reshape(part.shape)
        np.subtract(part, highest[:, None], out=powers)
        np.exp(powers, out=powers)
        np.log(powers.sum(axis=1), out=result[start:stop])
        result[start:stop] += highest

    if x.size <= CHUNK:
        with np.errstate(all="ignore"):
            reduce(0, count)
    else:
        in_chunks(reduce, count, cols)


def _log_sum_exp_parts(x: Array, out: Array, start: int, stop: int) -> None:
    parts = out.shape[1]
    for item in range(start, stop):
        row, part = divmod(item, parts)
        piece = x[row, part * CHUNK : (part + 1) * CHUNK]
        log_sum_exp(piece.reshape(1, -1), out[row, part : part + 1])


def log_sum_exp_backward(grad: Array, x: Array, result: Array, out: Array) -> None:
    """Write ``grad * exp(x - result)`` into `out`: x and out [..., C], grad and result [...]."""
    a, o = rows(x), rows(out)
    g, r = grad.reshape(-1, 1), result.reshape(-1, 1)

    def write(block: Array, result: Array, grad: Array, part: Array) -> None:
        np.subtract(block, result, out=part)
        np.exp(part, out=part)
        np.multiply(part, grad, out=part)

    if a.shape[1] > 2 * CHUNK:
        for row in range(len(a)):
            pieces = a[row], r[row], g[row], o[row]
            in_chunks(_of_columns(write, *pieces), a.shape[1])
        return
    in_chunks(lambda i, j: write(a[i:j], r[i:j], g[i:j], o[i:j]), len(a), a.shape[1])


def _of_columns(write: Any, row: Array, result: Array, grad: Array, out: Array) -> Any:
    return lambda i, j: write(row[i:j], result, grad, out[i:j])


_FEW_ROWS, _FEW_ELEMENTS = 64, 8192  # which NumPy adds up, row by row, before a loop has begun


@in_float32("out")
def sum_rows(x: Array, out: Array) -> None:
    """Write the sum of x's rows into `out`: x [..., C], out [C]; 0 without rows.

    Sums of fixed blocks of rows and columns, and then of the blocks: the bits do not depend on the
    number of threads, nor on BLAS, whose `ones @ x` is as fast.
    """
    a = rows(x)
    count, cols = a.shape
    if out.shape != (cols,):
        raise ValueError(
            f"sum_rows' out must have one element per column ({cols}), got {out.shape}"
        )
    if count <= _FEW_ROWS and a.size <= _FEW_ELEMENTS and a.dtype == out.dtype:
        _add_up_few(a, out)
        return
    if not uses_numba(a, out):
        _sum_rows_numpy(a, out)
        return
    turns = _BLOCK_COLUMNS // max(1, cols)
    if turns > 1 and count >= 4 * turns:  # several narrow rows as one
        whole = count // turns * turns
        sums = np.empty((turns + count - whole, cols), out.dtype)
        sum_rows(a[:whole].reshape(-1, turns * cols), sums[:turns].reshape(-1))
        sums[turns:] = a[whole:]
        sum_rows(sums, out)
        return
    width = max(1, min(cols, _BLOCK_COLUMNS))
    down, across = max(1, -(-count // _BLOCK_ROWS)), -(-cols // width)
    sums = out.reshape(1, cols) if down == 1 else np.empty((down, cols), out.dtype)
    loop: Any = partial(_block_sums_loop, a, sums, width)
    parallel_for(loop, down * across, min(count, _BLOCK_ROWS) * width, merge=True)
    if down > 1:
        sum_rows(sums, out)


@np.errstate(all="ignore")
def _add_up_few(x: Array, out: Array) -> None:
    np.add.reduce(x, axis=0, out=out)


@np.errstate(all="ignore")
def _sum_rows_numpy(x: Array, out: Array) -> None:
    out[...] = _arrays.sum_axes(x, (0,))


@inlined
def _add_rows(x: Any, top: int, bottom: int, left: int, total: Any) -> None:
    """Add rows of x, from the column `left` on, to `total`: four for each time it is loaded."""
    right, first = left + total.size, top
    while first + 4 <= bottom:
        a, b = x[first, left:right], x[first + 1, left:right]
        c, d = x[first + 2, left:right], x[first + 3, left:right]
        for j in range(total.size):
            total[j] += (a[j] + b[j]) + (c[j] + d[j])
        first += 4
    for last in range(first, bottom):
        a = x[last, left:right]
        for j in range(total.size):
            total[j] += a[j]


@jit
def _block_sums_loop(x: Any, sums: Any, width: int, start: int, stop: int) -> None:
    across = (x.shape[1] + width - 1) // width
    for item in range(start, stop):
        block, left = item // across, item % across * width
        total = sums[block, left : left + width]
        total[:] = 0
        top = block * _BLOCK_ROWS
        _add_rows(x, top, min(top + _BLOCK_ROWS, x.shape[0]), left, total)


@jit
def _plane_sums_loop(x: Any, out: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        total = out[i]
        total[:] = 0
        _add_rows(x[i], 0, x.shape[1], 0, total)


@jit
def _part_sums_loop(x: Any, out: Any, parts: int, start: int, stop: int) -> None:
    number = x.dtype.type
    cols = x.shape[1]
    for item in range(start, stop):
        at, part_of_row = item // parts, item % parts
        begin = part_of_row * _PART
        row = x[at, begin : cols if part_of_row == parts - 1 else begin + _PART]
        total = 0.0
        for first in range(0, row.size, SUM_BLOCK):
            block = row[first : first + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += block[j]
            total += part
        out[item] = total


@inlined
def _times(total: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """Return a product, in this order: a helper's arithmetic is not rearranged.

    In float64 the product of eight float32 numbers cannot overflow.
    """
    return total * (((a * b) * (c * d)) * ((e * f) * (g * h)))


@jit
def _products_loop(x: Any, out: Any, start: int, stop: int) -> None:
    number = np.float64
    for i in range(start, stop):
        row = x[i]
        total = 1.0
        whole = row.size - row.size % 8
        for j in range(0, whole, 8):
            total = _times(
                total,
                number(row[j]),
                number(row[j + 1]),
                number(row[j + 2]),
                number(row[j + 3]),
                number(row[j + 4]),
                number(row[j + 5]),
                number(row[j + 6]),
                number(row[j + 7]),
            )
        for j in range(whole, row.size):
            total = _times(total, number(row[j]), 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
        out[i] = total
