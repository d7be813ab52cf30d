"""Rows of a table: taken by index on several threads, and summed by index."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from offgrad.kernels._along_dim import gather, scatter_add
from offgrad.kernels._arrays import Array, address_of
from offgrad.kernels._chunks import in_chunks
from offgrad.kernels._copy import copy_bytes, register
from offgrad.kernels._embedding import embedding_backward
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import backend, jit, uses_numba
from offgrad.kernels._parallel import BLOCK, parallel_for

_MIN_NBYTES = 64
_MIN_WIDTH = 8


def take_rows(x: Array, index: Array, dim: int, out: Array) -> None:
    """Write the entries `index` along `dim` of `x` into `out`.

    Args:
        x: an array with dimensions.
        index: integers from ``-x.shape[dim]`` to ``x.shape[dim] - 1``; they are not checked.
        dim: counted from the front.
        out: C-contiguous, of shape ``x.shape[:dim] + index.shape + x.shape[dim + 1 :]``.
    """
    if not out.size:
        return
    if not x.flags.c_contiguous:  # of which np.take makes a copy
        where: Any = (*(slice(None),) * dim, index)
        out[...] = x[where]
        return
    if out.size <= BLOCK:
        np.take(x, index, axis=dim, out=out, mode="wrap")
        return
    length, inner = x.shape[dim], prod(x.shape[dim + 1 :])
    planes, flat = prod(x.shape[:dim]), np.ascontiguousarray(index).reshape(-1)
    table, target = x.reshape(planes, length, inner), out.reshape(planes, flat.size, inner)
    nbytes = inner * x.itemsize
    if nbytes < _MIN_NBYTES and planes > 1:
        at = np.where(flat < 0, flat + length, flat) if flat.min() < 0 else flat
        gather(table, at, 1, target)
        return
    if nbytes < _MIN_NBYTES or backend() != "numba" or not length:
        # Not the mode "raise", which makes a second copy; "wrap" counts from the end as NumPy does.
        take = partial(np.take, axis=1, mode="wrap")
        parallel_for(
            lambda a, b: take(table, flat[a:b], out=target[:, a:b]), flat.size, planes * inner
        )
        return
    register()
    addresses, rows = (address_of(table), address_of(target)), flat.astype(np.int64, copy=False)
    body = partial(_take_rows_loop, addresses, rows, length, nbytes)
    parallel_for(body, planes * flat.size, inner, merge=True)


@jit
def _take_rows_loop(
    addresses: Any, index: Any, length: int, nbytes: int, start: int, stop: int
) -> None:
    source, target = addresses
    for item in range(start, stop):
        plane, at = item // index.size, index[item % index.size]
        at = at + length if at < 0 else at
        row = plane * length + min(max(at, 0), length - 1)  # inside, whatever the index
        copy_bytes(source + row * nbytes, target + item * nbytes, nbytes)


@in_float32("out")
def add_rows(source: Array, index: Array, dim: int, out: Array) -> None:
    """Write into entry v of `out` along `dim` the sum of those of `source` whose index is v.

    Args:
        source: C-contiguous, of shape ``out.shape[:dim] + index.shape + out.shape[dim + 1 :]``.
        index: integers from ``-out.shape[dim]`` to ``out.shape[dim] - 1``; they are not checked.
        dim: counted from the front.
        out: C-contiguous, written completely.

    Entries are added in the order of `index` on any number of threads. Sums of 16-bit floats are
    rounded once.
    """
    if source.size <= BLOCK:
        out[...] = 0
        where: Any = (*(slice(None),) * dim, index) if dim else index
        np.add.at(out, where, source)
        return
    length, inner = out.shape[dim], prod(out.shape[dim + 1 :])
    flat = np.ascontiguousarray(index).reshape(-1)
    planes = prod(out.shape[:dim])
    if flat.size and flat.min() < 0:
        flat = np.where(flat < 0, flat + length, flat)
    rows = source.reshape(planes, flat.size, inner)
    if planes == 1 and inner >= _MIN_WIDTH and uses_numba(source, out):
        embedding_backward(rows[0], flat, out.reshape(length, inner))
        return
    in_chunks(lambda a, b: out.reshape(-1)[a:b].fill(0), out.size)
    scatter_add(out.reshape(planes, length, inner), flat, rows, 1)
