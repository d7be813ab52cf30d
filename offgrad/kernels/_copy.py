"""Copies of arrays of any strides into C order, on several threads; transposes in tiles."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from offgrad.kernels._arrays import Array
from offgrad.kernels._jit import backend, jit
from offgrad.kernels._parallel import BLOCK, parallel_for
from offgrad.memory import allocator

_ROWS = 256
_LANES = 8
_BITS = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


def copy_into(out: Array, array: Array) -> None:
    """Copy `array` into `out`, C-contiguous of equal shape and dtype, without overlap.

    NumPy copies small arrays in one call, and large ones in slices of their longest outer
    dimension. If another dimension than the last is the contiguous one, tiles of both are
    transposed by a compiled loop; elements of 4 and 8 bytes.
    """
    if out.size <= BLOCK:
        np.copyto(out, array)
        return
    axis = _contiguous_axis(array)
    if axis == array.ndim - 1 or not _can_tile(array, axis):
        _copy_slices(out, array)
    else:
        _copy_tiles(out, array, axis)


def _contiguous_axis(array: Array) -> int:
    """The dimension whose neighbours are closest in memory; the last one of equals."""
    steps = [
        (abs(stride), -axis)
        for axis, (stride, size) in enumerate(zip(array.strides, array.shape, strict=True))
        if size > 1 and stride
    ]
    return -min(steps)[1] if steps else array.ndim - 1


def _can_tile(array: Array, axis: int) -> bool:
    item = array.dtype.itemsize
    return (
        item in _BITS
        and array.strides[axis] == item
        and array.shape[axis] >= _LANES <= array.shape[-1]
        and array.flags.writeable
        and array.flags.aligned
        and min(array.strides) >= 0
        and not any(stride % item for stride in array.strides)
        and backend() == "numba"
    )


def _copy_slices(out: Array, array: Array) -> None:
    axis = next((at for at, size in enumerate(out.shape) if size >= 4), 0)
    before = (slice(None),) * axis

    def copy(start: int, stop: int) -> None:
        part = (*before, slice(start, stop))
        np.copyto(out[part], array[part])

    parallel_for(copy, out.shape[axis], out.size // out.shape[axis])


def _copy_tiles(out: Array, array: Array, axis: int) -> None:
    item = array.dtype.itemsize
    bits = _BITS[item]
    strides = [stride // item for stride in array.strides]
    span = 1 + sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
    source = as_strided(array, (span,), (item,)).view(bits)
    target = out.reshape(-1).view(bits)
    outer = [at for at in range(array.ndim - 1) if at != axis]
    shape = [array.shape[at] for at in outer]
    rows, cols = array.shape[axis], array.shape[-1]
    out_strides = [stride // item for stride in out.strides]
    sources = _offsets(shape, [strides[at] for at in outer])
    targets = _offsets(shape, [out_strides[at] for at in outer])
    steps = -(-rows // _ROWS)
    lengths = rows, cols, strides[-1], out_strides[axis]
    parallel_for(
        lambda start, stop: _tiles_loop(source, target, sources, targets, *lengths, start, stop),
        prod(shape) * steps,
        min(rows, _ROWS) * cols,
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
        s = source[sources[plane] + first :]
        t = target[targets[plane] + first * target_step :]
        for col in range(0, whole, _LANES):
            lines = s[col * source_step :]
            # A fixed number of lanes: LLVM vectorises along r and interleaves the stores.
            for r in range(count):
                lane = t[r * target_step + col : r * target_step + col + _LANES]
                for j in range(_LANES):
                    lane[j] = lines[j * source_step + r]
        for col in range(whole, cols):
            line = s[col * source_step :]
            for r in range(count):
                t[r * target_step + col] = line[r]


allocator.set_copier(copy_into)
