"""Loops of float32 on 16-bit floats: they convert pieces that stay in a core's first cache."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from offgrad.kernels._halves import from_half, to_half
from offgrad.kernels._jit import Kernel

_PIECE = 2048


@functools.cache
def loop_of_halves(loop: Kernel[..., None], dtype: np.dtype[Any], inputs: int) -> Kernel[..., None]:
    """Return a loop that computes another one in float32, and rounds once.

    It takes the bits of one to three inputs and of the output, in one dimension, a tuple of the
    other arguments, and the range.

    Args:
        loop: called as ``loop(*inputs, out, *numbers, start, stop)``.
        dtype: of all arrays, of 2 bytes.
        inputs: the number of inputs.
    """
    calls: dict[str, Kernel[..., None]] = {
        "widen": from_half(dtype),
        "compute": loop,
        "narrow": to_half(dtype),
    }
    return Kernel((_one_input, _two_inputs, _three_inputs)[inputs - 1], calls)


def _in_compiled_loops(*_: Any) -> None:
    raise NotImplementedError("compiled loops of 16-bit floats call others in its place")


compute = widen = narrow = _in_compiled_loops


def _one_input(x: Any, out: Any, numbers: Any, start: int, stop: int) -> None:
    a, result = np.empty(_PIECE, np.float32), np.empty(_PIECE, np.float32)
    for first in range(start, stop, _PIECE):
        last = min(first + _PIECE, stop)
        count = last - first
        widen(x[first:last], a.view(np.uint32), 0, count)
        compute(a[:count], result[:count], *numbers, 0, count)
        narrow(result.view(np.uint32), out[first:last], 0, count)


def _two_inputs(x: Any, y: Any, out: Any, numbers: Any, start: int, stop: int) -> None:
    a, b = np.empty(_PIECE, np.float32), np.empty(_PIECE, np.float32)
    result = np.empty(_PIECE, np.float32)
    for first in range(start, stop, _PIECE):
        last = min(first + _PIECE, stop)
        count = last - first
        widen(x[first:last], a.view(np.uint32), 0, count)
        widen(y[first:last], b.view(np.uint32), 0, count)
        compute(a[:count], b[:count], result[:count], *numbers, 0, count)
        narrow(result.view(np.uint32), out[first:last], 0, count)


def _three_inputs(x: Any, y: Any, z: Any, out: Any, numbers: Any, start: int, stop: int) -> None:
    a, b = np.empty(_PIECE, np.float32), np.empty(_PIECE, np.float32)
    c, result = np.empty(_PIECE, np.float32), np.empty(_PIECE, np.float32)
    for first in range(start, stop, _PIECE):
        last = min(first + _PIECE, stop)
        count = last - first
        widen(x[first:last], a.view(np.uint32), 0, count)
        widen(y[first:last], b.view(np.uint32), 0, count)
        widen(z[first:last], c.view(np.uint32), 0, count)
        compute(a[:count], b[:count], c[:count], result[:count], *numbers, 0, count)
        narrow(result.view(np.uint32), out[first:last], 0, count)
