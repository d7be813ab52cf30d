"""The compiled loops of attention: softmax within a tile, and whole heads with their products.

They are in one file, because Numba's cache notices changes of a loop's own file only.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from offgrad.kernels import _array_tables, _product_tiles
from offgrad.kernels._array_tables import array_at
from offgrad.kernels._fastmath import exp, random_bits, row_max
from offgrad.kernels._jit import inlined, jit
from offgrad.kernels._product_loops import copy_panels, multiply_panels

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

    _array_tables.register()
    _product_tiles.register()
    part = numba.njit(inline="always")
    _softmax_tile = part(softmax_tile_loop.function)
    _softmax_tile_backward = part(softmax_tile_backward_loop.function)


@jit
def softmax_tile_loop(
    scores: Any,
    keys: int,
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
        row = scores[i][:keys]
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
    keys: int,
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
        count = min(keys, first + i + 1) if causal else keys
        for j in range(count, keys):
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
def add_mask(scores: Any, keys: int, mask: Any, start: int, stride: int) -> None:
    """Add a mask, whose rows begin `stride` elements apart from `start` on, to scores."""
    if mask.size > 0:
        for i in range(scores.shape[0]):
            row, added = scores[i][:keys], mask[start + i * stride :]
            for j in range(row.size):
                row[j] += added[j]


@inlined
def scale_copy(
    source: int, stride: int, target: int, target_stride: int, rows: int, columns: int,
    size: int, factor: Any,
) -> None:  # fmt: skip
    """Write the product of `factor` and rows of `columns` elements."""
    for i in range(rows):
        row = array_at(source + i * stride * size, columns, factor)
        to = array_at(target + i * target_stride * size, columns, factor)
        for j in range(columns):
            to[j] = row[j] * factor


@jit
def attention_loop(
    sizes: Any,
    addresses: Any,
    strides: Any,
    lse: Any,
    all_norms: Any,
    causal: bool,
    scale: Any,
    key: Any,
    position: Any,
    threshold: Any,
    dropout_scale: Any,
    mask: Any,
    mask_strides: Any,
    memory: int,
    share: int,
    start: int,
    stop: int,
    worker: int,
) -> None:
    heads, rows, keys, width, value_width, tile, most, lanes, size = sizes
    batch_stride, head_stride, row_stride = mask_strides
    q_row, k_row, v_row, out_row = strides[2], strides[5], strides[8], strides[11]
    zero = type(dropout_scale)(0)
    line = (keys + lanes - 1) // lanes * lanes
    value_line = (value_width + lanes - 1) // lanes * lanes
    room = (tile + most - 1) // most * most
    norms = all_norms[worker]
    zeros = memory + worker * share
    turned_keys = zeros + 3 * lanes * size
    values = turned_keys + width * line * size
    scores = values + keys * value_line * size
    result = scores + room * line * size
    array_at(zeros, 3 * lanes, zero)[:] = zero
    for item in range(start, stop):
        batch, head = item // heads, item % heads
        of_q = addresses[0] + (batch * strides[0] + head * strides[1]) * size
        of_k = addresses[1] + (batch * strides[3] + head * strides[4]) * size
        of_v = addresses[2] + (batch * strides[6] + head * strides[7]) * size
        of_out = addresses[3] + (batch * strides[9] + head * strides[10]) * size
        at_mask = batch * batch_stride + head * head_stride
        copy_panels(of_k, 1, k_row, width, keys, lanes, size, turned_keys, zero)
        scale_copy(turned_keys, 0, turned_keys, 0, 1, width * line, size, scale)
        copy_panels(of_v, v_row, 1, keys, value_width, lanes, size, values, zero)
        for first in range(0, rows, tile):
            row = item * rows + first
            count = min(tile, rows - first)
            seen = min(keys, first + count) if causal else keys
            multiply_panels(
                of_q + first * q_row * size, q_row, 1, count, width, turned_keys, width, keys,
                seen, lanes, most, size, zeros, scores, line, zero,
            )  # fmt: skip
            table = array_at(scores, count * line, zero).reshape(count, line)
            add_mask(table, seen, mask, at_mask + first * row_stride, row_stride)
            _softmax_tile(
                table,
                seen,
                lse[row : row + count],
                norms,
                first,
                causal,
                key,
                position + np.uint64(row * keys),
                np.uint64(keys),
                threshold,
                dropout_scale,
            )
            multiply_panels(
                scores, line, 1, count, seen, values, keys, value_width, value_width, lanes, most,
                size, zeros, result, value_line, zero,
            )  # fmt: skip
            for i in range(count):
                from_ = result + i * value_line * size
                to = of_out + (first + i) * out_row * size
                scale_copy(from_, 0, to, 0, 1, value_width, size, norms[i])


@jit
def attention_backward_loop(
    sizes: Any,
    addresses: Any,
    strides: Any,
    lse: Any,
    all_deltas: Any,
    causal: bool,
    scale: Any,
    key: Any,
    position: Any,
    threshold: Any,
    dropout_scale: Any,
    mask: Any,
    mask_strides: Any,
    memory: int,
    share: int,
    start: int,
    stop: int,
    worker: int,
) -> None:
    heads, rows, keys, width, value_width, tile, most, lanes, size = sizes
    batch_stride, head_stride, row_stride = mask_strides
    zero, one = type(dropout_scale)(0), type(dropout_scale)(1)
    line = (keys + lanes - 1) // lanes * lanes
    key_line = (width + lanes - 1) // lanes * lanes
    value_line = (value_width + lanes - 1) // lanes * lanes
    room, key_room = (tile + most - 1) // most * most, (keys + most - 1) // most * most
    deltas = all_deltas[worker]
    zeros = memory + worker * share
    turned_keys = zeros + 3 * lanes * size
    turned_values = turned_keys + width * line * size
    scaled_keys = turned_values + value_width * line * size
    p = scaled_keys + keys * key_line * size
    ds = p + room * line * size
    gradients = ds + room * line * size
    queries = gradients + tile * value_line * size
    result = queries + tile * key_line * size
    sum_k = result + room * key_line * size
    sum_v = sum_k + key_room * key_line * size
    array_at(zeros, 3 * lanes, zero)[:] = zero
    for item in range(start, stop):
        batch, head = item // heads, item % heads
        of_g = addresses[0] + (batch * strides[0] + head * strides[1]) * size
        of_q = addresses[1] + (batch * strides[3] + head * strides[4]) * size
        of_k = addresses[2] + (batch * strides[6] + head * strides[7]) * size
        of_v = addresses[3] + (batch * strides[9] + head * strides[10]) * size
        of_out = addresses[4] + (batch * strides[12] + head * strides[13]) * size
        g_row, q_row, k_row, v_row, out_row = (
            strides[2], strides[5], strides[8], strides[11], strides[14],
        )  # fmt: skip
        at_mask = batch * batch_stride + head * head_stride
        copy_panels(of_k, 1, k_row, width, keys, lanes, size, turned_keys, zero)
        scale_copy(turned_keys, 0, turned_keys, 0, 1, width * line, size, scale)
        copy_panels(of_v, 1, v_row, value_width, keys, lanes, size, turned_values, zero)
        copy_panels(of_k, k_row, 1, keys, width, lanes, size, scaled_keys, zero)
        scale_copy(scaled_keys, 0, scaled_keys, 0, 1, keys * key_line, size, scale)
        array_at(sum_k, key_room * key_line, zero)[:] = zero
        array_at(sum_v, key_room * value_line, zero)[:] = zero
        for first in range(0, rows, tile):
            row = item * rows + first
            count = min(tile, rows - first)
            seen = min(keys, first + count) if causal else keys
            at_q, at_g = of_q + first * q_row * size, of_g + first * g_row * size
            for i in range(count):
                g = array_at(at_g + i * g_row * size, value_width, zero)
                o = array_at(of_out + (first + i) * out_row * size, value_width, zero)
                total = zero
                for j in range(value_width):
                    total += g[j] * o[j]
                deltas[i] = total
            multiply_panels(
                at_q, q_row, 1, count, width, turned_keys, width, keys, seen, lanes, most, size,
                zeros, p, line, zero,
            )  # fmt: skip
            multiply_panels(
                at_g, g_row, 1, count, value_width, turned_values, value_width, keys, seen, lanes,
                most, size, zeros, ds, line, zero,
            )  # fmt: skip
            table = array_at(p, count * line, zero).reshape(count, line)
            add_mask(table, seen, mask, at_mask + first * row_stride, row_stride)
            _softmax_tile_backward(
                table,
                array_at(ds, count * line, zero).reshape(count, line),
                seen,
                lse[row : row + count],
                deltas,
                first,
                causal,
                key,
                position + np.uint64(row * keys),
                np.uint64(keys),
                threshold,
                dropout_scale,
            )
            if addresses[7]:
                copy_panels(at_g, g_row, 1, count, value_width, lanes, size, gradients, zero)
                multiply_panels(
                    p, 1, line, seen, count, gradients, count, value_width, value_width, lanes,
                    most, size, sum_v, sum_v, value_line, zero,
                )  # fmt: skip
            if addresses[6]:
                copy_panels(at_q, q_row, 1, count, width, lanes, size, queries, zero)
                multiply_panels(
                    ds, 1, line, seen, count, queries, count, width, width, lanes, most, size,
                    sum_k, sum_k, key_line, zero,
                )  # fmt: skip
            if addresses[5]:
                multiply_panels(
                    ds, line, 1, count, seen, scaled_keys, keys, width, width, lanes, most, size,
                    zeros, result, key_line, zero,
                )  # fmt: skip
                to = addresses[5] + (batch * strides[15] + head * strides[16]) * size
                to += first * strides[17] * size
                scale_copy(result, key_line, to, strides[17], count, width, size, one)
        # The last tile's sums overrun into the keys that no row sees.
        reached = min(keys, rows) if causal else keys
        array_at(sum_k + reached * key_line * size, (keys - reached) * key_line, zero)[:] = zero
        array_at(sum_v + reached * value_line * size, (keys - reached) * value_line, zero)[:] = zero
        if addresses[6]:
            to = addresses[6] + (batch * strides[18] + head * strides[19]) * size
            scale_copy(sum_k, key_line, to, strides[20], keys, width, size, scale)
        if addresses[7]:
            to = addresses[7] + (batch * strides[21] + head * strides[22]) * size
            scale_copy(sum_v, value_line, to, strides[23], keys, value_width, size, one)
