"""Sums, differences, products and quotients of arrays that broadcast, row by row.

In a row one operand has as many elements as the results, and the other as many or one. The bits are
NumPy's.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arithmetic import quotient
from offgrad.kernels._arrays import Array
from offgrad.kernels._jit import Kernel, inlined, jit, uses_numba

_MIN_COLUMNS = 32
"""In rows of fewer, NumPy's loops are as fast."""


def broadcasting_loop(
    ufunc: Any, arrays: list[Array], out: Array
) -> tuple[partial[None], int, int] | None:
    """Return the body of a `parallel_for` over the rows of ``ufunc(*arrays, out=out)``.

    With it the numbers of rows and of columns. None where NumPy computes it: where the dimensions
    along which an array varies do not follow one another, and in short rows.

    Args:
        ufunc: one of NumPy's.
        arrays: they broadcast to the shape of `out`.
        out: C-contiguous, as the arrays must be.
    """
    loops = LOOPS.get(ufunc)
    if loops is None or len(arrays) != 2 or not uses_numba(*arrays, out):
        return None
    if any(each.dtype != out.dtype or not each.flags.c_contiguous for each in arrays):
        return None
    first, second = (_run(each.shape, out.shape) for each in arrays)
    if first is None or second is None:
        return None
    (a_size, a_repeats), (b_size, b_repeats) = first, second
    a, b = (each.reshape(-1) for each in arrays)
    columns = max(a_repeats, b_repeats)
    if columns == 1:
        columns, loop = min(a_size, b_size), loops[0]
        fits = max(a_size, b_size) % columns == 0
    elif a_repeats == 1:
        fits, loop = a_size % columns == 0, loops[1]
    else:
        fits, loop = b_repeats == 1 and b_size % columns == 0, loops[2]
        a, b = b, a
    if not fits or columns < _MIN_COLUMNS:
        return None
    return partial(loop, a, b, out.reshape(-1), columns), out.size // columns, columns


def _run(own: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return how many elements follow one another, and how often each is repeated at once.

    Element ``i`` of the flat results then belongs to ``flat[i // repeats % size]``. None if that is
    not so.
    """
    own = (1,) * (len(shape) - len(own)) + own
    varying = [axis for axis, size in enumerate(own) if size != 1]
    if not varying:
        return 1, math.prod(shape)
    begin, end = varying[0], varying[-1] + 1
    if own[begin:end] != shape[begin:end]:
        return None
    return math.prod(own), math.prod(shape[end:])


@inlined
def _row(a: Any, row: int, columns: int) -> Any:
    begin = row * columns % a.size
    return a[begin : begin + columns]


@jit
def _add_rows_loop(a: Any, b: Any, out: Any, columns: int, start: int, stop: int) -> None:
    for row in range(start, stop):
        x, y, to = _row(a, row, columns), _row(b, row, columns), _row(out, row, columns)
        for i in range(columns):
            to[i] = x[i] + y[i]


@jit
def _subtract_rows_loop(a: Any, b: Any, out: Any, columns: int, start: int, stop: int) -> None:
    for row in range(start, stop):
        x, y, to = _row(a, row, columns), _row(b, row, columns), _row(out, row, columns)
        for i in range(columns):
            to[i] = x[i] - y[i]


@jit
def _multiply_rows_loop(a: Any, b: Any, out: Any, columns: int, start: int, stop: int) -> None:
    for row in range(start, stop):
        x, y, to = _row(a, row, columns), _row(b, row, columns), _row(out, row, columns)
        for i in range(columns):
            to[i] = x[i] * y[i]


@jit
def _divide_rows_loop(a: Any, b: Any, out: Any, columns: int, start: int, stop: int) -> None:
    for row in range(start, stop):
        x, y, to = _row(a, row, columns), _row(b, row, columns), _row(out, row, columns)
        for i in range(columns):
            to[i] = quotient(x[i], y[i])


@jit
def _add_column_loop(a: Any, b: Any, out: Any, columns: int, start: int, stop: int) -> None:
    for row in range(start, stop):
        x, number, to = _row(a, row, columns), b[row % b.size], _row(out, row, columns)
        for i in range(columns):
            to[i] = x[i] + number


@jit
def _subtract_column_loop(a: Any, b: Any, out: Any, columns: int, start: int, stop: int) -> None:
    for row in range(start, stop):
        x, number, to = _row(a, row, columns), b[row % b.size], _row(out, row, columns)
        for i in range(columns):
            to[i] = x[i] - number


@jit
def _subtract_from_column_loop(
    a: Any, b: Any, out: Any, columns: int, start: int, stop: int
) -> None:
    for row in range(start, stop):
        x, number, to = _row(a, row, columns), b[row % b.size], _row(out, row, columns)
        for i in range(columns):
            to[i] = number - x[i]


@jit
def _multiply_column_loop(a: Any, b: Any, out: Any, columns: int, start: int, stop: int) -> None:
    for row in range(start, stop):
        x, number, to = _row(a, row, columns), b[row % b.size], _row(out, row, columns)
        for i in range(columns):
            to[i] = x[i] * number


@jit
def _divide_column_loop(a: Any, b: Any, out: Any, columns: int, start: int, stop: int) -> None:
    for row in range(start, stop):
        x, number, to = _row(a, row, columns), b[row % b.size], _row(out, row, columns)
        for i in range(columns):
            to[i] = quotient(x[i], number)


@jit
def _divide_into_column_loop(a: Any, b: Any, out: Any, columns: int, start: int, stop: int) -> None:
    for row in range(start, stop):
        x, number, to = _row(a, row, columns), b[row % b.size], _row(out, row, columns)
        for i in range(columns):
            to[i] = quotient(number, x[i])


LOOPS: dict[Any, tuple[Kernel[..., None], Kernel[..., None], Kernel[..., None]]] = {
    np.add: (_add_rows_loop, _add_column_loop, _add_column_loop),
    np.subtract: (_subtract_rows_loop, _subtract_column_loop, _subtract_from_column_loop),
    np.multiply: (_multiply_rows_loop, _multiply_column_loop, _multiply_column_loop),
    np.divide: (_divide_rows_loop, _divide_column_loop, _divide_into_column_loop),
}
"""Of each function: the loop of two rows, of a row and a number, of a number and a row."""
