"""Elements of one array where a condition holds, else others."""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._arrays import BITS, Array
from offgrad.kernels._chunks import by_loop, is_large
from offgrad.kernels._jit import backend, jit, uses_numba


def select(condition: Array, a: Array, b: Array, out: Array) -> None:
    """Write `a` where the condition is true, else `b`, into `out`.

    Args:
        condition: bools that broadcast to the shape of `out`.
        a: of the dtype of `out`, broadcasts likewise; as b.
        b: see a.
        out: C-contiguous.
    """
    bits = BITS.get(out.dtype.itemsize)
    if bits is None or not is_large(out.size) or backend() != "numba":
        np.copyto(out, b)
        np.copyto(out, a, where=condition)
        return
    # Bits: one loop for all dtypes of a size, which LLVM vectorises.
    by_loop(_select_loop, out.view(bits), condition, a.view(bits), b.view(bits))


@jit
def _select_loop(condition: Any, a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    condition, a, b, out = condition[start:stop], a[start:stop], b[start:stop], out[start:stop]
    for j in range(out.size):
        out[j] = a[j] if condition[j] else b[j]


def nan_to_zero(x: Array, out: Array) -> None:
    """Write `x`, with 0 instead of NaN, into `out`, of equal shape; C-contiguous floats."""
    if uses_numba(x, out):
        by_loop(_nan_to_zero_loop, out, x)
    else:
        np.copyto(out, x)
        np.copyto(out, 0, where=np.isnan(x))


@jit
def _nan_to_zero_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    zero = x.dtype.type(0)
    for j in range(out.size):
        out[j] = x[j] if x[j] == x[j] else zero
