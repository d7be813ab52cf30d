"""Attention of whole heads in compiled loops with products of their own.

The arithmetic is that of `_attention`, tile by tile. Without Python between the products of a tile,
narrow heads cost their arithmetic. Queries and gradients are read where they are; keys and values
of a head are copied in the order in which products read them, into memory that stays in the cache.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad import memory
from offgrad.kernels._arrays import Array, address_of
from offgrad.kernels._attention_loops import attention_backward_loop, attention_loop, register
from offgrad.kernels._attention_tiles import Dropout
from offgrad.kernels._jit import uses_numba
from offgrad.kernels._parallel import num_workers, parallel_for
from offgrad.kernels._product_tiles import vector_shape

_MASK64 = 2**64 - 1

MAX_WIDTH = 128
"""Widest heads for these loops; at this width, `_attention` by itself takes 1.2 times as long."""

TILE, CAUSAL_TILE = 96, 32
"""Query rows in a tile at most: small ones compute fewer scores beyond the diagonal."""


def usable(q: Array, k: Array, v: Array, *others: Array | None) -> bool:
    """Whether the loops compute this: narrow heads, all arrays of one float dtype, none empty."""
    given = [q, k, v, *(each for each in others if each is not None)]
    return (
        max(q.shape[3], v.shape[3]) <= MAX_WIDTH
        and uses_numba(*given)
        and all(each.size and each.dtype == q.dtype for each in given)
    )


def forward(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    scale: float,
    causal: bool,
    dropout: Dropout,
    mask: Array | None = None,
) -> None:
    """Compute `attention`."""
    register()
    loop: Any = attention_loop
    q, k, v = (_readable(each) for each in (q, k, v))
    target = _writable(out)
    sizes, number = _sizes(q, v, causal), q.dtype.type
    _, _, keys, width, _, tile, *_ = sizes
    line, value_line, room = _lines(sizes)
    count = width * line + keys * value_line + room * (line + value_line)
    added, strides = _added(mask, keys, number)
    heads = q.shape[0] * q.shape[1]
    workers = num_workers(heads)
    space, share = _rooms(count, sizes, number, workers)
    body = partial(
        loop,
        sizes,
        *_addresses(q, k, v, target),
        lse.reshape(-1),
        np.empty((workers, tile), number),
        causal,
        number(scale),
        *_rule(dropout, number),
        added,
        strides,
        address_of(space),
        share,
    )
    parallel_for(body, heads, _head_cost(q, v), merge=True, workers=workers)
    if target is not out:
        out[...] = target


def backward(
    inputs: tuple[Array, ...],
    lse: Array,
    gradients: tuple[Array | None, ...],
    scale: float,
    causal: bool,
    dropout: Dropout,
    mask: Array | None = None,
) -> None:
    """Compute `attention_backward`.

    Args:
        inputs: grad, q, k, v and out.
        lse: the forward's.
        gradients: dq, dk and dv.
        scale, causal, dropout, mask: as in the forward.
    """
    register()
    loop: Any = attention_backward_loop
    inputs = tuple([_readable(each) for each in inputs])
    targets = [None if each is None else _writable(each) for each in gradients]
    _, q, _, v, _ = inputs
    sizes, number = _sizes(q, v, causal), q.dtype.type
    _, _, keys, width, value_width, tile, most, lanes, _ = sizes
    line, value_line, room = _lines(sizes)
    key_line, key_room = -(-width // lanes) * lanes, -(-keys // most) * most
    count = (width + value_width + 2 * room) * line + (keys + room + key_room) * key_line
    count += tile * (key_line + value_line) + key_room * value_line
    added, strides = _added(mask, keys, number)
    heads = q.shape[0] * q.shape[1]
    workers = num_workers(heads)
    space, share = _rooms(count, sizes, number, workers)
    body = partial(
        loop,
        sizes,
        *_addresses(*inputs, *targets),
        np.array(lse).reshape(-1),  # writable: loops are compiled for one type
        np.empty((workers, tile), number),
        causal,
        number(scale),
        *_rule(dropout, number),
        added,
        strides,
        address_of(space),
        share,
    )
    parallel_for(body, heads, _head_cost(q, v), merge=True, workers=workers)
    for target, gradient in zip(targets, gradients, strict=True):
        if target is not None and gradient is not None and target is not gradient:
            gradient[...] = target


def _head_cost(q: Array, v: Array) -> int:
    (rows, width), (keys, value_width) = q.shape[2:], v.shape[2:]
    return int(rows * keys // 2 + (rows + keys) * max(width, value_width))


def _sizes(q: Array, v: Array, causal: bool) -> tuple[int, ...]:
    """Return heads, rows, keys, widths, rows of a tile, and what `multiply_panels` needs."""
    (_, heads, rows, width), (_, _, keys, value_width) = q.shape, v.shape
    nbytes, most = vector_shape()
    largest = CAUSAL_TILE if causal else TILE
    tiles = -(-rows // largest)
    tile = min(rows, -(-rows // (tiles * most)) * most)
    return heads, rows, keys, width, value_width, tile, most, nbytes // q.itemsize, q.itemsize


def _lines(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the elements between rows of scores and of values, and the rows of a tile."""
    _, _, keys, _, value_width, tile, most, lanes, _ = sizes
    return -(-keys // lanes) * lanes, -(-value_width // lanes) * lanes, -(-tile // most) * most


def _rooms(count: int, sizes: tuple[int, ...], number: Any, workers: int) -> tuple[Array, int]:
    """Return memory for each worker, and the bytes of one's share.

    It holds `count` elements, a row of zeros, and what the last tile overruns.
    """
    _, _, _, _, _, _, most, lanes, size = sizes
    share = -(-(count + 3 * lanes * (most + 1)) * size // 4096) * 4096
    return memory.empty(workers * share, np.uint8), share


def _readable(array: Array) -> Array:
    """Return `array`, or a copy whose rows are contiguous."""
    size, (batch, head, row, column) = array.itemsize, array.strides
    if column == size and min(batch, head, row) >= 0 == batch % size + head % size + row % size:
        return array
    return memory.contiguous(array)


def _writable(array: Array) -> Array:
    """Return `array`, or new memory whose rows are contiguous."""
    if not array.flags.writeable:
        raise ValueError("attention writes its results into given arrays, and one is read-only")
    return _readable(array)


def _addresses(*arrays: Array | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the arrays' addresses, 0 for None, and the elements between batches, heads, rows."""
    addresses = tuple([0 if each is None else address_of(each) for each in arrays])
    strides = [
        0 if each is None else each.strides[axis] // each.itemsize
        for each in arrays
        for axis in range(3)
    ]
    return addresses, tuple(strides)


def _added(mask: Array | None, keys: int, number: Any) -> tuple[Array, tuple[int, ...]]:
    """Return the numbers that a mask adds, without what is broadcast, and their strides.

    The strides, in elements, are those from one batch element, head and row to the next.
    """
    if mask is None:
        return np.empty(0, number), (0, 0, 0)
    whole = np.broadcast_to(mask, (1,) * (4 - mask.ndim) + mask.shape)
    index = tuple([slice(0, 1) if stride == 0 else slice(None) for stride in whole.strides])
    distinct = whole[(*index[:3], slice(None))]
    if distinct.dtype == np.bool_:
        distinct = np.where(distinct, number(0), number(-np.inf))
    shape = (*distinct.shape[:3], keys)
    values = np.ascontiguousarray(np.broadcast_to(distinct, shape), number)
    strides = zip(values.strides[:3], values.shape, strict=False)
    return values.reshape(-1), tuple(
        [0 if size == 1 else stride // values.itemsize for stride, size in strides]
    )


def _rule(dropout: Dropout, number: Any) -> tuple[Any, ...]:
    return (
        dropout.key,
        np.uint64(dropout.offset & _MASK64),
        dropout.threshold,
        number(dropout.scale),
    )
