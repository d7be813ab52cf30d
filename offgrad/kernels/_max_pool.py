"""Maxima over windows of the last three axes, and the places where they were found.

A place is a code, the number of the element in its window, row by row: one byte for windows of up
to 256 elements, else four. Several equal maxima count as the first; of several NaN the
last counts, as in PyTorch.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import inlined, jit, uses_numba
from offgrad.kernels._parallel import parallel_for

_MIN_REGULAR = 6
"""The number of regular windows from which loops take them together."""


class Windows(NamedTuple):
    """The windows along one axis.

    Attributes:
        starts: [n] the first element of each, int64.
        counts: [n] the number of its elements, int64, 1 or more.
        dilation: the distance of its elements.
        width: the largest count.
        stride: the distance of the regular windows.
        first: the regular windows are `first` to ``last - 1``: they have `width` elements, and
            each starts `stride` after the one before.
        last: see `first`.
    """

    starts: Array
    counts: Array
    dilation: int
    width: int
    stride: int = 1
    first: int = 0
    last: int = 0


@in_float32("out")
def max_pool(x: Array, windows: tuple[Windows, ...], out: Array, codes: Array | None) -> None:
    """Write the maxima of windows into `out`, and where they are into `codes` unless it is None.

    Args:
        x: [planes, D, H, W], C-contiguous.
        windows: of the last three axes.
        out: [planes, windows along D, along H, along W].
        codes: of the shape of `out`, of `code_dtype`.
    """
    if not uses_numba(x, out):
        _max_pool_numpy(x, windows, out, codes)
        return
    d, h, w = windows
    kept = np.empty((0, 0, 0, 0), np.uint8) if codes is None else codes
    tables = (d.starts, d.counts, d.dilation, h.starts, h.counts, h.dilation, h.width)
    if x.shape[1] == 1 and _are_pairs(windows[1:]):
        planes = x[:, 0], out[:, 0], kept.reshape(len(kept), *kept.shape[2:])
        parallel_for(
            partial(_max_pool_pairs_loop, *planes), len(x), 4 * prod(out.shape[1:]), merge=True
        )
        return
    # Loops over few windows at once cost more than loops over their elements.
    first, last = (w.first, w.last) if w.last - w.first >= _MIN_REGULAR else (0, 0)
    row = (w.starts, w.counts, w.dilation, w.width, w.stride, first, last)
    arguments: tuple[Any, ...] = (x, out, kept, *tables, *row)
    parallel_for(
        partial(_max_pool_loop, *arguments),
        len(x),
        prod(out.shape[1:]) * d.width * h.width * w.width,
        merge=True,
    )


@in_float32("dx")
def max_pool_backward(grad: Array, codes: Array, windows: tuple[Windows, ...], dx: Array) -> None:
    """Write zeros into `dx`, with each gradient added at the place of its maximum.

    Args:
        grad: of the shape of the maxima, C-contiguous.
        codes: their places.
        windows: of the last three axes.
        dx: [planes, D, H, W], of grad's dtype.
    """
    if not uses_numba(grad, dx):
        dx[...] = 0
        planes = np.arange(len(dx))[:, None, None, None]
        at = planes * prod(dx.shape[1:]) + places(codes, windows, dx.shape[1:])
        np.add.at(dx.reshape(-1), at, grad)
        return
    starts = [each.starts for each in windows]
    is_pairs = dx.shape[1] == 1 and _are_pairs(windows[1:])
    offsets = _offsets(windows, dx.shape[1:])
    arguments: tuple[Any, ...] = (grad, codes, dx, *starts, offsets, is_pairs)
    parallel_for(
        partial(_max_pool_backward_loop, *arguments),
        len(dx),
        prod(dx.shape[1:]) + prod(grad.shape[1:]),
        merge=True,
    )


def places(codes: Array, windows: tuple[Windows, ...], shape: tuple[int, ...]) -> Array:
    """Return the number of each maximum in its flattened plane, of `shape` [D, H, W], as int64."""
    d, h, w = windows
    _, height, width = shape
    bases = (d.starts[:, None, None] * height + h.starts[:, None]) * width + w.starts
    return np.asarray(_offsets(windows, shape)[codes] + bases)


def code_dtype(windows: tuple[Windows, ...]) -> np.dtype[Any]:
    """Return the dtype for the places in a window: uint8, or int32 for more than 256 elements."""
    return np.dtype(np.uint8 if prod(each.width for each in windows) <= 256 else np.int32)


def _offsets(windows: tuple[Windows, ...], shape: tuple[int, ...]) -> Array:
    """Return for each code the distance of its element from the first of the window."""
    d, h, w = windows
    i, j, k = np.ogrid[: d.width, : h.width, : w.width]
    _, height, width = shape
    rows = i * d.dilation * height + j * h.dilation
    return np.asarray(rows * width + k * w.dilation, np.int64).reshape(-1)


def _are_pairs(windows: tuple[Windows, ...]) -> bool:
    """Whether the windows are adjacent pairs along each axis."""
    return all(
        each.width == each.stride == 2
        and each.dilation == 1
        and each.first == 0 == each.starts[0]
        and each.last == len(each.starts)
        for each in windows
    )


def _max_pool_numpy(
    x: Array, windows: tuple[Windows, ...], out: Array, codes: Array | None
) -> None:
    d, h, w = windows
    is_float = x.dtype.kind not in "iub"
    with np.errstate(all="ignore"):
        for code, taps in enumerate(np.ndindex(d.width, h.width, w.width)):
            at, inside = [], []
            for tap, each in zip(taps, windows, strict=True):
                inside.append(tap < each.counts)
                at.append(np.where(inside[-1], each.starts + tap * each.dilation, each.starts))
            values = x[:, at[0][:, None, None], at[1][:, None], at[2]]
            if code == 0:
                out[...] = values
                if codes is not None:
                    codes[...] = 0
                continue
            better = values > out
            if is_float:
                better |= values != values
            better &= inside[0][:, None, None] & inside[1][:, None] & inside[2]
            np.copyto(out, values, where=better)
            if codes is not None:
                np.copyto(codes, codes.dtype.type(code), where=better)


@inlined
def _count_larger(part: Any, b: Any) -> Any:
    """Return how many elements are larger than `b`, or NaN."""
    count = np.int32(0)
    for k in range(part.size):
        count += np.int32((part[k] > b) | (part[k] != part[k]))
    return count


@inlined
def _start_row(part: Any, stride: int, best: Any, at: Any, code: int) -> None:
    if stride == 1:
        for o in range(best.size):
            best[o] = part[o]
            at[o] = code
    elif stride == 2:
        for o in range(best.size):
            best[o] = part[2 * o]
            at[o] = code
    else:
        for o in range(best.size):
            best[o] = part[stride * o]
            at[o] = code


@inlined
def _update_row(part: Any, stride: int, best: Any, at: Any, code: int) -> None:
    # Constant strides: others are not vectorised.
    if stride == 1:
        for o in range(best.size):
            v = part[o]
            is_better = (v > best[o]) | (v != v)
            best[o] = v if is_better else best[o]
            at[o] = code if is_better else at[o]
    elif stride == 2:
        for o in range(best.size):
            v = part[2 * o]
            is_better = (v > best[o]) | (v != v)
            best[o] = v if is_better else best[o]
            at[o] = code if is_better else at[o]
    else:
        for o in range(best.size):
            v = part[stride * o]
            is_better = (v > best[o]) | (v != v)
            best[o] = v if is_better else best[o]
            at[o] = code if is_better else at[o]


@inlined
def _update_row_by_three(part: Any, stride: int, best: Any, at: Any, code: int) -> None:
    """Take three adjacent elements of each window into account; the first ones if `code` is 0."""
    if stride == 1:
        for o in range(best.size):
            u, v, w = part[o], part[o + 1], part[o + 2]
            b = u if code == 0 else best[o]
            c = np.int32(0) if code == 0 else at[o]
            is_better = (u > b) | (u != u)
            b = u if is_better else b
            c = np.int32(code) if is_better else c
            is_better = (v > b) | (v != v)
            b = v if is_better else b
            c = np.int32(code + 1) if is_better else c
            is_better = (w > b) | (w != w)
            best[o] = w if is_better else b
            at[o] = np.int32(code + 2) if is_better else c
    else:
        for o in range(best.size):
            u, v, w = part[2 * o], part[2 * o + 1], part[2 * o + 2]
            b = u if code == 0 else best[o]
            c = np.int32(0) if code == 0 else at[o]
            is_better = (u > b) | (u != u)
            b = u if is_better else b
            c = np.int32(code) if is_better else c
            is_better = (v > b) | (v != v)
            b = v if is_better else b
            c = np.int32(code + 1) if is_better else c
            is_better = (w > b) | (w != w)
            best[o] = w if is_better else b
            at[o] = np.int32(code + 2) if is_better else c


@jit
def _max_pool_pairs_loop(x: Any, out: Any, codes: Any, start: int, stop: int) -> None:
    width, height, count = x.shape[2], out.shape[1], out.shape[2]
    kept = codes.shape[0] > 0
    for p in range(start, stop):
        plane = x[p].reshape(-1)
        target = out[p].reshape(-1)
        places = codes[p if kept else 0 : (p + 1 if kept else 0)].reshape(-1)
        for h in range(height):
            upper = plane[2 * h * width : (2 * h + 1) * width]
            lower = plane[(2 * h + 1) * width : (2 * h + 2) * width]
            best = target[h * count : (h + 1) * count]
            for o in range(best.size):
                b, v, w, z = upper[2 * o], upper[2 * o + 1], lower[2 * o], lower[2 * o + 1]
                second = (v > b) | (v != v)
                b = v if second else b
                third = (w > b) | (w != w)
                b = w if third else b
                fourth = (z > b) | (z != z)
                best[o] = z if fourth else b
                if kept:
                    code = np.int32(2) if third else (np.int32(1) if second else np.int32(0))
                    places[h * count + o] = np.int32(3) if fourth else code


@jit
def _max_pool_loop(
    x: Any,
    out: Any,
    codes: Any,
    starts_d: Any,
    counts_d: Any,
    step_d: int,
    starts_h: Any,
    counts_h: Any,
    step_h: int,
    width_h: int,
    starts_w: Any,
    counts_w: Any,
    step_w: int,
    width_w: int,
    stride: int,
    first: int,
    last: int,
    start: int,
    stop: int,
) -> None:
    row_codes = np.empty(out.shape[3], np.int32)
    height, width = x.shape[2], x.shape[3]
    for p in range(start, stop):
        plane = x[p].reshape(-1)
        for od in range(out.shape[1]):
            for oh in range(out.shape[2]):
                best = out[p, od, oh]
                if last > first:
                    regular = best[first:last]
                    at = row_codes[first:last]
                    for i in range(counts_d[od]):
                        for j in range(counts_h[oh]):
                            depth = starts_d[od] + i * step_d
                            row = (depth * height + starts_h[oh] + j * step_h) * width
                            base = (i * width_h + j) * width_w
                            if width_w == 3 and step_w == 1 and stride < 3:
                                part = plane[row + starts_w[first] :]
                                _update_row_by_three(part, stride, regular, at, base)
                                continue
                            for k in range(width_w):
                                part = plane[row + starts_w[first] + k * step_w :]
                                if base + k == 0:
                                    _start_row(part, stride, regular, at, 0)
                                else:
                                    _update_row(part, stride, regular, at, base + k)
                # The maximum so far is seldom exceeded: rows in which it is not are left out.
                is_long = width_w > 4 and step_w == 1
                for o in range(best.size - (last - first)):
                    if o >= first:
                        o += last - first
                    corner = (starts_d[od] * height + starts_h[oh]) * width + starts_w[o]
                    b, c = plane[np.uintp(corner)], np.int32(0)
                    for i in range(counts_d[od]):
                        for j in range(counts_h[oh]):
                            row = corner + (i * step_d * height + j * step_h) * width
                            base = (i * width_h + j) * width_w
                            if is_long:
                                part = plane[row : row + counts_w[o]]
                                if _count_larger(part, b) == 0:
                                    continue
                            for k in range(counts_w[o]):
                                v = plane[np.uintp(row + k * step_w)]
                                is_better = (v > b) | (v != v)
                                b = v if is_better else b
                                c = np.int32(base + k) if is_better else c
                    best[o] = b
                    row_codes[o] = c
                if codes.shape[0] > 0:
                    kept = codes[p, od, oh]
                    for o in range(kept.size):
                        kept[o] = row_codes[o]


@jit
def _max_pool_backward_loop(
    grad: Any,
    codes: Any,
    dx: Any,
    starts_d: Any,
    starts_h: Any,
    starts_w: Any,
    offsets: Any,
    is_pairs: bool,
    start: int,
    stop: int,
) -> None:
    height, width = dx.shape[2], dx.shape[3]
    zero = grad.dtype.type(0)
    for p in range(start, stop):
        plane = dx[p].reshape(-1)
        if not is_pairs:
            plane[:] = zero
        for od in range(grad.shape[1]):
            for oh in range(grad.shape[2]):
                base = (starts_d[od] * height + starts_h[oh]) * width
                row = grad[p, od, oh]
                at = codes[p, od, oh]
                if is_pairs:
                    n = row.size
                    upper = plane[base : base + width]
                    lower = plane[base + width : base + 2 * width]
                    for o in range(n):
                        g, c = row[o], at[o]
                        upper[2 * o] = g if c == 0 else zero
                        upper[2 * o + 1] = g if c == 1 else zero
                    for o in range(n):
                        g, c = row[o], at[o]
                        lower[2 * o] = g if c == 2 else zero
                        lower[2 * o + 1] = g if c == 3 else zero
                    upper[2 * n :] = zero
                    lower[2 * n :] = zero
                else:
                    for o in range(row.size):
                        where = base + starts_w[o] + offsets[at[o]]
                        plane[np.uintp(where)] += row[o]
        if is_pairs:
            plane[2 * grad.shape[2] * width :] = zero
