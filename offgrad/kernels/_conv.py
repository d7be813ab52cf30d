"""Convolutions, transposed convolutions, and the gradient of their weight.

The arrays' dtypes and shapes alone choose the algorithm, and the order of its arithmetic.
"""

from __future__ import annotations

import numpy as np

from offgrad.kernels._arrays import Array, as_float
from offgrad.kernels._conv_numpy import (
    Steps,
    convolve_numpy,
    convolve_transposed_numpy,
    convolve_weight_numpy,
)


def convolve(x: Array, weight: Array, out: Array, steps: Steps) -> None:
    """Write ``out[n, o, p] = sum over c, k of weight[o, c, k] x[n, c, p * stride - ...]``.

    Args:
        x: [N, C, *S].
        weight: [O, C / groups, *K].
        out: [N, O, *P], written, C-contiguous.
        steps: how the kernel passes over x.

    16-bit floats are computed in float32.
    """
    convolve_numpy(as_float(x), as_float(weight), out, steps)


def convolve_transposed(x: Array, weight: Array, out: Array, steps: Steps) -> None:
    """Write the sum of the kernel at each place, times x there, into `out`.

    It is the gradient that `convolve`, with the same weight, gives its input for ``grad = x``.

    Args:
        x: [N, I, *P].
        weight: [I, O / groups, *K].
        out: [N, O, *S], written, C-contiguous.
        steps: how the kernel passes over `out`.

    16-bit floats are computed in float32.
    """
    if out.dtype.itemsize >= 4:
        convolve_transposed_numpy(x, weight, out, steps)
        return
    wide = np.empty(out.shape, np.float32)
    convolve_transposed_numpy(as_float(x), as_float(weight), wide, steps)
    out[...] = wide


def convolve_weight(small: Array, large: Array, out: Array, steps: Steps) -> None:
    """Write the gradient that `convolve` gives its weight into `out`.

    Args:
        small: the gradient of the result, [N, O, *P].
        large: x, [N, C, *S].
        out: [O, C / groups, *K], written, C-contiguous.
        steps: how the kernel passes over `large`.

    16-bit floats are computed in float32.
    """
    if out.dtype.itemsize >= 4:
        convolve_weight_numpy(small, large, out, steps)
        return
    wide = np.empty(out.shape, np.float32)
    convolve_weight_numpy(as_float(small), as_float(large), wide, steps)
    out[...] = wide
