"""Elements picked along one dimension by an index for each, and the sums that undo it."""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from offgrad.kernels._arrays import BITS, Array, is_half
from offgrad.kernels._chunks import in_chunks
from offgrad.kernels._halves import as_float, convert
from offgrad.kernels._jit import backend, inlined, jit, uses_numba
from offgrad.kernels._parallel import BLOCK, get_num_threads, parallel_for
from offgrad.memory.meta import MetaArray

_MIN_COLUMNS = 32
_SMALL = 4096  # elements of an index for which the places along other dimensions are kept
_FEW = 4096  # elements up to which NumPy combines; it takes a tenth of a microsecond for each
_PUT, _ADD, _MULTIPLY, _MAXIMUM, _MINIMUM = range(5)  # what `_scatter_loop` does
_REDUCTIONS: dict[str, tuple[Any, int]] = {
    "prod": (np.multiply, _MULTIPLY),
    "amax": (np.maximum, _MAXIMUM),
    "amin": (np.minimum, _MINIMUM),
}


def are_within(index: Array, low: int, high: int) -> bool:
    """Whether all integers of `index` are from `low` to ``high - 1``."""
    if not index.size or type(index) is MetaArray:
        return True
    if 0 in index.strides:
        index = index[tuple([slice(None) if stride else 0 for stride in index.strides])]
    if index.size <= BLOCK or not index.flags.c_contiguous:
        lowest, highest = np.minimum.reduce(index, axis=None), np.maximum.reduce(index, axis=None)
        return bool(lowest >= low and highest < high)
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
    """Write ``x[..., index[..., j, ...], ...]`` into `out`.

    Args:
        x: an array with dimensions.
        index: integers from 0 to ``x.shape[dim] - 1``: as many dimensions as x, of its sizes or
            smaller but along `dim`; or, shared by all, a vector.
        dim: the dimension that the index chooses along, counted from the front.
        out: C-contiguous, of x's dtype; the shape of `index`, or that of x with the length of the
            vector along `dim`.
    """
    index = _shared(x, index, dim)
    if not _is_compiled(x, out, index, dim):
        out[...] = x[_where(x, index, dim)]
        return
    bits = BITS[x.dtype.itemsize]
    layout = _Layout(x, out, index, dim)
    arrays = x.reshape(-1).view(bits), _vector(index), out.reshape(-1).view(bits)
    parallel_for(
        partial(_gather_loop, *arrays, *layout.numbers), layout.rows, layout.width, merge=True
    )


def scatter_add(out: Array, index: Array, source: Array, dim: int) -> None:
    """Add each element of `source` to the element of `out` that its index chooses.

    Args:
        out: a C-contiguous array with dimensions.
        index: integers from 0 to ``out.shape[dim] - 1``: as many dimensions as out, of its sizes
            or smaller but along `dim`; or, shared by all, a vector.
        source: C-contiguous, of out's dtype; its shape is as that of gather's out.
        dim: the dimension that the index chooses along, counted from the front.

    What is added to one element is added in the order of `source`, on any number of threads. Sums
    of 16-bit floats are rounded once.
    """
    _combine(np.add, _ADD, out, index, source, dim)


def scatter_reduce(out: Array, index: Array, source: Array, dim: int, reduce: str) -> None:
    """Combine each element of `source` with the element of `out` that its index chooses.

    As `scatter_add`, by "prod", "amax" or "amin".
    """
    _combine(*_REDUCTIONS[reduce], out, index, source, dim)


def add_at(out: Array, index: Any, values: Array) -> None:
    """Add values at one of NumPy's indices, in place; sums of 16-bit floats are rounded once."""
    total = as_float(out)
    np.add.at(total, index, as_float(values))
    if total is not out:
        convert(total, out)


def _combine(ufunc: Any, action: int, out: Array, index: Array, source: Array, dim: int) -> None:
    index = _shared(out, index, dim)
    if is_half(out.dtype):
        _combine_halves(ufunc, action, out, index, source, dim)
    elif uses_numba(out, source) and _is_compiled(out, source, index, dim, _FEW):
        _scatter(action, out, index, source, dim)
    else:
        ufunc.at(out, _where(out, index, dim), source)


def _combine_halves(
    ufunc: Any, action: int, out: Array, index: Array, source: Array, dim: int
) -> None:
    """Combine in float32; if the index is a short vector, the entries that it names alone."""
    entries: Any = slice(None)
    if index.ndim == 1 and 2 * index.size < out.shape[dim]:
        entries, index = np.unique(index, return_inverse=True)
    where = (*(slice(None),) * dim, entries)
    total = as_float(np.ascontiguousarray(out[where]))
    _combine(ufunc, action, total, index, as_float(source), dim)
    if type(entries) is slice:
        convert(total, out)
    else:
        out[where] = total


def scatter(out: Array, index: Array, source: Array, dim: int) -> None:
    """Write each element of `source` over the element of `out` that its index chooses.

    As `scatter_add`; of several at one element the last one stays.
    """
    index = _shared(out, index, dim)
    if not _is_compiled(out, source, index, dim):
        out[_where(out, index, dim)] = source
        return
    bits = BITS[out.dtype.itemsize]
    _scatter(_PUT, out.view(bits), index, source.view(bits), dim)


def _shared(x: Array, index: Array, dim: int) -> Array:
    """Return the vector that an index repeats along all other dimensions of x; or the index."""
    if index.ndim != x.ndim or x.ndim == 1 or not index.size:
        return index
    for other in range(x.ndim):
        size = index.shape[other]
        if other != dim and (size != x.shape[other] or (size > 1 and index.strides[other])):
            return index
    where: Any = (*(0,) * dim, slice(None), *(0,) * (x.ndim - dim - 1))
    vector: Array = index[where]
    return vector


def _where(array: Array, index: Array, dim: int) -> tuple[Any, ...]:
    """Return the places of `array` that an index along `dim` chooses."""
    if index.ndim != array.ndim:
        return (*(slice(None),) * dim, index)
    grid = (_small_grid if index.size <= _SMALL else _grid)(index.shape)
    return (*grid[:dim], index, *grid[dim + 1 :])


def _grid(shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the numbers of the places along each dimension, in arrays that broadcast."""
    ndim = len(shape)
    return tuple([np.arange(n).reshape(-1, *(1,) * (ndim - 1 - k)) for k, n in enumerate(shape)])


_small_grid = lru_cache(maxsize=128)(_grid)


def _scatter(action: int, out: Array, index: Array, source: Array, dim: int) -> None:
    layout = _Layout(out, source, index, dim)
    arguments = out.reshape(-1), _vector(index), source.reshape(-1), action, *layout.numbers
    planes, rows, width = layout.rows // layout.rows_in_plane, layout.rows, layout.width
    if planes > 1 or layout.step == 0:  # planes on different threads
        per_plane = layout.rows_in_plane
        parallel_for(
            partial(_scatter_loop, *arguments, 0, per_plane), planes, per_plane * width, merge=True
        )
    else:  # columns on different threads: as wide as possible, since lines of the cache are read
        threads = get_num_threads()
        columns = max(_MIN_COLUMNS, -(-width // (1 if threads == 1 else 2 * threads)))
        parallel_for(
            partial(_scatter_loop, *arguments, columns, rows),
            -(-width // columns),
            rows * columns,
            merge=True,
        )


class _Layout:
    """How loops over rows of the picked elements find their index, and the place it means.

    A plane is what the dimensions before `dim` choose. The element at the index i in column r is
    number ``i * scale + r * step`` of its plane. The index of column r of a row is number
    ``row % index_rows * index_row_step + r * index_step``.
    """

    def __init__(self, x: Array, picked: Array, index: Array, dim: int) -> None:
        length, inner = picked.shape[dim], prod(picked.shape[dim + 1 :])
        planes = prod(picked.shape[:dim])
        if inner == 1:
            self.rows, self.width, self.rows_in_plane, self.step = planes, length, 1, 0
        else:
            self.rows, self.width, self.rows_in_plane = planes * length, inner, length
            self.step = 1
        if index.ndim == x.ndim:
            places = self.rows, self.width, 1
        else:
            places = (1, 0, 1) if inner == 1 else (length, 1, 0)
        plane = prod(x.shape[dim:])
        scale = 1 if inner == 1 else inner
        self.numbers = (self.width, self.rows_in_plane, plane, scale, self.step, *places)


def _is_compiled(x: Array, picked: Array, index: Array, dim: int, few: int = BLOCK) -> bool:
    """Whether the loops take these arrays: contiguous, of more than a few elements, of equal sizes
    but that of `dim`.
    """
    before, after = slice(dim), slice(dim + 1, None)
    return (
        picked.size > few
        and x.dtype.itemsize in BITS
        and x.flags.c_contiguous
        and picked.flags.c_contiguous
        and x.shape[before] == picked.shape[before]
        and x.shape[after] == picked.shape[after]
        and backend() == "numba"
    )


def _vector(index: Array) -> Array:
    at = np.ascontiguousarray(index, np.int64).reshape(-1)
    return at if at.flags.writeable else at.copy()  # one signature of the loops


@jit
def _gather_loop(
    source: Any,
    index: Any,
    target: Any,
    width: int,
    rows_in_plane: int,
    plane: int,
    scale: int,
    step: int,
    index_rows: int,
    index_row_step: int,
    index_step: int,
    start: int,
    stop: int,
) -> None:
    for row in range(start, stop):
        base = (row // rows_in_plane) * plane
        part = source[base : base + plane]
        at = index[(row % index_rows) * index_row_step :]
        out = target[row * width : (row + 1) * width]
        # Unsigned numbers are not checked for being negative.
        if step == 0:
            for r in range(out.size):
                out[r] = part[np.uintp(at[r])]
        elif index_step == 0:
            line = part[at[0] * scale :]
            for r in range(out.size):
                out[r] = line[r]
        else:
            for r in range(out.size):
                out[r] = part[np.uintp(at[r * index_step] * scale + r)]


@inlined
def _combined(old: Any, new: Any, action: int) -> Any:
    if action == _ADD:
        return old + new
    if action == _MULTIPLY:
        return old * new
    if action == _MAXIMUM:  # NaN is extreme
        return new if new > old or new != new else old
    if action == _MINIMUM:
        return new if new < old or new != new else old
    return new


@inlined
def _combine_lines(line: Any, values: Any, action: int) -> None:
    """Combine neighbours, in one vectorised loop for each action."""
    if action == _ADD:
        for r in range(line.size):
            line[r] += values[r]
    elif action == _MULTIPLY:
        for r in range(line.size):
            line[r] *= values[r]
    elif action == _MAXIMUM:
        for r in range(line.size):
            line[r] = _combined(line[r], values[r], _MAXIMUM)
    elif action == _MINIMUM:
        for r in range(line.size):
            line[r] = _combined(line[r], values[r], _MINIMUM)
    else:
        for r in range(line.size):
            line[r] = values[r]


@jit
def _scatter_loop(
    target: Any,
    index: Any,
    source: Any,
    action: int,
    width: int,
    rows_in_plane: int,
    plane: int,
    scale: int,
    step: int,
    index_rows: int,
    index_row_step: int,
    index_step: int,
    columns: int,
    rows: int,
    start: int,
    stop: int,
) -> None:
    # A range has so many whole rows, or so many columns of all rows.
    first, last, top, bottom = 0, width, start * rows, stop * rows
    if columns > 0:
        first, last, top, bottom = start * columns, min(stop * columns, width), 0, rows
    for row in range(top, bottom):
        base = (row // rows_in_plane) * plane
        part = target[base : base + plane]
        at = index[(row % index_rows) * index_row_step :]
        values = source[row * width : (row + 1) * width]
        if index_step == 0:
            _combine_lines(
                part[at[0] * scale + first : at[0] * scale + last], values[first:last], action
            )
        else:
            for r in range(first, last):
                place = np.uintp(at[r * index_step] * scale + r * step)
                part[place] = _combined(part[place], values[r], action)
