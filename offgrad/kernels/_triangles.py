"""Triangles of matrices, the rest 0."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import BITS, Array, rows
from offgrad.kernels._jit import backend, jit
from offgrad.kernels._parallel import BLOCK, parallel_for


def triangle(x: Array, out: Array, diagonal: int, upper: bool) -> None:
    """Write the upper or lower triangle of the matrices `x` from or to a diagonal into `out`.

    Args:
        x: [..., R, C], of any strides.
        out: C-contiguous, of the same shape and dtype.
        diagonal: the distance of the diagonal above the main one, which stays.
        upper: whether to keep the elements above the diagonal, else those below.
    """
    bits = BITS.get(x.dtype.itemsize)
    if x.size <= BLOCK or bits is None or not x.flags.c_contiguous or backend() != "numba":
        np.copyto(out, np.triu(x, diagonal) if upper else np.tril(x, diagonal))
        return
    source, target, height = rows(x.view(bits)), rows(out.view(bits)), x.shape[-2]
    first = diagonal if upper else diagonal + 1
    parallel_for(
        partial(_triangle_loop, source, target, height, first, upper),
        source.shape[0],
        source.shape[1],
        merge=True,
    )


@jit
def _triangle_loop(
    x: Any, out: Any, height: int, first: int, upper: bool, start: int, stop: int
) -> None:
    for i in range(start, stop):
        row = x[i]
        line = out[i]
        at = min(max(i % height + first, 0), row.size)
        if upper:
            line[:at] = 0
            line[at:] = row[at:]
        else:
            line[:at] = row[:at]
            line[at:] = 0
