"""Maxima over windows of the last three axes, and the places where they were found.

A place is a code, the number of the element in its window, row by row: one byte for windows of up
to 256 elements, else four. Several equal maxima count as the first; of several NaN the
last counts, as in PyTorch.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._jit import inlined, jit, uses_numba
from offgrad.kernels._parallel import parallel_for


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
    row = (w.starts, w.counts, w.dilation, w.width, w.stride, w.first, w.last)
    arguments: tuple[Any, ...] = (x, out, kept, *tables, *row)
    parallel_for(
        lambda start, stop: _max_pool_loop(*(*arguments, start, stop)),
        len(x),
        prod(out.shape[1:]) * d.width * h.width * w.width,
    )


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
        # 16-bit floats add up as float32.
        wide = dx.astype(np.float32) if dx.dtype.itemsize < 4 else dx
        np.add.at(wide.reshape(-1), at, grad)
        dx[...] = wide
        return
    starts = [each.starts for each in windows]
    is_pairs = dx.shape[1] == 1 and _are_pairs(windows[1:])
    offsets = _offsets(windows, dx.shape[1:])
    arguments: tuple[Any, ...] = (grad, codes, dx, *starts, offsets, is_pairs)
    parallel_for(
        lambda start, stop: _max_pool_backward_loop(*(*arguments, start, stop)),
        len(dx),
        prod(dx.shape[1:]) + prod(grad.shape[1:]),
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
    for p in range(start, stop):
        for od in range(out.shape[1]):
            for oh in range(out.shape[2]):
                best = out[p, od, oh]
                regular = best[first:last]
                at = row_codes[first:last]
                for i in range(counts_d[od]):
                    for j in range(counts_h[oh]):
                        row = x[p, starts_d[od] + i * step_d, starts_h[oh] + j * step_h]
                        base = (i * width_h + j) * width_w
                        if last > first:
                            from_first = row[starts_w[first] :]
                            for k in range(width_w):
                                part = from_first[k * step_w :]
                                if base + k == 0:
                                    _start_row(part, stride, regular, at, 0)
                                else:
                                    _update_row(part, stride, regular, at, base + k)
                        for o in range(best.size - (last - first)):
                            if o >= first:
                                o += last - first
                            for k in range(counts_w[o]):
                                v = row[starts_w[o] + k * step_w]
                                if base + k == 0 or v > best[o] or v != v:
                                    best[o] = v
                                    row_codes[o] = base + k
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
