"""Convolutions, transposed convolutions, and the gradient of their weight.

The arrays' dtypes and shapes alone choose the algorithm, and the order of its arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad import memory
from offgrad.kernels import _conv_columns, _conv_direct, _conv_shifted, _conv_winograd
from offgrad.kernels._arrays import Array
from offgrad.kernels._conv_numpy import (
    Steps,
    convolve_numpy,
    convolve_transposed_numpy,
    convolve_weight_numpy,
)
from offgrad.kernels._halves import in_float32


@in_float32("out")
def convolve(x: Array, weight: Array, out: Array, steps: Steps, bias: Array | None = None) -> None:
    """Write a convolution into `out`.

    Output [n, o, p] is bias[o] plus the sum, over channels c of its group and elements k of the
    kernel, of weight[o, c, k] x[n, c, p stride - padding + k dilation], with zeros beyond x.

    Args:
        x: [N, C, *S].
        weight: [O, C / groups, *K].
        out: [N, O, *P], written, C-contiguous.
        steps: how the kernel passes over x.
        bias: [O].

    16-bit floats are computed in float32.
    """
    way = _way(out, x, weight.shape[2:], steps)
    if way is not None:
        x, weight = memory.contiguous(x), memory.contiguous(weight)
        way.convolve(x, weight, out, bias, steps)
        return
    convolve_numpy(x, weight, out, steps)
    _add(bias, out)


@in_float32("out")
def convolve_transposed(
    x: Array, weight: Array, out: Array, steps: Steps, bias: Array | None = None
) -> None:
    """Write the sum of the kernel at each place, times x there, into `out`.

    It is the gradient that `convolve`, with the same weight, gives its input for ``grad = x``.

    Args:
        x: [N, I, *P].
        weight: [I, O / groups, *K].
        out: [N, O, *S], written, C-contiguous.
        steps: how the kernel passes over `out`.
        bias: [O].

    16-bit floats are computed in float32.
    """
    way = _way(x, out, weight.shape[2:], steps)
    if way is not None:
        x, weight = memory.contiguous(x), memory.contiguous(weight)
        way.convolve_transposed(x, weight, out, bias, steps)
        return
    convolve_transposed_numpy(x, weight, out, steps)
    _add(bias, out)


@in_float32("out")
def convolve_weight(small: Array, large: Array, out: Array, steps: Steps) -> None:
    """Write the gradient that `convolve` gives its weight into `out`.

    Args:
        small: the gradient of the result, [N, O, *P].
        large: x, [N, C, *S].
        out: [O, C / groups, *K], written, C-contiguous.
        steps: how the kernel passes over `large`.

    16-bit floats are computed in float32.
    """
    way = _way(small, large, out.shape[2:], steps, of_weight=True)
    if way is not None:
        small, large = memory.contiguous(small), memory.contiguous(large)
        way.convolve_weight(small, large, out, steps)
        return
    convolve_weight_numpy(small, large, out, steps)


def _way(
    small: Array, large: Array, kernel: tuple[int, ...], steps: Steps, of_weight: bool = False
) -> Any:
    """Return the module that computes a convolution; None for the reference.

    Args:
        small: its output, or the gradient of it.
        large: its input, or the gradient of it.
        kernel: the sizes of its kernel.
        steps: how the kernel passes over `large`.
        of_weight: whether the gradient of the weight is asked for.
    """
    if _conv_winograd.usable(small, large, kernel, steps, of_weight):
        return _conv_winograd
    if _conv_direct.usable(small, large, kernel, steps):
        return _conv_direct
    if not of_weight and _conv_shifted.usable(small, large, kernel, steps):
        return _conv_shifted
    if _conv_columns.usable(small, large, kernel):
        return _conv_columns
    return None


def _add(bias: Array | None, out: Array) -> None:
    if bias is not None:
        np.add(out, bias.reshape(-1, *(1,) * (out.ndim - 2)), out=out)
