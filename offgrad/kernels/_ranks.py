"""Elements of given ranks in rows of float32, without sorting the rows.

NaN is larger than any number, 0 and -0 are equal, and equal elements stay in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._jit import inlined, jit

_BLOCK = 64
_U = np.uintp
_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)
_ONES = 0xFFFFFFFF


def first_indices(x: Array, descending: bool, count: int) -> Array:
    """Return the indices of the first `count` elements of each row in their order.

    Args:
        x: [rows, length] C-contiguous float32.
        descending: from the largest down.
        count: from 1 to the length; time grows with its logarithm, if it is much smaller.
    """
    found = np.empty((len(x), count), np.int64)
    _first_loop(x.view(np.int32), np.int32(0 if descending else -1), found)
    return found


def index_at(x: Array, rank: int) -> Array:
    """Return the index of the element at `rank`, from the smallest up, of each row, [rows, 1].

    `x` is [rows, length], C-contiguous float32.
    """
    found = np.empty((len(x), 1), np.int64)
    values = np.partition(x, rank, axis=-1)[:, rank]
    _find_loop(x, values, rank, found)
    return found


@inlined
def _order(bits: Any, flip: Any) -> Any:
    """Return an integer that is larger, or with `flip` -1 smaller, for a larger float."""
    magnitude = np.int32(bits & _MAGNITUDE)
    signed = magnitude if bits >= 0 else np.int32(-magnitude)
    return np.int32((_MAGNITUDE if magnitude > _INFINITY else signed) ^ flip)


@inlined
def _sink(heap: Any, at: int, size: int) -> None:
    """Exchange the number at `at` with smaller ones below it, until none is."""
    number = heap[at]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= number:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = number


@jit
def _first_loop(bits: Any, flip: Any, found: Any) -> None:
    """Keep the best numbers of order, in the high half, and index in a heap, the least on top."""
    count = found.shape[1]
    for i in range(bits.shape[0]):
        row, heap = bits[i], found[i]
        for j in range(count):
            heap[j] = (np.int64(_order(row[j], flip)) << 32) | (_ONES - j)
        for j in range(count // 2, 0, -1):
            _sink(heap, j - 1, count)
        least = np.int32(heap[0] >> 32)
        for first in range(count, row.size, _BLOCK):
            block = row[first : first + _BLOCK]
            best = least
            for j in range(_U(block.size)):
                order = _order(block[j], flip)
                best = order if order > best else best
            if best == least:
                continue
            for j in range(block.size):
                order = _order(block[j], flip)
                if order > least:
                    heap[0] = (np.int64(order) << 32) | (_ONES - first - j)
                    _sink(heap, 0, count)
                    least = np.int32(heap[0] >> 32)
        for size in range(count - 1, 0, -1):  # the least goes last
            heap[0], heap[size] = heap[size], heap[0]
            _sink(heap, 0, size)
        for j in range(count):
            heap[j] = _ONES - (heap[j] & _ONES)


@jit
def _find_loop(x: Any, values: Any, rank: int, found: Any) -> None:
    for i in range(x.shape[0]):
        row, value = x[i], values[i]
        is_nan = value != value
        before: Any = 0
        for j in range(row.size):
            a = row[j]
            before += np.int64(a == a) if is_nan else np.int64(a < value)
        left = rank - before  # so many elements equal to it come first
        for first in range(0, row.size, _BLOCK):
            block = row[first : first + _BLOCK]
            equal: Any = 0
            for j in range(block.size):
                a = block[j]
                equal += np.int64((a == value) | (is_nan & (a != a)))
            if equal <= left:
                left -= equal
                continue
            for j in range(block.size):
                a = block[j]
                if (a == value) | (is_nan & (a != a)):
                    if left == 0:
                        found[i, 0] = first + j
                        break
                    left -= 1
            break
