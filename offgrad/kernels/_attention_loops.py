"""The compiled loops of attention: softmax within a tile, and whole heads with their products.

They are in one file, because Numba's cache notices changes of a loop's own file only.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from offgrad.kernels import _gemm
from offgrad.kernels._fastmath import exp, random_bits, row_max
from offgrad.kernels._gemm import gemm
from offgrad.kernels._jit import inlined, jit

_HIGH_HALF = np.uint64(32)

# Forms of loops that become a part of the loops that call them. As functions of their own they were
# optimised differently where they were compiled and where they were loaded from the cache.
_softmax_tile: Any = None
_softmax_tile_backward: Any = None


@functools.cache
def register() -> None:
    """Let `attention_loop` and `attention_backward_loop` find what they call; comes before them."""
    global _softmax_tile, _softmax_tile_backward
    import numba

    _gemm.register()
    part = numba.njit(inline="always")
    _softmax_tile = part(softmax_tile_loop.function)
    _softmax_tile_backward = part(softmax_tile_backward_loop.function)


@jit
def softmax_tile_loop(
    scores: Any,
    lse: Any,
    inverse: Any,
    first: int,
    causal: bool,
    key: Any,
    position: Any,
    stride: Any,
    threshold: Any,
    scale: Any,
) -> None:
    number = scores.dtype.type
    zero = number(0)
    for i in range(scores.shape[0]):
        row = scores[i]
        seen = row[: min(row.size, first + i + 1)] if causal else row[: row.size]
        for j in range(seen.size, row.size):
            row[j] = zero
        highest = row_max(seen) if seen.size > 0 else number(-np.inf)
        if highest == number(-np.inf):
            for j in range(seen.size):
                seen[j] = zero
            lse[i] = number(np.inf)
            inverse[i] = zero
            continue
        total = zero
        for j in range(seen.size):
            power = exp(seen[j] - highest)
            seen[j] = power
            total += power
        lse[i] = highest + number(np.log(total))
        inverse[i] = scale / total
        if threshold > np.uint64(0):
            start = position + np.uint64(i) * stride
            for j in range(seen.size):
                keep = random_bits(key, start + np.uint64(j)) >> _HIGH_HALF >= threshold
                seen[j] = seen[j] if keep else zero


@jit
def softmax_tile_backward_loop(
    p: Any,
    ds: Any,
    lse: Any,
    delta: Any,
    first: int,
    causal: bool,
    key: Any,
    position: Any,
    stride: Any,
    threshold: Any,
    scale: Any,
) -> None:
    number = p.dtype.type
    zero = number(0)
    for i in range(p.shape[0]):
        count = min(p.shape[1], first + i + 1) if causal else p.shape[1]
        for j in range(count, p.shape[1]):
            p[i, j] = zero
            ds[i, j] = zero
        row = p[i][:count]
        d = ds[i][:count]
        norm = number(lse[i])
        dot = delta[i]
        if threshold > np.uint64(0):
            start = position + np.uint64(i) * stride
            for j in range(row.size):
                keep = random_bits(key, start + np.uint64(j)) >> _HIGH_HALF >= threshold
                power = exp(row[j] - norm)
                d[j] = power * ((d[j] * scale if keep else zero) - dot)
                row[j] = power * scale if keep else zero
        else:
            for j in range(row.size):
                power = exp(row[j] - norm)
                d[j] = power * (d[j] - dot)
                row[j] = power


@inlined
def add_mask(scores: Any, mask: Any, start: int, stride: int) -> None:
    """Add a mask, whose rows begin `stride` elements apart from `start` on, to scores."""
    if mask.size > 0:
        for i in range(scores.shape[0]):
            row, added = scores[i], mask[start + i * stride :]
            for j in range(row.size):
                row[j] += added[j]


@jit
def attention_loop(
    blas: Any,
    sizes: Any,
    size: int,
    q: int,
    turned_keys: int,
    v: int,
    out: int,
    lse: Any,
    norms: Any,
    causal: bool,
    key: Any,
    position: Any,
    threshold: Any,
    dropout_scale: Any,
    mask: Any,
    mask_strides: Any,
    memory: Any,
) -> None:
    first_item, heads, batch_stride, head_stride, row_stride = mask_strides
    items, rows, keys, width, value_width, tile = sizes
    zero = type(dropout_scale)(0)
    for item in range(items):
        at_mask = (first_item + item) // heads * batch_stride
        at_mask += (first_item + item) % heads * head_stride
        for first in range(0, rows, tile):
            row = item * rows + first
            count = min(tile, rows - first)
            seen = min(keys, first + count) if causal else keys
            scores = memory[: count * seen].reshape(count, seen)
            at = memory.ctypes.data
            a, b = q + row * width * size, turned_keys + item * width * keys * size
            gemm(blas, count, seen, width, 0, a, b, keys, zero, at)
            add_mask(scores, mask, at_mask + first * row_stride, row_stride)
            _softmax_tile(
                scores,
                lse[row : row + count],
                norms[row : row + count],
                first,
                causal,
                key,
                position + np.uint64(row * keys),
                np.uint64(keys),
                threshold,
                dropout_scale,
            )
            b, c = v + item * keys * value_width * size, out + row * value_width * size
            gemm(blas, count, value_width, seen, 0, at, b, value_width, zero, c)


@jit
def attention_backward_loop(
    blas: Any,
    sizes: Any,
    size: int,
    grad: int,
    q: int,
    k: int,
    turned_keys: int,
    turned_values: int,
    dq: int,
    dk: int,
    dv: int,
    lse: Any,
    deltas: Any,
    causal: bool,
    key: Any,
    position: Any,
    threshold: Any,
    dropout_scale: Any,
    mask: Any,
    mask_strides: Any,
    p_memory: Any,
    ds_memory: Any,
) -> None:
    items, rows, keys, width, value_width, tile = sizes
    zero, one = type(dropout_scale)(0), type(dropout_scale)(1)
    first_item, heads, batch_stride, head_stride, row_stride = mask_strides
    at_p, at_ds = p_memory.ctypes.data, ds_memory.ctypes.data
    for item in range(items):
        at_mask = (first_item + item) // heads * batch_stride
        at_mask += (first_item + item) % heads * head_stride
        of_keys, of_values = item * keys * width * size, item * keys * value_width * size
        for first in range(0, rows, tile):
            row = item * rows + first
            of_query, of_grad = row * width * size, row * value_width * size
            count = min(tile, rows - first)
            seen = min(keys, first + count) if causal else keys
            gemm(blas, count, seen, width, 0, q + of_query, turned_keys + of_keys, keys, zero, at_p)
            add_mask(
                p_memory[: count * seen].reshape(count, seen),
                mask,
                at_mask + first * row_stride,
                row_stride,
            )
            a, b = grad + of_grad, turned_values + of_values
            gemm(blas, count, seen, value_width, 0, a, b, keys, zero, at_ds)
            _softmax_tile_backward(
                p_memory[: count * seen].reshape(count, seen),
                ds_memory[: count * seen].reshape(count, seen),
                lse[row : row + count],
                deltas[row : row + count],
                first,
                causal,
                key,
                position + np.uint64(row * keys),
                np.uint64(keys),
                threshold,
                dropout_scale,
            )
            if dv:
                c = dv + of_values
                gemm(blas, seen, value_width, count, 1, at_p, a, value_width, one, c)
            if dk:
                gemm(blas, seen, width, count, 1, at_ds, q + of_query, width, one, dk + of_keys)
            if dq:
                c = dq + of_query
                gemm(blas, count, width, seen, 0, at_ds, k + of_keys, width, zero, c)
