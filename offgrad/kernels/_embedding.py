"""Sums of the rows of an embedding table over bags, and its gradient: rows summed by index."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import (
    Array,
    flat,
    rows,
)
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import parallel_for

_MIN_COLUMNS = 64


@in_float32("out")
def embedding_backward(grad: Array, index: Array, out: Array, padding_idx: int = -1) -> None:
    """Write into row v of `out` the sum of those rows of `grad` whose index is v.

    Args:
        grad: [..., D] floats.
        index: Integers, one per row of `grad`, 0 to V - 1.
        out: [V, D], written completely.
        padding_idx: Row that gets no gradient; -1 for none.

    Rows are added in the order of `index` on any number of threads. Raises IndexError for an
    index out of range, ValueError if shapes do not fit.
    """
    g, i = rows(grad), flat(index)
    if out.ndim != 2 or g.shape != (i.size, out.shape[1]):
        raise ValueError(
            "embedding_backward takes grad [N, D], index [N] and out [V, D], got shapes "
            f"{grad.shape}, {index.shape} and {out.shape}"
        )
    size, width = out.shape
    wrong = (i < 0) | (i >= size)
    if wrong.any():
        at = int(wrong.argmax())
        raise IndexError(
            f"embedding's index number {at} is {int(i[at])}: with {size} rows it is 0 to {size - 1}"
        )
    if not uses_numba(g, out):
        _embedding_backward_numpy(g, i, out, padding_idx)
        return
    o, zeros = rows(out), flat(out)
    parallel_for(lambda start, stop: zeros[start:stop].fill(0), zeros.size)
    # Ranges of columns: each adds its part of the rows one after the other, as they lie in memory.
    parts = max(1, width // _MIN_COLUMNS)
    step = -(-width // parts)
    parallel_for(
        partial(_embedding_backward_loop, g, i, o, padding_idx, step),
        parts,
        i.size * step,
        merge=True,
    )


def _embedding_backward_numpy(grad: Array, index: Array, out: Array, padding_idx: int) -> None:
    total = np.zeros(out.shape, dtype=out.dtype)
    kept = index != padding_idx
    np.add.at(total, index[kept], grad[kept])
    out[...] = total


@jit
def _embedding_backward_loop(
    grad: Any, index: Any, out: Any, padding_idx: int, step: int, start: int, stop: int
) -> None:
    first, last = start * step, min(stop * step, out.shape[1])
    for i in range(index.size):
        v = index[i]
        if v != padding_idx:
            g = grad[i, first:last]
            total = out[v, first:last]
            for j in range(g.size):
                total[j] += g[j]


def embedding_bag(
    table: Array, index: Array, starts: Array, out: Array, padding_idx: int = -1
) -> None:
    """Write into row b of `out` the sum of the rows of `table` at the indices of bag b.

    Args:
        table: [V, D] floats.
        index: Integers [N], 0 to V - 1, not checked.
        starts: int64 [B + 1]; bag b has the indices from starts[b] to before starts[b + 1].
        out: [B, D], written completely.
        padding_idx: Row that does not count; -1 for none.

    Rows are added in the order of `index` on any number of threads; those of 16-bit floats in
    float32, rounded once. Raises ValueError if shapes do not fit.
    """
    if out.shape != (starts.size - 1, table.shape[1]):
        raise ValueError(
            "embedding_bag takes table [V, D], starts [B + 1] and out [B, D], got shapes "
            f"{table.shape}, {starts.shape} and {out.shape}"
        )
    t, i = rows(table), flat(index)
    if not uses_numba(t, out):
        _embedding_bag_numpy(t, i, starts, out, padding_idx)
        return
    body = partial(_embedding_bag_loop, t, i, starts, rows(out), padding_idx)
    parallel_for(
        body, out.shape[0], (i.size // max(1, out.shape[0]) + 1) * out.shape[1], merge=True
    )


def _embedding_bag_numpy(
    table: Array, index: Array, starts: Array, out: Array, padding_idx: int
) -> None:
    bag_of = np.repeat(np.arange(out.shape[0]), np.diff(starts))
    kept = index != padding_idx
    total = np.zeros(out.shape, np.float32 if out.itemsize == 2 else out.dtype)
    np.add.at(total, bag_of[kept], table[index[kept]].astype(total.dtype))
    out[...] = total


@jit
def _embedding_bag_loop(
    table: Any, index: Any, starts: Any, out: Any, padding_idx: int, start: int, stop: int
) -> None:
    for bag in range(start, stop):
        total = out[bag]
        total[:] = 0
        for i in range(starts[bag], starts[bag + 1]):
            if index[i] != padding_idx:
                row = table[index[i]]
                for j in range(row.size):
                    total[j] += row[j]
