"""Checks of kernels' arguments, and the views that kernels work on."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def flat(array: Array) -> Array:
    """A C-contiguous array as one dimension, sharing memory."""
    if not array.flags.c_contiguous:
        raise _not_contiguous(array)
    return array.reshape(-1)


def rows(array: Array) -> Array:
    """A C-contiguous array as [rows, last axis], sharing memory; a scalar is one row of one."""
    if not array.flags.c_contiguous:
        raise _not_contiguous(array)
    if array.ndim == 0:
        return array.reshape(1, 1)
    return array.reshape(prod(array.shape[:-1]), array.shape[-1])


def as_float(array: Array) -> Array:
    """The array as float32 if it holds 16-bit floats, else itself."""
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def same_shape(**arrays: Array) -> None:
    """Raise ValueError, naming each array and its shape, unless all shapes are equal."""
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"these arrays must have one shape, got {shapes}")


def _not_contiguous(array: Array) -> ValueError:
    return ValueError(
        f"kernels work on C-contiguous arrays, got shape {array.shape} with strides "
        f"{array.strides} ({array.dtype}): pass np.ascontiguousarray(...) of it"
    )
