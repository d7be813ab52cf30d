"""Elements picked along one dimension by an index for each, and the sums that undo it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._chunks import in_chunks
from offgrad.kernels._jit import backend, jit, uses_numba
from offgrad.kernels._parallel import BLOCK, parallel_for

_BITS = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


def are_within(index: Array, low: int, high: int) -> bool:
    """Whether all integers of `index` are from `low` to ``high - 1``."""
    if not index.size:
        return True
    if index.size <= BLOCK or not index.flags.c_contiguous:
        return bool(index.min() >= low and index.max() < high)
    flat = index.reshape(-1)
    found: list[bool] = []
    if low == 0 and flat.dtype.kind == "i":
        # As unsigned numbers negative ones are large: one pass finds both.
        bits = flat.view(flat.dtype.str.replace("i", "u"))
        in_chunks(lambda a, b: found.append(bool(bits[a:b].max() < high)), flat.size)
    else:
        in_chunks(lambda a, b: found.append(are_within(flat[a:b], low, high)), flat.size)
    return all(found)


def gather(x: Array, index: Array, dim: int, out: Array) -> None:
    """Write ``x[..., index[..., j, ...], ...]`` into `out`, of the shape of `index`.

    Args:
        x: C-contiguous; its sizes but that of `dim` are those of `index`, or larger.
        index: integers from 0 to ``x.shape[dim] - 1``.
        dim: the dimension that the index chooses along, from 0 on.
        out: C-contiguous, of x's dtype.
    """
    if not _is_compiled(x, index, out) or not _fits(x, index, dim):
        part = x[tuple(slice(None) if at == dim else slice(n) for at, n in enumerate(index.shape))]
        out[...] = np.take_along_axis(part, index, dim)
        return
    bits = _BITS[x.dtype.itemsize]
    rows, width, per_plane, scale, step = _layout(index, dim)
    source, target = x.reshape(-1).view(bits), out.reshape(-1).view(bits)
    at = _int64(index)
    plane = prod(x.shape[dim:])
    parallel_for(
        lambda start, stop: _gather_loop(
            source, at, target, width, per_plane, plane, scale, step, start, stop
        ),
        rows,
        width,
    )


def scatter_add(out: Array, index: Array, source: Array, dim: int) -> None:
    """Add each element of `source` to the element of `out` that its index chooses.

    Args:
        out: C-contiguous floats; its sizes but that of `dim` are those of `index`, or larger.
        index: integers from 0 to ``out.shape[dim] - 1``.
        source: C-contiguous, of the shape of `index` and out's dtype.
        dim: the dimension that the index chooses along, from 0 on.

    Elements of one place are added in the order of `source`, on any number of threads.
    """
    compiled = uses_numba(out, source) and _is_compiled(out, index, source)
    if not compiled or not _fits(out, index, dim):
        grid = list(np.ogrid[tuple(slice(size) for size in index.shape)])
        grid[dim] = index
        np.add.at(out, tuple(grid), source)
        return
    rows, width, per_plane, scale, step = _layout(index, dim)
    target, values, at = out.reshape(-1), source.reshape(-1), _int64(index)
    plane = prod(out.shape[dim:])
    planes = rows // per_plane
    shape = width, per_plane, plane, scale, step
    if planes > 1 or not step:  # planes on different threads
        parallel_for(
            lambda start, stop: _scatter_loop(
                target, at, values, *shape, 0, width, start * per_plane, stop * per_plane
            ),
            planes,
            per_plane * width,
        )
    else:  # columns on different threads
        parallel_for(
            lambda start, stop: _scatter_loop(target, at, values, *shape, start, stop, 0, rows),
            width,
            rows,
        )


def _is_compiled(x: Array, index: Array, out: Array) -> bool:
    return (
        index.size > BLOCK
        and x.dtype.itemsize in _BITS
        and x.flags.c_contiguous
        and out.flags.c_contiguous
        and backend() == "numba"
    )


def _fits(x: Array, index: Array, dim: int) -> bool:
    """Whether all sizes but that of `dim` are equal."""
    before, after = slice(dim), slice(dim + 1, None)
    return x.shape[before] == index.shape[before] and x.shape[after] == index.shape[after]


def _layout(index: Array, dim: int) -> tuple[int, int, int, int, int]:
    """Rows of the loop, their width, rows for each plane of x, and how an index counts.

    A plane is what the dimensions before `dim` choose. Its element at the index i in column r is
    number ``i * scale + r * step``.
    """
    length, inner = index.shape[dim], prod(index.shape[dim + 1 :])
    planes = prod(index.shape[:dim])
    if inner == 1:
        return planes, length, 1, 1, 0
    return planes * length, inner, length, inner, 1


def _int64(index: Array) -> Array:
    at = np.ascontiguousarray(index, np.int64).reshape(-1)
    return at if at.flags.writeable else at.copy()  # one signature of the loop


@jit
def _gather_loop(
    source: Any,
    index: Any,
    target: Any,
    width: int,
    per_plane: int,
    plane: int,
    scale: int,
    step: int,
    start: int,
    stop: int,
) -> None:
    for row in range(start, stop):
        base = (row // per_plane) * plane
        at = index[row * width : (row + 1) * width]
        out = target[row * width : (row + 1) * width]
        for r in range(at.size):
            out[r] = source[base + at[r] * scale + r * step]


@jit
def _scatter_loop(
    target: Any,
    index: Any,
    source: Any,
    width: int,
    per_plane: int,
    plane: int,
    scale: int,
    step: int,
    first: int,
    last: int,
    start: int,
    stop: int,
) -> None:
    for row in range(start, stop):
        base = (row // per_plane) * plane
        at = index[row * width : (row + 1) * width]
        values = source[row * width : (row + 1) * width]
        for r in range(first, last):
            target[base + at[r] * scale + r * step] += values[r]
