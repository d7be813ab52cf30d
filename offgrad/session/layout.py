"""How an array lies in memory: which bytes it covers, and how to see it again in a copy of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """The geometry of an array over C-ordered bytes: its own, or those that it is a part of.

    Attributes:
        shape: of the array.
        dtype: of the array.
        strides: in bytes over the copy; 0 where the array repeats itself.
        offset: where its first element is, in bytes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    offset: int = 0

    def view(self, data: Array) -> Array:
        """Return the array over `data`, a C-contiguous array of the same bytes."""
        return np.ndarray(self.shape, self.dtype, data, self.offset, self.strides)


def compact(array: Array) -> tuple[Array, Layout, bool]:
    """Return the elements of `array` in memory order, each once, and the way back.

    Returns:
        The array with its repeated dimensions taken once and its dimensions ordered by stride; the
        layout that restores `array` over a C-ordered copy of it, with the same order of memory, so
        that computing with either gives the same bits; and whether it is C-contiguous as it is.
    """
    if array.flags.c_contiguous:
        return array, Layout(array.shape, array.dtype, array.strides), True
    once = array[tuple([slice(1) if step == 0 else slice(None) for step in array.strides])]
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    packed = once.transpose(order)
    strides = [0] * array.ndim
    step = array.itemsize
    for position in reversed(range(array.ndim)):
        axis = order[position]
        strides[axis] = 0 if array.strides[axis] == 0 else step
        step *= packed.shape[position]
    return packed, Layout(array.shape, array.dtype, tuple(strides)), packed.flags.c_contiguous


def address(array: Array) -> int:
    """Return where the first element of `array` is."""
    return int(array.__array_interface__["data"][0])
