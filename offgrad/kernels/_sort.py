"""The order of the elements of rows: sorted, or the first few only."""

from __future__ import annotations

from math import prod

import numpy as np

from offgrad.kernels import _ranks
from offgrad.kernels._arrays import Array
from offgrad.kernels._chunks import in_chunks
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import uses_numba

_KEYED = (np.dtype(np.float32), np.dtype(np.int32))
_MIN_LENGTH = 16
_FEW = 16
_LOW = np.int64(0xFFFFFFFF)


@in_float32()
def sorted_indices(x: Array, descending: bool, first: int = 0, last: int | None = None) -> Array:
    """Return the indices of a stable sort along the last axis, from rank `first` to ``last - 1``.

    Args:
        x: real numbers; NaN is larger than any number.
        descending: from the largest down; equal elements stay in their order.
        first: the first rank wanted.
        last: the rank behind the last one wanted, None for all.

    The result is a new C-contiguous int64 array.
    """
    length = x.shape[-1]
    last = length if last is None else last
    rows = x.reshape(prod(x.shape[:-1]), length)
    out = np.empty((rows.shape[0], last - first), np.int64)
    is_compiled = x.dtype == np.float32 and uses_numba(x) and length < 2**32
    if is_compiled and first == 0 and 0 < 8 * last <= length:
        find = _by_heap
    elif is_compiled and last - first == 1 and not descending:
        find = _by_rank
    elif first == 0 and last <= _FEW and length >= _MIN_LENGTH * _FEW and x.dtype.kind == "f":
        find = _by_extremes
    elif x.dtype in _KEYED and length >= _MIN_LENGTH:
        find = _by_keys
    else:
        find = _by_argsort

    def sort(start: int, stop: int) -> None:
        out[start:stop] = find(rows[start:stop], descending, first, last)

    # A sort costs some twenty passes.
    in_chunks(sort, len(rows), 4 * length)
    return out.reshape(*x.shape[:-1], last - first)


def _by_heap(x: Array, descending: bool, first: int, last: int) -> Array:
    return _ranks.first_indices(x, descending, last)


def _by_rank(x: Array, descending: bool, first: int, last: int) -> Array:
    return _ranks.index_at(x, first)


def _by_argsort(x: Array, descending: bool, first: int, last: int) -> Array:
    if not descending:
        order: Array = np.argsort(x, axis=-1, kind="stable")
    else:
        backwards = np.argsort(x[:, ::-1], axis=-1, kind="stable")
        order = (x.shape[-1] - 1 - backwards)[:, ::-1]
    return order[:, first:last]


def _by_extremes(x: Array, descending: bool, first: int, last: int) -> Array:
    """Search the extreme, which NumPy vectorises, and replace it, as often as there are ranks."""
    find, end = (np.argmax, -np.inf) if descending else (np.argmin, np.inf)
    rest, rows = x.copy(), np.arange(len(x))
    found = np.empty((len(x), last), np.int64)
    for rank in range(last):
        if rank:
            rest[rows, found[:, rank - 1]] = end
        found[:, rank] = find(rest, axis=-1)
    values = x[rows[:, None], found]
    if np.isnan(values).any() or (values == end).any():
        return (_by_keys if x.dtype in _KEYED else _by_argsort)(x, descending, first, last)
    return found


def _by_keys(x: Array, descending: bool, first: int, last: int) -> Array:
    """Sort numbers made of an element's order, in the high half, and its index.

    They are all different, so that a sort that is not stable, which NumPy vectorises, sorts them
    as a stable one.
    """
    length = x.shape[-1]
    if x.dtype.kind == "f":
        x = x + np.float32(0)  # no -0, which equals 0
        if np.isnan(x).any():
            return _by_argsort(x, descending, first, last)
        order = x.view(np.int32)
        order ^= (order >> np.int32(31)) & np.int32(0x7FFFFFFF)
    else:
        order = x
    keys = (~order if descending else order).astype(np.int64)
    keys <<= np.int64(32)
    keys |= np.arange(length, dtype=np.int64)
    if last - first == length:
        keys.sort(axis=-1)
    else:
        if last < length:
            keys.partition(last - 1, axis=-1)
            keys = keys[:, :last]
        if 0 < first < last - 1 or first == last - 1:
            keys.partition(first, axis=-1)
        keys = keys[:, first:]
        keys.sort(axis=-1)
    keys &= _LOW
    return keys
