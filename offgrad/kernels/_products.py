"""Products of matrices, and of batches of matrices, on the kernels' threads.

Each thread multiplies tiles, by the compiled loop of `_product_loops` or, where that is not faster,
with BLAS on one thread. The loop's bits depend on no tiles, and the shapes alone decide those of
BLAS: so bits depend on no number of threads, as those of OpenBLAS's own threads do. And there is
one pool: no second set of threads waits in a loop for cores that kernels use.

Integers that float64 can hold are multiplied as such: NumPy has no fast loop for integers.

Products of float32 may be computed in parts by AMX (`_split_products`), on request.

Products of bfloat16 use the CPU's instructions for them (`_bfloat16_products`). Without these, and
for float16, both factors become float32, and the result is rounded once.
"""

from __future__ import annotations

import functools
from math import prod

import ml_dtypes
import numpy as np

from offgrad import memory
from offgrad.kernels._arrays import Array, is_half
from offgrad.kernels._bfloat16_products import tiles_body as bfloat16_tiles_body
from offgrad.kernels._bfloat16_products import usable as bfloat16_usable
from offgrad.kernels._blas import single_threaded_blas
from offgrad.kernels._chunks import elementwise
from offgrad.kernels._halves import in_float32
from offgrad.kernels._openblas import library
from offgrad.kernels._parallel import BLOCK, Body, in_ranges, num_workers, parallel_for
from offgrad.kernels._product_loops import tiles_body, usable
from offgrad.kernels._split_products import tiles_body as split_tiles_body
from offgrad.kernels._split_products import usable as split_usable

DIRECT_COST = 1 << 20
"""Multiplications of a product that NumPy computes as it does: here the rest takes longer."""

MIN_COST = 1 << 22
"""Multiplications in a tile, at least: a smaller one costs more to distribute than it gains."""

MIN_SIDE, MAX_SIDE = 128, 1024
"""Rows and columns of a tile: BLAS copies both factors of each."""

MIN_TILES = 8
"""Tiles of a product, for the threads of an ordinary machine."""

_MIN_RANGE = 1 << 18
"""Multiplications of a range of small products of a batch."""

_MIN_CONVERTED = 1 << 15
"""Multiplications of integers in a matrix for which its conversion to float64 pays."""

_PACKING = 16
"""Multiplications of a compiled loop in the time that it takes to copy an element."""

_LATE = 0.25
"""The part of a tile's time by which one thread comes later than the others."""

_PER_ELEMENT = 16
"""Multiplications in the time that kernels spend on an element."""

_settings = {"splits float32": False}


def allow_split_products(allowed: bool) -> bool:
    """Set whether a CPU's AMX may multiply float32 in parts (`_split_products`).

    Return whether that was allowed before.
    """
    before = _settings["splits float32"]
    _settings["splits float32"] = allowed
    return before


def matmul(a: Array, b: Array, out: Array, bias: Array | None = None) -> None:
    """Write ``a @ b``, plus `bias` if given, into `out`.

    Args:
        a: [..., n, k]; the first dimensions broadcast.
        b: [..., k, m]. BLAS must be able to read `a` and `b`, or NumPy multiplies slowly.
        out: [..., n, m], of the same dtype.
        bias: [m].
    """
    inner = a.shape[-1]
    is_small = out.size * inner <= DIRECT_COST or library() is None
    if out.itemsize == 2 and is_half(out.dtype) and is_converted(a, b, out):
        _in_float32(a, b, out, bias)
        return
    if inner == 1 and out.size > BLOCK:
        elementwise(np.multiply, out, a, b)
    elif not is_small and out.dtype.kind in "iu" and _is_exact_in_float64(a, b, out):
        _in_float64(a, b, out)
    elif is_small or out.dtype not in _DTYPES:
        np.matmul(a, b, out=out)
    elif out.ndim == 2:
        _one(a, b, out, bias)
        return
    elif (count := prod(out.shape[:-2])) == 1:
        _one(a.reshape(a.shape[-2:]), b.reshape(b.shape[-2:]), out.reshape(out.shape[-2:]), bias)
        return
    else:
        _batch(a, b, out, count, out.shape[-2] * out.shape[-1] * inner)
    if bias is not None:
        np.add(out, bias, out=out)


def _in_float64(a: Array, b: Array, out: Array) -> None:
    """Write a product of integers that float64 can hold, one matrix after the other."""
    first, second = (np.broadcast_to(each, (*out.shape[:-2], *each.shape[-2:])) for each in (a, b))
    wide = memory.empty(out.shape[-2:], np.dtype(np.float64))
    for at in np.ndindex(out.shape[:-2]):
        matmul(first[at].astype(np.float64), second[at].astype(np.float64), wide)
        np.copyto(
            out[at], wide.astype(np.int64) if out.dtype.itemsize < 8 else wide, casting="unsafe"
        )


def _is_exact_in_float64(a: Array, b: Array, out: Array) -> bool:
    """Return whether sums of products of integers are numbers that float64 has, and many."""
    if prod(out.shape[-2:]) * a.shape[-1] < _MIN_CONVERTED:
        return False
    largest = [max(abs(int(each.min())), abs(int(each.max()))) for each in (a, b)]
    return bool(prod(largest) * a.shape[-1] < 2**53)


def is_converted(a: Array, b: Array, out: Array) -> bool:
    """Whether `matmul` computes 16-bit floats in float32, and not by instructions for them."""
    is_small = out.size * a.shape[-1] <= DIRECT_COST or library() is None
    return is_small or not bfloat16_usable(*[_first_matrix(each) for each in (a, b, out)])


@in_float32("out")
def _in_float32(a: Array, b: Array, out: Array, bias: Array | None) -> None:
    matmul(a, b, out, bias)


_DTYPES = frozenset([*[np.dtype(each) for each in "fdFD"], np.dtype(ml_dtypes.bfloat16)])


def _first_matrix(array: Array) -> Array:
    matrix: Array = array[(0,) * (array.ndim - 2)]
    return matrix


def tile_shape(
    rows: int,
    columns: int,
    inner: int,
    min_tiles: int = MIN_TILES,
    max_side: int = MAX_SIDE,
    min_side: int = MIN_SIDE,
    min_cost: int = MIN_COST,
) -> tuple[int, int]:
    """Return the rows and columns of the tiles of a product [rows, inner] by [inner, columns]."""
    height, width = rows, columns
    while True:
        count = -(-rows // height) * -(-columns // width)
        longer = max(height, width)
        if count >= min_tiles and longer <= max_side:
            return height, width
        if longer < 2 * min_side or height * width * inner < 2 * min_cost:
            return height, width
        half = -(-longer // 96) * 48  # whole blocks of innermost loops
        height, width = (half, width) if height == longer else (height, half)


def compiled_tile_shape(
    rows: int, columns: int, inner: int, count: int, threads: int, unit: int = 16
) -> tuple[int, int]:
    """Return the tiles of `count` products by a compiled loop; threads end at about the same time.

    Its bits depend on no tiles, so threads decide; and they share tiles without the GIL. Of all
    grids with up to two tiles for each thread, the shortest time of the slowest thread, with a
    share of a tile for one that comes late. Heights and widths are multiples of `unit`.
    """
    if threads == 1 or count >= 4 * threads:
        return rows, columns
    best = rows, columns
    shortest = None
    most = max(1, 2 * threads // count)
    for down in range(1, most + 1):
        height = _rounded(rows, down, unit)
        for across in range(1, most // down + 1):
            width = _rounded(columns, across, unit)
            tiles = count * -(-rows // height) * -(-columns // width)
            if tiles > count and height * width * inner < MIN_COST // 4:
                break
            one = inner * (height * width + _PACKING * (height + width))
            time = one * (-(-tiles // threads) + _LATE)
            if shortest is None or time < shortest:
                best, shortest = (height, width), time
    return best


def _rounded(size: int, parts: int, unit: int) -> int:
    return min(size, -(-size // (parts * unit)) * unit)


def _one(a: Array, b: Array, out: Array, bias: Array | None) -> None:
    rows, columns = out.shape
    if _is_compiled(a, b, out, bias):
        _in_tiles(a[None, None], b[None, None], out[None, None], bias)
        return
    height, width = tile_shape(rows, columns, a.shape[1])
    across = -(-columns // width)

    def run(start: int, stop: int) -> None:
        for tile in range(start, stop):
            down, right = divmod(tile, across)
            i, j = (
                slice(down * height, (down + 1) * height),
                slice(right * width, (right + 1) * width),
            )
            part = out[i, j]
            np.matmul(a[i], b[:, j], out=part)
            if bias is not None:
                np.add(part, bias[j], out=part)

    _run(run, -(-rows // height) * across, height * width * a.shape[1])


def _is_compiled(a: Array, b: Array, out: Array, bias: Array | None = None) -> bool:
    return is_half(out.dtype) or usable(a, b, out, bias)


def _in_tiles(a: Array, b: Array, out: Array, bias: Array | None) -> None:
    """Write [outer, inner] products of matrices by a compiled loop."""
    outer, inner, rows, columns = out.shape
    count, depth = outer * inner, a.shape[3]
    if _settings["splits float32"] and split_usable(*[each[0, 0] for each in (a, b, out)]):
        tile, bounds, workers = _tiling(rows, columns, depth, count, num_workers(), 32)
        body, is_incomplete = split_tiles_body(a, b, out, bias, tile, workers)
        in_ranges(body, bounds, workers)
        if not is_incomplete.any():
            return
    make_body, unit = (bfloat16_tiles_body, 32) if is_half(out.dtype) else (tiles_body, 16)
    tile, bounds, workers = _tiling(rows, columns, depth, count, num_workers(), unit)
    in_ranges(make_body(a, b, out, bias, tile, workers), bounds, workers)


@functools.lru_cache(maxsize=4096)
def _tiling(
    rows: int, columns: int, depth: int, count: int, threads: int, unit: int
) -> tuple[tuple[int, int], tuple[int, ...], int]:
    """Return the tiles' shape, the bounds of their ranges, and the threads for these."""
    height, width = compiled_tile_shape(rows, columns, depth, count, threads, unit)
    tiles = count * -(-rows // height) * -(-columns // width)
    step = max(1, _MIN_RANGE // (height * width * depth))
    bounds = *range(0, tiles, step), tiles
    return (height, width), bounds, max(1, min(threads, len(bounds) - 1))


def _batch(a: Array, b: Array, out: Array, count: int, cost: int) -> None:
    batch = out.shape[:-2]
    if len(batch) == 1:
        batch = 1, count
    arrays = [np.broadcast_to(each, out.shape[:-2] + each.shape[-2:]) for each in (a, b)]
    try:
        left, right, result = (
            np.reshape(each, (-1, batch[-1], *each.shape[-2:]), copy=False)
            for each in (*arrays, out)
        )
    except ValueError:  # the other dimensions have no single stride
        for first in range(len(out)):
            _batch(arrays[0][first], arrays[1][first], out[first], count // len(out), cost)
        return
    if cost > DIRECT_COST and _is_compiled(*[each[0, 0] for each in (left, right, result)]):
        _in_tiles(left, right, result, None)
    elif cost > MIN_TILES * MIN_COST and count < MIN_TILES:
        for at in np.ndindex(*result.shape[:2]):
            _one(left[at], right[at], result[at], None)
    else:
        if len(result) == 1:
            left, right, result = left[0], right[0], result[0]

        def run(start: int, stop: int) -> None:
            np.matmul(left[start:stop], right[start:stop], out=result[start:stop])

        _run(run, len(result), cost * count // len(result))


def _run(body: Body, count: int, cost: int) -> None:
    def run(start: int, stop: int) -> None:
        with np.errstate(all="ignore"):  # which each thread has for itself
            body(start, stop)

    with single_threaded_blas():
        parallel_for(run, count, cost // _PER_ELEMENT)
