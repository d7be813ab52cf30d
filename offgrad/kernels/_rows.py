"""Rows of a table: taken by index on several threads, and summed by index."""

from __future__ import annotations

from math import prod

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._embedding import embedding_backward
from offgrad.kernels._jit import uses_numba
from offgrad.kernels._parallel import BLOCK, parallel_for


def take_rows(x: Array, index: Array, out: Array) -> None:
    """Write ``x[index]`` into `out`.

    Args:
        x: the table, any strides.
        index: C-contiguous integers from ``-len(x)`` to ``len(x) - 1``; they are not checked.
        out: C-contiguous, of shape ``index.shape + x.shape[1:]``.
    """
    flat, target = index.reshape(-1), out.reshape(index.size, *x.shape[1:])
    if not x.flags.c_contiguous:
        target[...] = x[flat]
        return
    # Not the mode "raise", which makes a second copy; "wrap" counts from the end as NumPy does.
    parallel_for(
        lambda a, b: np.take(x, flat[a:b], axis=0, out=target[a:b], mode="wrap"),
        flat.size,
        prod(x.shape[1:]),
    )


def add_rows(source: Array, index: Array, out: Array) -> None:
    """Write into row v of `out` the sum of those rows of `source` whose index is v.

    Args:
        source: C-contiguous, of shape ``index.shape + out.shape[1:]``.
        index: C-contiguous integers from ``-len(out)`` to ``len(out) - 1``; they are not checked.
        out: C-contiguous, written completely.

    Rows are added in the order of `index` on any number of threads.
    """
    flat, width = index.reshape(-1), prod(out.shape[1:])
    if source.size <= BLOCK or width < 8 or not uses_numba(source, out):
        out[...] = 0
        np.add.at(out, flat, source.reshape(flat.size, *out.shape[1:]))
        return
    if flat.min() < 0:
        flat = np.where(flat < 0, flat + len(out), flat)
    embedding_backward(source.reshape(flat.size, width), flat, out.reshape(len(out), width))
