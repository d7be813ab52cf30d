"""The arguments of pooling, and the windows along each dimension that they mean."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels
from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.dims import integer, is_integer
from offgrad.ops._core.dims import integers as as_integers
from offgrad.ops._core.dtypes import category, check_tensor

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.kernels import Windows

Sizes = tuple[int, ...]

INTEGERS = (np.uint8, np.int8, np.int16, np.int32, np.int64)


def sizes_of(value: Any, ndim: int, where: str, name: str) -> Sizes:
    """Return one integer per dimension, given as that or as one for all.

    Raises:
        TypeError: for all but integers.
        RuntimeError: for another number of them.
    """
    if is_integer(value):
        return (integer(value, where, name),) * ndim
    given = as_integers(value, where, name)
    if len(given) == 1:
        given *= ndim
    if len(given) != ndim:
        raise RuntimeError(f"{where}: {name} must be one int or {ndim} ints, got {value}")
    return given


def check_input(input: "Tensor", ndim: int, where: str, integers: tuple[Any, ...] = ()) -> "Tensor":
    """Return a tensor [N, C, *sizes] or [C, *sizes] of `ndim` sizes.

    It holds floating point numbers, or integers of one of the given dtypes.

    Raises:
        RuntimeError: for another number of dimensions, or an empty one other than N.
        NotImplementedError: for a dtype that PyTorch refuses.
    """
    x = check_tensor(input, where)
    shape = x._array.shape
    if len(shape) not in (ndim + 1, ndim + 2) or 0 in shape[len(shape) - ndim - 1 :]:
        raise RuntimeError(
            f"{where}: Expected {ndim + 1}D or {ndim + 2}D (batch mode) tensor with optional 0 dim "
            f"batch size for input, non-empty otherwise, got a {describe(x)}"
        )
    if category(x._array.dtype) != 2 and x._array.dtype not in integers:
        raise NotImplementedError(
            f'"{where}" not implemented for {x._array.dtype.name}: convert the input, such as with '
            ".float()"
        )
    return x


def check_adaptive(input: "Tensor", ndim: int, output_size: Any, where: str) -> "Tensor":
    """Return a tensor as `check_input` does, of which `output_size` windows are taken.

    Raises:
        ValueError: for sizes of a tensor that has not more dimensions than there are sizes.
    """
    if ndim > 1 and isinstance(output_size, (tuple, list)):
        dims = check_tensor(input, where)._array.ndim
        if dims <= len(output_size):
            raise ValueError(
                f"{where}: Input dimension should be at least {len(output_size) + 1} for "
                f"output_size={output_size}, got a {describe(input)}"
            )
    return check_input(input, ndim, where)


def window_sizes(
    where: str, ndim: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any = 1
) -> tuple[Sizes, Sizes, Sizes, Sizes]:
    """Return the four arguments of windows per dimension.

    Raises:
        RuntimeError: if kernel size, stride or dilation is not positive, or the padding is negative
            or more than half of a window.
    """
    kernel = sizes_of(kernel_size, ndim, where, "kernel_size")
    steps = kernel
    if stride is not None and not (isinstance(stride, (tuple, list)) and not stride):
        steps = sizes_of(stride, ndim, where, "stride")
    pads = sizes_of(padding, ndim, where, "padding")
    gaps = sizes_of(dilation, ndim, where, "dilation")
    for name, values in (("kernel_size", kernel), ("stride", steps), ("dilation", gaps)):
        if min(values) <= 0:
            raise RuntimeError(
                f"{where}: {name} should be greater than zero, should not be zero, got {values}"
            )
    for pad, size, gap in zip(pads, kernel, gaps, strict=True):
        if pad < 0:
            raise RuntimeError(f"{where}: pad must not be negative, got {pad}")
        if 2 * pad > (size - 1) * gap + 1:
            raise RuntimeError(
                f"{where}: pad should be at most half of effective kernel size, got pad={pad}, "
                f"kernel_size={size} and dilation={gap}"
            )
    return kernel, steps, pads, gaps


def output_size(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    """Return the number of windows: each starts within the padded input, not in the right pad."""
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    count = -(-span // stride) + 1 if ceil else span // stride + 1
    if ceil and (count - 1) * stride >= size + pad:
        count -= 1
    return count


def output_sizes(
    x: "Tensor", where: str, arguments: tuple[Sizes, Sizes, Sizes, Sizes], ceil: bool
) -> Sizes:
    """Return the number of windows in each dimension.

    Raises:
        RuntimeError: if there is none.
    """
    spatial = x._array.shape[-len(arguments[0]) :]
    found = tuple(output_size(*each, ceil) for each in zip(spatial, *arguments, strict=True))
    if min(found) < 1:
        raise RuntimeError(
            f"{where}: calculated output size {found}. Output size is too small for a {describe(x)}"
        )
    return found


def with_dims(windows: "tuple[Windows, ...]") -> "tuple[Windows, ...]":
    """Return windows of three dimensions: the missing ones in front have size 1."""
    return (*(sliding(1, 1, 1, 0, 1, 1),) * (3 - len(windows)), *windows)


@lru_cache(256)
def sliding(size: int, kernel: int, stride: int, pad: int, dilation: int, count: int) -> "Windows":
    """Return windows of `kernel` elements, clipped at both ends."""
    start = np.arange(count) * stride - pad
    skipped = np.maximum(0, -(start // dilation))
    starts = start + skipped * dilation
    stops = np.minimum(start + dilation * (kernel - 1), size - 1)
    counts = (stops - starts) // dilation + 1
    whole = np.flatnonzero((counts == kernel) & (skipped == 0))
    first, last = (int(whole[0]), int(whole[-1]) + 1) if len(whole) else (0, 0)
    width = int(counts.max())
    return kernels.Windows(starts, counts, dilation, width, stride, first, last)


@lru_cache(256)
def adaptive(size: int, count: int) -> "Windows":
    """Return `count` windows that cover `size` elements, as equal as possible.

    The windows share an element where `size` is no multiple of `count`.
    """
    if count and size % count == 0:
        return sliding(size, size // count, size // count, 0, 1, count)
    number = np.arange(count)
    starts = number * size // max(count, 1)
    counts = -(-(number + 1) * size // max(count, 1)) - starts
    return kernels.Windows(starts, counts, 1, int(counts.max(initial=1)))
