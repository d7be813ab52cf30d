"""Attention of whole heads in compiled loops that call BLAS themselves.

The arithmetic is that of `_attention`, tile by tile. Without Python between the products of a tile,
narrow heads cost their arithmetic; results do not depend on strides, as each head is copied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from offgrad.kernels._arrays import Array
from offgrad.kernels._attention_loops import attention_backward_loop, attention_loop, register
from offgrad.kernels._attention_tiles import Dropout
from offgrad.kernels._jit import uses_numba
from offgrad.kernels._openblas import library
from offgrad.kernels._parallel import Body

_MASK64 = 2**64 - 1


class Heads(NamedTuple):
    """The sizes of one call.

    Attributes:
        heads: number of heads of a batch element.
        rows: T.
        keys: S.
        width: D.
        value_width: E.
        tile: rows in a tile.
    """

    heads: int
    rows: int
    keys: int
    width: int
    value_width: int
    tile: int


MAX_WIDTH = 24
"""Widest heads for these loops; at 32 those of `_attention`, quicker to compile, are as fast."""


def usable(q: Array, k: Array, v: Array, *others: Array | None) -> bool:
    """Whether the loops compute this: narrow heads, all arrays of one float dtype, none empty."""
    given = [q, k, v, *(each for each in others if each is not None)]
    return (
        max(q.shape[3], v.shape[3]) <= MAX_WIDTH
        and library() is not None
        and uses_numba(*given)
        and all(each.size and each.dtype == q.dtype for each in given)
    )


def forward(
    sizes: Heads,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    scale: float,
    causal: bool,
    dropout: Dropout,
) -> Body:
    """Return the body of a `parallel_for` over heads that computes `attention` of them."""
    register()
    loop: Any = attention_loop
    number = q.dtype.type
    arrays = (_elements(q), _elements(k), _elements(v), _elements(out), _elements(lse)[0])
    rule = (number(scale), causal, *_rule(dropout, number))
    keys, tile, widths = sizes.keys, sizes.tile, (sizes.width, sizes.value_width)

    def run(start: int, stop: int) -> None:
        matrices = tuple([np.empty((n, m), q.dtype) for n in (keys, tile) for m in widths])
        vectors = np.empty(tile, q.dtype), np.empty(tile * keys, q.dtype)
        loop(start, stop, *_blas(q), tuple(sizes), *arrays, *rule, matrices, vectors)

    return run


def backward(
    sizes: Heads,
    inputs: tuple[Array, ...],
    lse: Array,
    gradients: tuple[Array | None, ...],
    scale: float,
    causal: bool,
    dropout: Dropout,
) -> Body:
    """Return the body of a `parallel_for` over heads that computes `attention_backward` of them.

    Args:
        sizes: of the call.
        inputs: grad, q, k, v and out.
        lse: the forward's.
        gradients: dq, dk and dv.
        scale, causal, dropout: as in the forward.
    """
    register()
    loop: Any = attention_backward_loop
    number = inputs[0].dtype.type
    arrays = tuple([_elements(each) for each in inputs])
    norms, _ = _elements(lse)
    nothing = (np.empty(0, number), (0, 0, 0, 0))
    written = tuple([nothing if each is None else _elements(each) for each in gradients])
    needed = tuple([each is not None for each in gradients])
    rule = (number(scale), causal, *_rule(dropout, number))
    keys, tile, widths = sizes.keys, sizes.tile, (sizes.width, sizes.value_width)

    def run(start: int, stop: int) -> None:
        matrices = [np.empty((n, m), number) for n in (keys, tile) for m in widths for _ in "ab"]
        vectors = [np.empty(n, number) for n in (tile, tile * keys, tile * keys)]
        loop(
            start,
            stop,
            *_blas(inputs[0]),
            tuple(sizes),
            arrays,
            norms,
            written,
            needed,
            *rule,
            tuple(matrices),
            tuple(vectors),
        )

    return run


def dense(array: Array) -> Array:
    """Return `array` if loops can write to it, else another one of its shape."""
    return array if _is_simple(array) else np.empty(array.shape, array.dtype)


def _is_simple(array: Array) -> bool:
    steps = array.strides
    return array.flags.writeable and not any(each < 0 or each % array.itemsize for each in steps)


def _elements(array: Array) -> tuple[Array, tuple[int, ...]]:
    """Return the array's memory as one dimension, and its strides in elements.

    So loops are compiled once, whatever the strides. Inputs that have no such form are copied.
    """
    item = array.itemsize
    if not _is_simple(array):
        array = np.array(array, order="C")
    strides = tuple([each // item for each in array.strides])
    count = 1 + sum((size - 1) * step for size, step in zip(array.shape, strides, strict=True))
    return as_strided(array, (count,), (item,)), strides


def _blas(array: Array) -> tuple[Any, Any]:
    found = library()
    assert found is not None
    return np.uintp(found.gemm(array.dtype)), found.integer(0)


def _rule(dropout: Dropout, number: Any) -> tuple[Any, ...]:
    offset = np.uint64(dropout.offset & _MASK64)
    return dropout.key, offset, dropout.threshold, number(dropout.scale)
