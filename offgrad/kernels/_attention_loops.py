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
from offgrad.kernels._jit import FAST, inlined, jit

_HIGH_HALF = np.uint64(32)

# Compiled loops call the compiled form of others.
_softmax_tile: Any = None
_softmax_tile_backward: Any = None


@functools.cache
def register() -> None:
    """Let `attention_loop` and `attention_backward_loop` find what they call; comes before them."""
    global _softmax_tile, _softmax_tile_backward
    import numba

    _gemm.register()
    compiled = numba.njit(nogil=True, fastmath=set(FAST), error_model="numpy")
    _softmax_tile = compiled(softmax_tile_loop.function)
    _softmax_tile_backward = compiled(softmax_tile_backward_loop.function)


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
def _load(array: Any, first: int, row: int, column: int, out: Any, factor: Any) -> None:
    """Write factor times a strided matrix into `out`."""
    for i in range(out.shape[0]):
        at = first + i * row
        for j in range(out.shape[1]):
            out[i, j] = array[at + j * column] * factor


@inlined
def _store(array: Any, first: int, row: int, column: int, values: Any, factor: Any) -> None:
    """Write factor times `values` into a strided matrix."""
    for i in range(values.shape[0]):
        at = first + i * row
        for j in range(values.shape[1]):
            array[at + j * column] = values[i, j] * factor


@jit
def attention_loop(
    start: int,
    stop: int,
    address: Any,
    integer: Any,
    sizes: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    scale: Any,
    causal: bool,
    key: Any,
    offset: Any,
    threshold: Any,
    dropout_scale: Any,
    matrices: Any,
    vectors: Any,
) -> None:
    heads, rows, keys, width, value_width, tile = sizes
    one, zero = type(scale)(1), type(scale)(0)
    keys_, values, queries, results = matrices
    norms, tile_memory = vectors
    for item in range(start, stop):
        b, h = item // heads, item % heads
        _load(k[0], b * k[1][0] + h * k[1][1], k[1][2], k[1][3], keys_, one)
        _load(v[0], b * v[1][0] + h * v[1][1], v[1][2], v[1][3], values, one)
        for first in range(0, rows, tile):
            last = min(first + tile, rows)
            count = last - first
            seen = min(keys, last) if causal else keys
            query = queries[:count]
            from_ = b * q[1][0] + h * q[1][1] + first * q[1][2]
            _load(q[0], from_, q[1][2], q[1][3], query, scale)
            scores = tile_memory[: count * seen].reshape(count, seen)
            gemm(address, integer, (count, seen, width, 0, 1), query, keys_, zero, scores)
            _softmax_tile(
                scores,
                lse[item * rows + first : item * rows + last],
                norms[:count],
                first,
                causal,
                key,
                offset + np.uint64((item * rows + first) * keys),
                np.uint64(keys),
                threshold,
                dropout_scale,
            )
            result = results[:count]
            gemm(
                address,
                integer,
                (count, value_width, seen, 0, 0),
                scores,
                values,
                zero,
                result,
            )
            to = b * out[1][0] + h * out[1][1] + first * out[1][2]
            for i in range(count):
                for j in range(value_width):
                    out[0][to + i * out[1][2] + j * out[1][3]] = result[i, j] * norms[i]


@jit
def attention_backward_loop(
    start: int,
    stop: int,
    address: Any,
    integer: Any,
    sizes: Any,
    inputs: Any,
    lse: Any,
    gradients: Any,
    needed: Any,
    scale: Any,
    causal: bool,
    key: Any,
    offset: Any,
    threshold: Any,
    dropout_scale: Any,
    matrices: Any,
    vectors: Any,
) -> None:
    heads, rows, keys, width, value_width, tile = sizes
    grad, q, k, v, out = inputs
    dq, dk, dv = gradients
    need_q, need_k, need_v = needed
    one, zero = type(scale)(1), type(scale)(0)
    keys_, grad_keys, values, grad_values, queries, grad_queries, grads, results = matrices
    deltas, p_memory, ds_memory = vectors
    for item in range(start, stop):
        b, h = item // heads, item % heads
        _load(k[0], b * k[1][0] + h * k[1][1], k[1][2], k[1][3], keys_, one)
        _load(v[0], b * v[1][0] + h * v[1][1], v[1][2], v[1][3], values, one)
        grad_keys[:] = zero
        grad_values[:] = zero
        for first in range(0, rows, tile):
            last = min(first + tile, rows)
            count = last - first
            seen = min(keys, last) if causal else keys
            query, g, result = queries[:count], grads[:count], results[:count]
            from_ = b * q[1][0] + h * q[1][1] + first * q[1][2]
            _load(q[0], from_, q[1][2], q[1][3], query, scale)
            from_ = b * grad[1][0] + h * grad[1][1] + first * grad[1][2]
            _load(grad[0], from_, grad[1][2], grad[1][3], g, one)
            from_ = b * out[1][0] + h * out[1][1] + first * out[1][2]
            _load(out[0], from_, out[1][2], out[1][3], result, one)
            for i in range(count):
                delta = zero
                for j in range(value_width):
                    delta += g[i, j] * result[i, j]
                deltas[i] = delta
            p = p_memory[: count * seen].reshape(count, seen)
            ds = ds_memory[: count * seen].reshape(count, seen)
            gemm(address, integer, (count, seen, width, 0, 1), query, keys_, zero, p)
            gemm(address, integer, (count, seen, value_width, 0, 1), g, values, zero, ds)
            _softmax_tile_backward(
                p,
                ds,
                lse[item * rows + first : item * rows + last],
                deltas[:count],
                first,
                causal,
                key,
                offset + np.uint64((item * rows + first) * keys),
                np.uint64(keys),
                threshold,
                dropout_scale,
            )
            if need_v:
                form = (seen, value_width, count, 1, 0)
                gemm(address, integer, form, p, g, one, grad_values)
            if need_k:
                gemm(address, integer, (seen, width, count, 1, 0), ds, query, one, grad_keys)
            if need_q:
                grad_query = grad_queries[:count]
                form = (count, width, seen, 0, 0)
                gemm(address, integer, form, ds, keys_, zero, grad_query)
                to = b * dq[1][0] + h * dq[1][1] + first * dq[1][2]
                _store(dq[0], to, dq[1][2], dq[1][3], grad_query, scale)
        if need_k:
            _store(dk[0], b * dk[1][0] + h * dk[1][1], dk[1][2], dk[1][3], grad_keys, one)
        if need_v:
            _store(dv[0], b * dv[1][0] + h * dv[1][1], dv[1][2], dv[1][3], grad_values, one)
