"""Sums, differences, products and quotients of arrays that broadcast or are slices, row by row.

In a row one operand has as many elements as the results, and the other as many or one. The bits are
NumPy's.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arithmetic import quotient
from offgrad.kernels._arrays import Array
from offgrad.kernels._jit import Kernel, inlined, loop_of, uses_numba
from offgrad.kernels._loop_templates import value

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
        out: C-contiguous, as arrays that broadcast must be; of others each row must be.
    """
    loops = LOOPS.get(ufunc)
    if loops is None or len(arrays) != 2 or not uses_numba(*arrays, out):
        return None
    if any(each.dtype != out.dtype for each in arrays):
        return None
    first, second = (_rows(each, out.shape) for each in arrays)
    if first is None or second is None:
        return None
    (a, a_repeats, a_step), (b, b_repeats, b_step) = first, second
    if a_step or b_step:
        columns = out.shape[-1]
        fits = all(n in (1, columns) or x.size == 1 for x, n in ((a, a_repeats), (b, b_repeats)))
    else:
        columns, fits = max(a_repeats, b_repeats), True
        if columns == 1:
            columns = min(a.size, b.size)
    loop = loops[0]
    if a_repeats != 1:
        fits, loop = fits and b_repeats == 1, loops[2]
        a, b, a_step = b, a, b_step
    elif b_repeats != 1:
        loop = loops[1]
    if columns < _MIN_COLUMNS or not fits:
        return None
    rows = [(a, a_step), (b, b_step)] if loop is loops[0] else [(a, a_step)]
    if any(not step and each.size % columns != 0 for each, step in rows):
        return None
    steps = a_step or columns, b_step or columns
    return partial(loop, a, b, out.reshape(-1), columns, *steps), out.size // columns, columns


def _rows(array: Array, shape: tuple[int, ...]) -> tuple[Array, int, int] | None:
    """Return the memory of an operand, how often each element is repeated, and a step.

    If the step is 0, element ``i`` of the flat results belongs to that of the memory at
    ``i // repeats % memory.size``; else row ``i`` belongs to the one that begins at ``i * step``.
    None if neither is so.
    """
    if array.flags.c_contiguous:
        run = _run(array.shape, shape)
        return run and (array.reshape(-1), run[1], 0)
    itemsize, strides = array.itemsize, array.strides
    if array.shape != shape or len(shape) < 2 or strides[-1] != itemsize:
        return None
    step, count = strides[-2], 1
    for size, stride in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if size != 1 and stride != step * count:
            return None
        count *= size
    if step <= 0 or step % itemsize != 0:
        return None
    extent = (count - 1) * (step // itemsize) + shape[-1]
    flat = np.lib.stride_tricks.as_strided(array, (extent,), (itemsize,))
    return flat, 1, step // itemsize


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
def _row(a: Any, row: int, step: int, columns: int) -> Any:
    begin = row * step % a.size
    return a[begin : begin + columns]


def _rows_and_rows(
    a: Any, b: Any, out: Any, columns: int, a_step: int, b_step: int, start: int, stop: int
) -> None:
    for row in range(start, stop):
        x, y = _row(a, row, a_step, columns), _row(b, row, b_step, columns)
        to = out[row * columns : (row + 1) * columns]
        for i in range(columns):
            to[i] = value(x[i], y[i])


def _rows_and_numbers(
    a: Any, b: Any, out: Any, columns: int, a_step: int, b_step: int, start: int, stop: int
) -> None:
    for row in range(start, stop):
        x, number = _row(a, row, a_step, columns), b[row % b.size]
        to = out[row * columns : (row + 1) * columns]
        for i in range(columns):
            to[i] = value(x[i], number)


def _numbers_and_rows(
    a: Any, b: Any, out: Any, columns: int, a_step: int, b_step: int, start: int, stop: int
) -> None:
    for row in range(start, stop):
        x, number = _row(a, row, a_step, columns), b[row % b.size]
        to = out[row * columns : (row + 1) * columns]
        for i in range(columns):
            to[i] = value(number, x[i])


def _loops(value: Any, commutes: bool) -> tuple[Kernel[..., None], ...]:
    of_numbers = loop_of(_rows_and_numbers, value)
    from_numbers = of_numbers if commutes else loop_of(_numbers_and_rows, value)
    return loop_of(_rows_and_rows, value), of_numbers, from_numbers


LOOPS: dict[Any, tuple[Kernel[..., None], ...]] = {
    np.add: _loops(operator.add, commutes=True),
    np.subtract: _loops(operator.sub, commutes=False),
    np.multiply: _loops(operator.mul, commutes=True),
    np.divide: _loops(quotient, commutes=False),
}
"""Of each function: the loop of two rows, of a row and a number, of a number and a row."""
