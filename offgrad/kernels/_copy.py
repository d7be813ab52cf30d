"""Copies of arrays of any strides, on several threads; transposes in tiles."""

from __future__ import annotations

import functools
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from offgrad.kernels._arrays import BITS, Array, address_of
from offgrad.kernels._jit import backend, jit
from offgrad.kernels._parallel import BLOCK, parallel_for

_ROWS = 256
_LANES = 8


def copy_into(out: Array, array: Array) -> None:
    """Copy `array` into `out`, of equal shape and dtype, without overlap.

    NumPy copies small arrays in one call, and large ones in slices of their longest outer
    dimension. Compiled loops copy elements of 4 and 8 bytes: rows that are contiguous in both, and
    tiles if another dimension than the last is the contiguous one and `out` is C-contiguous.
    """
    if out.size <= BLOCK:
        np.copyto(out, array)
        return
    axis = _contiguous_axis(array)
    if not _has_loop(array, axis):
        _copy_slices(out, array)
    elif axis == array.ndim - 1 and _has_rows(array) and _has_rows(out):
        _copy_rows(out, array)
    elif not out.flags.c_contiguous:
        _copy_slices(out, array)
    elif axis < array.ndim - 1:
        _copy_tiles(out, array, axis)
    elif array.strides[-1] < 0:
        _copy_turned_rows(out, array)
    else:
        _copy_slices(out, array)


def _contiguous_axis(array: Array) -> int:
    """The dimension whose neighbours are closest in memory; the last one of equals."""
    steps = [
        (abs(stride), -axis)
        for axis, (stride, size) in enumerate(zip(array.strides, array.shape, strict=True))
        if size > 1 and stride
    ]
    return -min(steps)[1] if steps else array.ndim - 1


def _has_loop(array: Array, axis: int) -> bool:
    item = array.dtype.itemsize
    return (
        item in BITS
        and abs(array.strides[axis]) == item
        and array.shape[axis] >= _LANES <= array.shape[-1]
        and array.flags.writeable
        and array.flags.aligned
        and not any(stride % item for stride in array.strides)
        and backend() == "numba"
    )


def _copy_slices(out: Array, array: Array) -> None:
    axis = next((at for at, size in enumerate(out.shape) if size >= 4), 0)
    before = (slice(None),) * axis

    def copy(start: int, stop: int) -> None:
        part = (*before, slice(start, stop))
        np.copyto(out[part], array[part])

    parallel_for(copy, out.shape[axis], out.size // out.shape[axis], merge=True)


def _has_rows(array: Array) -> bool:
    item = array.dtype.itemsize
    return array.strides[-1] == item and all(
        stride >= 0 and stride % item == 0 for stride in array.strides
    )


def _copy_rows(out: Array, array: Array) -> None:
    """Copy an array whose rows are contiguous, into another."""
    if array.flags.c_contiguous and out.flags.c_contiguous:
        bits = BITS[array.itemsize]
        flats = array.reshape(-1).view(bits), out.reshape(-1).view(bits)
        parallel_for(partial(_flat_loop, *flats), out.size, merge=True)
        return
    register()
    shape, steps = [*array.shape], [[*each.strides] for each in (array, out)]
    cols = shape.pop()
    while shape and all(each[len(shape) - 1] == cols * array.itemsize for each in steps):
        cols *= shape.pop()
    # Blocks of rows that are equally far apart, and the offsets of blocks in bytes.
    rows = shape.pop() if shape else 1
    row_steps = [each[len(shape)] for each in steps]
    blocks = [_offsets(shape, each[: len(shape)]) for each in steps]
    addresses = address_of(array), address_of(out)
    rest = *blocks, *row_steps, rows, cols * array.itemsize
    loop: Any = partial(_rows_loop, addresses, *rest)
    parallel_for(loop, rows * blocks[0].size, cols, merge=True)


def copy_bytes(source: int, target: int, nbytes: int) -> None:
    """Copy bytes from one address to another, in compiled loops only."""
    raise NotImplementedError("copy_bytes runs in compiled loops")


@functools.cache
def register() -> None:
    """Register `copy_bytes` with Numba; comes before loops that call it."""
    from numba import types
    from numba.core import cgutils

    from offgrad.kernels._compilers import intrinsic

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        from_, to = (
            builder.inttoptr(each, context.get_value_type(types.voidptr)) for each in values[:2]
        )
        cgutils.raw_memcpy(builder, to, from_, values[2], 1)
        return context.get_dummy_value()

    intrinsic(copy_bytes, types.void(types.intp, types.intp, types.intp), emit)


@jit
def _flat_loop(source: Any, target: Any, start: int, stop: int) -> None:
    source, target = source[start:stop], target[start:stop]
    for i in range(target.size):
        target[i] = source[i]


@jit
def _rows_loop(
    addresses: Any,
    sources: Any,
    targets: Any,
    source_step: int,
    target_step: int,
    rows: int,
    nbytes: int,
    start: int,
    stop: int,
) -> None:
    source, target = addresses
    for item in range(start, stop):
        block, row = item // rows, item % rows
        from_ = source + sources[block] + row * source_step
        copy_bytes(from_, target + targets[block] + row * target_step, nbytes)


def _copy_turned_rows(out: Array, array: Array) -> None:
    """Copy an array whose last dimension runs down in memory."""
    item, cols = array.dtype.itemsize, array.shape[-1]
    strides = [stride // item for stride in array.strides]
    below = [(size - 1) * max(0, -s) for size, s in zip(array.shape, strides, strict=True)]
    span = 1 + sum((size - 1) * abs(s) for size, s in zip(array.shape, strides, strict=True))
    lowest = array[tuple([slice(-1, None) if stride < 0 else slice(1) for stride in strides])]
    source = as_strided(lowest, (span,), (item,)).view(BITS[item])
    target = out.reshape(-1).view(BITS[item])
    # A row begins at its last element.
    sources = _offsets(list(array.shape[:-1]), strides[:-1]) + (sum(below) - (cols - 1))
    parallel_for(
        partial(_turned_rows_loop, source, target, sources, cols), sources.size, cols, merge=True
    )


@jit
def _turned_rows_loop(
    source: Any, target: Any, sources: Any, cols: int, start: int, stop: int
) -> None:
    for row in range(start, stop):
        line = source[sources[row] : sources[row] + cols]
        out = target[row * cols : (row + 1) * cols]
        last = np.uintp(line.size - 1)
        # Unsigned: a check for negative numbers would keep LLVM from vectorising.
        for j in range(out.size):
            out[j] = line[last - np.uintp(j)]


def _copy_tiles(out: Array, array: Array, axis: int) -> None:
    # Dimensions but the last that run down in memory are turned in both.
    turned = tuple(
        [
            slice(None, None, -1 if stride < 0 and at < array.ndim - 1 else 1)
            for at, stride in enumerate(array.strides)
        ]
    )
    array, result = array[turned], out[turned]
    item = array.dtype.itemsize
    strides = [stride // item for stride in array.strides]
    out_strides = [stride // item for stride in result.strides]
    rows, cols = array.shape[axis], array.shape[-1]
    span = 1 + sum(
        (size - 1) * abs(stride) for size, stride in zip(array.shape, strides, strict=True)
    )
    lowest = array[..., -1:] if strides[-1] < 0 else array
    bits = BITS[item]
    source = as_strided(lowest, (span,), (item,)).view(bits)
    target = out.reshape(-1).view(bits)
    outer = [at for at in range(array.ndim - 1) if at != axis]
    shape = [array.shape[at] for at in outer]
    sources = _offsets(shape, [strides[at] for at in outer])
    sources += max(0, -strides[-1]) * (cols - 1)
    targets = _offsets(shape, [out_strides[at] for at in outer])
    targets += sum(
        (size - 1) * max(0, -stride) for size, stride in zip(out.shape, out_strides, strict=True)
    )
    lengths = rows, cols, strides[-1], out_strides[axis]
    parallel_for(
        partial(_tiles_loop, source, target, sources, targets, *lengths),
        prod(shape) * -(-rows // _ROWS),
        min(rows, _ROWS) * cols,
        merge=True,
    )


def _offsets(shape: list[int], strides: list[int]) -> Array:
    """The offset of each element of a grid, in C order."""
    total = np.zeros((), np.int64)
    for size, stride in zip(shape, strides, strict=True):
        total = total[..., None] + np.arange(size, dtype=np.int64) * stride
    return total.reshape(-1)


@jit
def _tiles_loop(
    source: Any,
    target: Any,
    sources: Any,
    targets: Any,
    rows: int,
    cols: int,
    source_step: int,
    target_step: int,
    start: int,
    stop: int,
) -> None:
    # Row r of the target is column r of the source: its elements are contiguous along r.
    steps = (rows + _ROWS - 1) // _ROWS
    whole = cols - cols % _LANES
    for item in range(start, stop):
        plane = item // steps
        first = (item - plane * steps) * _ROWS
        count = min(_ROWS, rows - first)
        s = sources[plane] + first
        t = targets[plane] + first * target_step
        for col in range(0, whole, _LANES):
            at = s + col * source_step
            a0 = source[at : at + count]
            a1 = source[at + source_step : at + source_step + count]
            a2 = source[at + 2 * source_step : at + 2 * source_step + count]
            a3 = source[at + 3 * source_step : at + 3 * source_step + count]
            a4 = source[at + 4 * source_step : at + 4 * source_step + count]
            a5 = source[at + 5 * source_step : at + 5 * source_step + count]
            a6 = source[at + 6 * source_step : at + 6 * source_step + count]
            a7 = source[at + 7 * source_step : at + 7 * source_step + count]
            # A fixed number of lanes: LLVM vectorises along r and interleaves the stores.
            for r in range(count):
                to = t + r * target_step + col
                lane = target[to : to + _LANES]
                lane[0] = a0[r]
                lane[1] = a1[r]
                lane[2] = a2[r]
                lane[3] = a3[r]
                lane[4] = a4[r]
                lane[5] = a5[r]
                lane[6] = a6[r]
                lane[7] = a7[r]
        for col in range(whole, cols):
            line = source[s + col * source_step : s + col * source_step + count]
            for r in range(count):
                target[t + r * target_step + col] = line[r]
