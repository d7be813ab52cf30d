"""Means over windows: average pooling, adaptive average pooling, and power means."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dims import integer
from offgrad.ops._nn.max_pooling import adaptive_sizes
from offgrad.ops._nn.resampling import resampled, spread
from offgrad.ops._nn.windows import (
    adaptive,
    check_adaptive,
    check_input,
    output_sizes,
    sizes_of,
    window_sizes,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.kernels import Taps

__all__ = ["adaptive_avg_pool1d", "avg_pool1d"]


@lru_cache(256)
def _means(
    size: int, kernel: int, stride: int, pad: int, count: int, counts_pads: bool, divisor: int
) -> "Taps":
    """Return the taps of means of `count` windows; a `divisor` other than 0 overrides theirs."""
    starts = np.arange(count) * stride - pad
    stops = np.minimum(starts + kernel, size + pad)
    padded = stops - starts
    first, last = np.maximum(starts, 0), np.minimum(stops, size)
    index, inside = spread(first, last - first)
    divisors = np.full(count, divisor) if divisor else padded if counts_pads else last - first
    return kernels.Taps(size, index, inside, divisors)


def _avg_pool(
    ndim: int, input: "Tensor", kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: Any = None,
) -> "Tensor":  # fmt: skip
    where = f"avg_pool{ndim}d"
    override = 0
    if divisor_override is not None:
        override = integer(divisor_override, where, "divisor_override")
        if override == 0:
            raise RuntimeError(f"{where}: divisor must be not zero")
    arguments = window_sizes(where, ndim, kernel_size, stride, padding)
    x = check_input(input, ndim, where, (np.int64,))
    counts = output_sizes(x, where, arguments, ceil_mode)
    # The divisors of all dimensions are multiplied.
    divisors = (override, *(1,) * (ndim - 1)) if override else (0,) * ndim
    kernel, steps, pads, _ = arguments
    taps = tuple(
        _means(*each[:-1], bool(count_include_pad), each[-1])
        for each in zip(x._array.shape[-ndim:], kernel, steps, pads, counts, divisors, strict=True)
    )
    return resampled(x, taps, f"AvgPool{max(ndim, 2)}D")


def avg_pool1d(
    input: "Tensor",
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> "Tensor":
    """Return the means of windows along the last dimension.

    Args:
        input: shape [N, C, L] or [C, L].
        kernel_size: the number of elements of a window.
        stride: the distance of windows; the kernel size by default.
        padding: how far windows reach over both ends, where there are zeros.
        ceil_mode: whether a last window may begin within the input and end outside.
        count_include_pad: whether the zeros outside count as elements.

    Raises:
        RuntimeError: if the arguments do not fit the shape.
        NotImplementedError: for bools and complex numbers.
    """
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: "Tensor",
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> "Tensor":
    """Return the means of windows of the last two dimensions.

    Arguments and errors are those of `avg_pool1d`, one number or two for each; the input is of
    shape [N, C, H, W] or [C, H, W]. `divisor_override` is what sums are divided by instead of the
    number of elements.
    """
    return _avg_pool(
        2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@full_precision
def avg_pool3d(
    input: "Tensor",
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> "Tensor":
    """Return the means of windows of the last three dimensions.

    Arguments and errors are those of `avg_pool2d`, one number or three for each; the input is of
    shape [N, C, D, H, W] or [C, D, H, W].
    """
    return _avg_pool(
        3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@lru_cache(256)
def adaptive_means(size: int, count: int) -> "Taps":
    """Return the taps of the means of `count` windows that cover `size` elements evenly."""
    windows = adaptive(size, count)
    index, inside = spread(windows.starts, windows.counts)
    return kernels.Taps(size, index, inside, windows.counts)


def _adaptive_avg_pool(ndim: int, input: "Tensor", output_size: Any) -> "Tensor":
    where = f"adaptive_avg_pool{ndim}d"
    x = check_adaptive(input, ndim, output_size, where)
    sizes = adaptive_sizes(x, ndim, output_size, where)
    if set(sizes) == {1}:
        return x.mean(tuple(range(-ndim, 0)), keepdim=True)
    pairs = zip(x._array.shape[-ndim:], sizes, strict=True)
    taps = tuple(adaptive_means(size, count) for size, count in pairs)
    return resampled(x, taps, f"AdaptiveAvgPool{max(ndim, 2)}D")


def adaptive_avg_pool1d(input: "Tensor", output_size: Any) -> "Tensor":
    """Return the means of `output_size` windows that cover the last dimension evenly.

    Args:
        input: shape [N, C, L] or [C, L].
        output_size: the number of windows; None for L.

    Raises:
        RuntimeError: if shapes or sizes do not fit.
        NotImplementedError: for a dtype that is not floating point.
    """
    return _adaptive_avg_pool(1, input, output_size)


def adaptive_avg_pool2d(input: "Tensor", output_size: Any) -> "Tensor":
    """Return the means of windows that cover the last two dimensions evenly.

    Arguments and errors are those of `adaptive_avg_pool1d`, `output_size` one or two sizes.
    """
    return _adaptive_avg_pool(2, input, output_size)


@full_precision
def adaptive_avg_pool3d(input: "Tensor", output_size: Any) -> "Tensor":
    """Return the means of windows that cover the last three dimensions evenly.

    Arguments and errors are those of `adaptive_avg_pool1d`, `output_size` one or three sizes.
    """
    return _adaptive_avg_pool(3, input, output_size)


def _lp_pool(
    ndim: int, input: "Tensor", norm_type: float, kernel_size: Any, stride: Any, ceil_mode: bool
) -> "Tensor":
    count = int(np.prod(sizes_of(kernel_size, ndim, f"lp_pool{ndim}d", "kernel_size")))
    means = _avg_pool(ndim, input**norm_type, kernel_size, stride, 0, ceil_mode, True)
    # PyTorch's formula for the mean itself, which decides the gradient at 0.
    return ((means.sign() * means.abs().relu()) * count) ** (1.0 / norm_type)


def lp_pool1d(
    input: "Tensor",
    norm_type: float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: bool = False,
) -> "Tensor":
    """Return the root of the sum of powers `norm_type` of windows along the last dimension.

    The other arguments are those of `avg_pool1d`.
    """
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: "Tensor",
    norm_type: float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: bool = False,
) -> "Tensor":
    """Return the root of the sum of powers `norm_type` of windows of the last two dimensions.

    The other arguments are those of `avg_pool2d`.
    """
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


@full_precision
def lp_pool3d(
    input: "Tensor",
    norm_type: float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: bool = False,
) -> "Tensor":
    """Return the root of the sum of powers `norm_type` of windows of the last three dimensions.

    The other arguments are those of `avg_pool3d`.
    """
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)
