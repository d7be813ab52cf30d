"""Attention of whole heads in compiled loops that call BLAS themselves.

The arithmetic is that of `_attention`, tile by tile. Without Python between the products of a tile,
narrow heads cost their arithmetic. The heads of a range are copied first, so results do not depend
on strides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._attention_loops import attention_backward_loop, attention_loop, register
from offgrad.kernels._attention_tiles import Dropout
from offgrad.kernels._jit import uses_numba
from offgrad.kernels._openblas import library
from offgrad.kernels._parallel import Body

_MASK64 = 2**64 - 1

MAX_WIDTH = 128
"""Widest heads for these loops; at this width, `_attention` by itself takes 1.2 times as long."""

TILE = 32
"""Query rows in a tile. OpenBLAS has its own kernels for products this small, and fewer scores
beyond the diagonal are computed in vain."""


def usable(q: Array, k: Array, v: Array, *others: Array | None) -> bool:
    """Whether the loops compute this: narrow heads, all arrays of one float dtype, none empty."""
    given = [q, k, v, *(each for each in others if each is not None)]
    return (
        max(q.shape[3], v.shape[3]) <= MAX_WIDTH
        and library() is not None
        and uses_numba(*given)
        and all(each.size and each.dtype == q.dtype for each in given)
    )


def head_cost(q: Array, v: Array) -> int:
    """Return the cost of a head for `parallel_for`, which also bounds the copies of a range."""
    (rows, width), (keys, value_width) = q.shape[2:], v.shape[2:]
    return int(rows * keys // 2 + (rows + keys) * max(width, value_width))


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
) -> Body:
    """Return the body of a `parallel_for` over heads that computes `attention` of them."""
    register()
    loop: Any = attention_loop
    (_, heads, rows, width), (_, _, keys, value_width) = q.shape, v.shape
    tile, number = min(TILE, rows), q.dtype.type
    added, strides = _added(mask, keys, number)

    def run(start: int, stop: int) -> None:
        memory = np.empty(tile * keys, number)
        for at, item, items in _parts(start, stop, heads):
            queries, values = _scaled(q[at], number(scale)), np.ascontiguousarray(v[at])
            turned_keys = _turned(k[at])
            result, norms = np.empty(out[at].shape, number), np.empty(lse[at].shape, number)
            loop(
                _blas(q),
                (items, rows, keys, width, value_width, tile),
                *_addresses(queries, turned_keys, values, result),
                lse[at].reshape(-1),
                norms.reshape(-1),
                causal,
                *_rule(dropout, item * rows * keys, number),
                added,
                (item, heads, *strides),
                memory,
            )
            np.multiply(result, norms[..., None], out=out[at])

    return run


def backward(
    inputs: tuple[Array, ...],
    lse: Array,
    gradients: tuple[Array | None, ...],
    scale: float,
    causal: bool,
    dropout: Dropout,
    mask: Array | None = None,
) -> Body:
    """Return the body of a `parallel_for` over heads that computes `attention_backward` of them.

    Args:
        inputs: grad, q, k, v and out.
        lse: the forward's.
        gradients: dq, dk and dv.
        scale, causal, dropout, mask: as in the forward.
    """
    register()
    loop: Any = attention_backward_loop
    grad, q, k, v, out = inputs
    (_, heads, rows, width), (_, _, keys, value_width) = q.shape, v.shape
    tile, number = min(TILE, rows), q.dtype.type
    added, strides = _added(mask, keys, number)

    def run(start: int, stop: int) -> None:
        memory = np.empty((2, tile * keys), number)
        for at, item, items in _parts(start, stop, heads):
            queries, factor = _scaled(q[at], number(scale)), np.ascontiguousarray(k[at])
            turned_keys, turned_values = _turned(factor), _turned(v[at])
            gradient, result = np.ascontiguousarray(grad[at]), np.ascontiguousarray(out[at])
            results = [
                None if each is None else np.zeros(each[at].shape, number) for each in gradients
            ]
            loop(
                _blas(q),
                (items, rows, keys, width, value_width, tile),
                *_addresses(gradient, queries, factor, turned_keys, turned_values, *results),
                np.array(lse[at]).reshape(-1),  # writable: loops are compiled for one type
                np.einsum("...te,...te->...t", gradient, result).reshape(-1),
                causal,
                *_rule(dropout, item * rows * keys, number),
                added,
                (item, heads, *strides),
                *memory,
            )
            for array, computed, factor_ in zip(gradients, results, (scale, 1, 1), strict=True):
                if array is not None and computed is not None:
                    np.multiply(computed, number(factor_), out=array[at])

    return run


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


def _parts(start: int, stop: int, heads: int) -> Iterator[tuple[tuple[Any, slice], int, int]]:
    """Yield the heads `start` to `stop` - 1 in pieces: index, first, and number.

    A piece is several whole batch elements, or some heads of one.
    """
    while start < stop:
        element, first = divmod(start, heads)
        whole = (stop - start) // heads
        at: tuple[Any, slice]
        if first == 0 and whole > 0:
            at, count = (slice(element, element + whole), slice(0, heads)), whole * heads
        else:
            count = min(heads - first, stop - start)
            at = element, slice(first, first + count)
        yield at, start, count
        start += count


def _scaled(array: Array, scale: Any) -> Array:
    product: Array = np.multiply(array, scale, order="C")
    return product


def _turned(array: Array) -> Array:
    """Return [..., S, D] as [..., D, S], by way of a contiguous copy: NumPy is quicker so."""
    return np.ascontiguousarray(np.ascontiguousarray(array).swapaxes(-1, -2))


def _addresses(*arrays: Array | None) -> tuple[int, ...]:
    """Return the size of an element and the arrays' addresses, 0 for None."""
    assert arrays[0] is not None
    addresses = (0 if each is None else each.ctypes.data for each in arrays)
    return (arrays[0].itemsize, *addresses)


def _blas(array: Array) -> tuple[Any, Any]:
    found = library()
    assert found is not None
    return np.uintp(found.gemm(array.dtype)), found.integer(0)


def _rule(dropout: Dropout, position: int, number: Any) -> tuple[Any, ...]:
    offset = np.uint64((dropout.offset + position) & _MASK64)
    return dropout.key, offset, dropout.threshold, number(dropout.scale)
