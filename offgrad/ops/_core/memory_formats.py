"""Orders of dimensions in memory: C order, channels last, or that of another tensor."""

from typing import Any

import numpy as np

from offgrad import memory
from offgrad._layout import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    layout,
    memory_format,
    preserve_format,
    strided,
)
from offgrad.autograd.op import Array

_CHANNELS_LAST = {channels_last: (0, 2, 3, 1), channels_last_3d: (0, 2, 3, 4, 1)}


def check_layout(value: Any, where: str) -> None:
    """Raise unless a factory's ``layout`` is that of all tensors here.

    Raises:
        TypeError: if it is no layout.
        NotImplementedError: for sparse layouts.
    """
    if value is None or value is strided:
        return
    if not isinstance(value, layout):
        raise TypeError(f"{where}: layout must be a layout such as strided, got {value!r}")
    raise NotImplementedError(f"{where}: tensors are strided, got layout={value}")


def order_of(x: Array, format: Any, where: str) -> tuple[int, ...] | None:
    """Return the dimensions of a copy of `x`, outermost in memory first; None for C order.

    Raises:
        TypeError: if `format` is no memory format.
        RuntimeError: for channels last of an array without the dimensions.
    """
    if format is contiguous_format:
        return None
    if format is None or format is preserve_format:
        return None if x.flags.c_contiguous else _dense_order(x)
    if not isinstance(format, memory_format):
        raise TypeError(f"{where}: memory_format must be one such as channels_last, got {format!r}")
    order = _CHANNELS_LAST[format]
    if len(order) != x.ndim:
        raise RuntimeError(
            f"{where}: required rank {len(order)} tensor to use {format}, got shape {list(x.shape)}"
        )
    return order


def _dense_order(x: Array) -> tuple[int, ...] | None:
    """Return the order of an array's dimensions in memory; None if elements overlap or have gaps.

    Dimensions of size 1 do not count for gaps.
    """
    order = sorted(range(x.ndim), key=lambda axis: (-x.strides[axis], -x.shape[axis], axis))
    expected = x.itemsize
    for axis in reversed(order):
        if x.shape[axis] != 1:
            if x.strides[axis] != expected:
                return None
            expected *= x.shape[axis]
    return tuple(order) if x.size else None


def empty_in_order(shape: Any, dtype: Any, order: tuple[int, ...] | None) -> Array:
    """Return an array of tensor memory whose dimensions lie in memory in `order`."""
    if order is None:
        return memory.empty(tuple(shape), dtype)
    array = memory.empty(tuple([shape[axis] for axis in order]), dtype)
    return array.transpose(np.argsort(order))


def is_in_order(x: Array, format: Any, where: str) -> bool:
    """Return whether the memory has no gaps and is in a memory format."""
    if format is contiguous_format:
        return x.flags.c_contiguous
    if format is preserve_format or not isinstance(format, memory_format):
        raise RuntimeError(f"{where}: memory_format must be that of memory, got {format!r}")
    order = _CHANNELS_LAST[format]
    return len(order) == x.ndim and x.transpose(order).flags.c_contiguous
