"""Dropout from a counter-based random number generator: the seed replaces the mask.

Element i, in C order, is kept if the top 32 bits of `random_bits` at counter offset + i are at
least p * 2^32. Backward is `dropout` of the gradient with the same p, seed and offset.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from offgrad.kernels._arrays import (
    Array,
    flat,
    same_shape,
)
from offgrad.kernels._fastmath import random_bits, stream_key
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import parallel_for

_HIGH_HALF = np.uint64(32)
_MASK64 = 2**64 - 1


@in_float32("out")
def dropout(x: Array, out: Array, p: float, seed: int, offset: int = 0) -> None:
    """Write x / (1 - p) where an element is kept and 0 where it is dropped into `out`.

    Args:
        x: Any shape; `out` has the same. A dropped NaN or infinity becomes 0.
        p: Probability of being dropped, 0 to 1; with 1 all elements become 0.
        seed: Seed of the random stream; any integer, reduced to 64 bits.
        offset: Position of the first element in the stream. x takes x.size numbers.

    Raises ValueError for a p out of range.
    """
    threshold, scale = keep_rule(p)
    same_shape(x=x, out=out)
    if not uses_numba(x, out):
        _dropout_numpy(x, out, p, seed, offset)
        return
    a, o = flat(x), flat(out)
    key, first, factor = stream_key(seed), np.uint64(offset & _MASK64), a.dtype.type(scale)
    parallel_for(partial(_dropout_loop, a, o, key, first, threshold, factor), a.size, merge=True)


def dropout_mask(
    shape: tuple[int, ...], p: float, seed: int, offset: int = 0
) -> npt.NDArray[np.bool_]:
    """The elements that `dropout` keeps, as booleans of this shape."""
    threshold, _ = keep_rule(p)
    # uint64 wraps around, in NumPy's arrays as in the compiled loop.
    counters = np.arange(prod(shape), dtype=np.uint64) + np.uint64(offset & _MASK64)
    keep: npt.NDArray[np.bool_] = random_bits(stream_key(seed), counters) >> _HIGH_HALF >= threshold
    return keep.reshape(shape)


def keep_rule(p: float) -> tuple[np.uint64, float]:
    """The minimum of the top 32 bits that keeps an element, and the factor of kept elements."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout's p must be a probability, 0 to 1, got {p}")
    return np.uint64(round(p * 2**32)), 1 / (1 - p) if p < 1 else 0.0


@np.errstate(all="ignore")
def _dropout_numpy(x: Array, out: Array, p: float, seed: int, offset: int) -> None:
    scaled = x * x.dtype.type(keep_rule(p)[1])
    out[...] = np.where(dropout_mask(x.shape, p, seed, offset), scaled, x.dtype.type(0))


@jit
def _dropout_loop(
    x: Any,
    out: Any,
    key: Any,
    offset: Any,
    threshold: Any,
    scale: Any,
    start: int,
    stop: int,
) -> None:
    x = x[start:stop]
    out = out[start:stop]
    first = offset + np.uint64(start)
    zero = x.dtype.type(0)
    for i in range(x.size):
        kept = random_bits(key, first + np.uint64(i)) >> _HIGH_HALF >= threshold
        out[i] = x[i] * scale if kept else zero
