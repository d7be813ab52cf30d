"""Checks of kernels' arguments, and the views that kernels work on."""

from __future__ import annotations

from ctypes import addressof, c_char
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

from_buffer = c_char.from_buffer

BITS: dict[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (2, 4, 8)}
"""By the bytes of an element, the numbers as which loops copy it: bits alone matter."""

SUM_ROWS = 512
"""Loops add up so many rows before they start another row of sums."""

SUM_BLOCK = 4096
"""Loops add up so many numbers in the arrays' dtype, and the sums of such blocks in float64: a
sum of millions keeps the digits of float32. Rows of a usual length are one block."""


def unexpanded(x: Array) -> Array:
    """Return a view of `x` with one element in each dimension along which it repeats one."""
    if 0 not in x.strides:
        return x
    return x[tuple([slice(1 if stride == 0 else None) for stride in x.strides])]


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` is float16 or bfloat16."""
    return dtype.itemsize == 2 and dtype.kind not in "iu"


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


def address_of(array: Array) -> int:
    """Return the address of an array's first element.

    ``array.ctypes.data`` takes four times as long.
    """
    try:
        return addressof(from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not C-contiguous, read-only, or empty
        address: int = array.ctypes.data
        return address


def or_constant(array: Array | None, size: int, like: Array, value: int) -> Array:
    """A contiguous array of `size` elements of `like`'s dtype; filled with `value` for None."""
    if array is None:
        constant = np.empty(size, like.dtype)  # `numpy.full` takes 3 us more
        constant.fill(value)
        return constant
    return np.ascontiguousarray(array, dtype=like.dtype)


def sum_axes(
    x: Array, axes: tuple[int, ...], keepdims: bool = False, out: Array | None = None
) -> Array:
    """The sum of `x` over `axes`, written into `out` if given; in its dtype, else that of x.

    NumPy adds up pairwise along the axis that is contiguous in memory, one after the other along
    others, where the error grows with the length: long ones are split into blocks.
    """
    kind = x.dtype if out is None else out.dtype
    is_long = x.size > SUM_ROWS and kind in _SUM_DTYPES
    axis = _axis_to_split(x, axes) if is_long else None
    if axis is None:
        # `numpy.sum` without what it does before it calls this
        return np.asarray(np.add.reduce(x, axes, kind, out, keepdims))  # type: ignore[call-overload]
    blocks = x.shape[axis] // SUM_ROWS
    before, after = (slice(None),) * axis, x.shape[axis + 1 :]
    split = x[(*before, slice(blocks * SUM_ROWS))]
    split = split.reshape(*x.shape[:axis], blocks, SUM_ROWS, *after)
    within = tuple([each + (each >= axis) for each in axes])
    partial = np.sum(split, axis=within, dtype=kind)
    wide = _SUM_DTYPES[kind]
    total = partial.sum(axis=sum(each not in axes for each in range(axis)), dtype=wide)
    rest = x[(*before, slice(blocks * SUM_ROWS, None))]
    total = np.asarray(total + rest.sum(axis=axes, dtype=wide)).astype(kind)
    total = np.expand_dims(total, axes) if keepdims else total
    if out is None:
        return total
    out[...] = total
    return out


_SUM_DTYPES = {
    np.dtype(np.float32): np.dtype(np.float64),
    np.dtype(np.complex64): np.dtype(np.complex128),
}


def _axis_to_split(x: Array, axes: tuple[int, ...]) -> int | None:
    """The longest of `axes` that NumPy does not add up pairwise; None if all are short."""
    if len(axes) == x.ndim and x.flags.forc:
        return None
    lengths = [(x.shape[axis], axis) for axis in axes if abs(x.strides[axis]) != x.itemsize]
    length, axis = max(lengths, default=(0, 0))
    return axis if length > SUM_ROWS else None


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
