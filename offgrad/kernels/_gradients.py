"""The norm of many arrays, and their scaling: one pass each, for clipping gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from offgrad.kernels._array_tables import arrays_at, batches
from offgrad.kernels._arrays import Array
from offgrad.kernels._halves import as_float
from offgrad.kernels._jit import jit
from offgrad.kernels._parallel import BLOCK

_RUN = 1024


def sum_of_squares(parts: Iterable[Sequence[Array]]) -> float:
    """Return the sum of squares of all elements.

    Short runs are added up in the arrays' dtype, runs in float64. The result does not depend on how
    the arrays are spread over the parts.

    Args:
        parts: of the arrays, which are real and C-contiguous; one part is held at a time.
    """
    by_dtype: dict[Any, list[Array]] = {}
    for arrays in parts:
        for _, table in batches({"array": arrays}, [None] * len(arrays), "array"):
            rows = list(table.rows())
            if table.is_compiled():
                sums = np.zeros(sum(max(1, -(-each.size // BLOCK)) for (each,) in rows))
                table.run(_sum_of_squares_loop, (), sums)
            else:
                sums = np.array([_sum_of_squares_numpy(row) for row in rows])
            by_dtype.setdefault(rows[0][0].dtype, []).append(sums)
            del rows
        del arrays
    return sum(float(np.concatenate(each).sum()) for each in by_dtype.values())


def scale_all(arrays: Sequence[Array], factor: float) -> None:
    """Multiply all elements in place.

    Args:
        arrays: C-contiguous.
        factor: a real number.
    """
    for _, table in batches({"array": arrays}, [None] * len(arrays), ""):
        if table.is_compiled():
            table.run(_scale_loop, (factor,))
        else:
            for (array,) in table.rows():
                np.multiply(array, array.dtype.type(factor), out=array)


def _sum_of_squares_numpy(row: tuple[Array, ...]) -> float:
    values = as_float(row[0]).reshape(-1).astype(np.float64)
    return float(values @ values)


@jit
def _sum_of_squares_loop(
    table: Array, numbers: Any, factors: Any, sums: Array, start: int, stop: int
) -> None:
    for row in range(start, stop):
        (values,) = arrays_at(table, row, numbers)
        total = 0.0
        for start in range(0, values.size, _RUN):
            run = values[start : start + _RUN]
            part = numbers[0]
            for i in range(run.size):
                part += run[i] * run[i]
            total += part
        sums[row] = total


@jit
def _scale_loop(table: Array, numbers: Any, factors: Any, start: int, stop: int) -> None:
    (factor,) = factors
    for row in range(start, stop):
        (values,) = arrays_at(table, row, numbers)
        for i in range(values.size):
            values[i] *= factor
