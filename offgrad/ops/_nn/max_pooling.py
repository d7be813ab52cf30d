"""Maxima over windows: max pooling, of fixed and of adaptive windows."""

import functools
import inspect
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.autocast import full_precision, in_full_precision
from offgrad.ops._core.dtypes import category
from offgrad.ops._nn.padding import constant_pad_nd
from offgrad.ops._nn.windows import (
    INTEGERS,
    adaptive,
    check_adaptive,
    check_input,
    output_sizes,
    sizes_of,
    sliding,
    window_sizes,
    with_dims,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.kernels import Windows

__all__ = ["max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool3d"]


def _volume(x: Array, ndim: int) -> Array:
    """Return `x` as [planes, D, H, W]."""
    sizes = x.shape[x.ndim - ndim :]
    shape = (prod(x.shape[: x.ndim - ndim]), *(1,) * (3 - ndim), *sizes)
    return memory.contiguous(x).reshape(shape)


class MaxPool(Op):
    """The maxima of windows; keeps for each the number of its element in the window.

    That number takes one byte for windows of up to 256 elements, four for larger ones. The input is
    not kept.
    """

    def forward(
        self, x: Array, windows: "tuple[Windows, ...]", ndim: int, with_indices: bool
    ) -> tuple[Array, Array | None]:
        """Return the maxima and, if asked for, their places in the flattened plane."""
        self.windows, self.ndim, self.shape = windows, ndim, x.shape
        volume = _volume(x, ndim)
        counts = tuple(len(each.starts) for each in windows)
        shape = (*x.shape[: x.ndim - ndim], *counts[3 - ndim :])
        out = memory.empty(shape, x.dtype)
        codes = None
        if self.needs_input_grad[0] or with_indices:
            codes = memory.empty((len(volume), *counts), kernels.code_dtype(windows))
        kernels.max_pool(volume, windows, out.reshape(len(volume), *counts), codes)
        self.save(codes=codes if self.needs_input_grad[0] else None)
        if not with_indices or codes is None:
            return out, None
        return out, kernels.places(codes, windows, volume.shape[1:]).reshape(shape)

    def backward(self, grad: "Tensor", _: "Tensor | None") -> Any:
        """Add each gradient to the element that is the maximum."""
        arguments = {"windows": self.windows, "ndim": self.ndim, "shape": self.shape}
        name = self.name().replace("Backward0", "BackwardBackward0")
        return MaxPoolBackward.named(name).apply(grad, self.saved("codes"), **arguments)


class MaxPoolBackward(Op):
    """Zeros with gradients added at the places of maxima; keeps the places."""

    def forward(
        self,
        grad: Array,
        codes: Array,
        windows: "tuple[Windows, ...]",
        ndim: int,
        shape: tuple[int, ...],
    ) -> Array:
        self.windows, self.ndim = windows, ndim
        self.save(codes=codes)
        out = memory.empty(shape, grad.dtype)
        target = _volume(out, ndim)
        gradients = memory.contiguous(grad).reshape(codes.shape)
        kernels.max_pool_backward(gradients, codes, windows, target)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Pick the gradient at the places."""
        chosen = {"windows": self.windows, "ndim": self.ndim}
        return MaxPoolDoubleBackward.apply(grad, self.saved("codes"), **chosen), None


class MaxPoolDoubleBackward(Op):
    """The elements at the places of maxima; keeps the places."""

    def forward(self, x: Array, codes: Array, windows: "tuple[Windows, ...]", ndim: int) -> Array:
        self.windows, self.ndim, self.shape = windows, ndim, x.shape
        self.save(codes=codes)
        volume = _volume(x, ndim)
        places = kernels.places(codes, windows, volume.shape[1:])
        places = places.reshape(len(volume), prod(codes.shape[1:]))
        counts = codes.shape[4 - ndim :]
        out = memory.empty((*x.shape[: x.ndim - ndim], *counts), x.dtype)
        flat = volume.reshape(len(volume), prod(volume.shape[1:]))
        kernels.gather(flat, places, 1, out.reshape(places.shape))
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient at its place."""
        arguments = {"windows": self.windows, "ndim": self.ndim, "shape": self.shape}
        return MaxPoolBackward.apply(grad, self.saved("codes"), **arguments), None


def pooled(
    x: "Tensor", windows: "tuple[Windows, ...]", name: str, return_indices: bool
) -> "Tensor | tuple[Tensor, Tensor]":
    operation = MaxPool.named(name + "Backward0")
    values, indices = operation.apply_all(
        x, windows=with_dims(windows), ndim=len(windows), with_indices=return_indices
    )
    return (values, indices) if return_indices else values


def _max_pool(
    ndim: int, input: "Tensor", kernel_size: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, return_indices: bool,
) -> Any:  # fmt: skip
    where = f"max_pool{ndim}d"
    arguments = window_sizes(where, ndim, kernel_size, stride, padding, dilation)
    x = check_input(input, ndim, where, INTEGERS if ndim > 1 else ())
    counts = output_sizes(x, where, arguments, ceil_mode)
    spatial = x._array.shape[-ndim:]
    name = f"MaxPool{max(ndim, 2)}DWithIndices"
    if any(gap > size for size, gap in zip(spatial, arguments[3], strict=True)):
        return _max_pool_of_padded(x, arguments, counts, name, return_indices)
    windows = tuple(
        sliding(size, *each) for size, *each in zip(spatial, *arguments, counts, strict=True)
    )
    return pooled(x, windows, name, return_indices)


def _max_pool_of_padded(
    x: "Tensor",
    arguments: tuple[Any, ...],
    counts: tuple[int, ...],
    name: str,
    return_indices: bool,
) -> Any:
    """Return the maxima of windows, the lowest number for those that hold padding alone."""
    spatial = x._array.shape[-len(counts) :]
    pads: list[int] = []
    windows = []
    for size, kernel, stride, pad, gap, count in zip(spatial, *arguments, counts, strict=True):
        whole = max((count - 1) * stride + (kernel - 1) * gap + 1, pad + size)
        pads[:0] = [pad, whole - size - pad]
        windows.append(sliding(whole, kernel, stride, 0, gap, count))
    dtype = x._array.dtype
    lowest = float("-inf") if category(dtype) == 2 else np.iinfo(dtype).min
    padded = constant_pad_nd(x, pads, lowest)
    result = pooled(padded, tuple(windows), name, return_indices)
    if not return_indices:
        return result
    values, indices = result
    places = np.unravel_index(indices._array, padded._array.shape[-len(counts) :])
    inside = [
        np.clip(each - pad, 0, size - 1)
        for each, pad, size in zip(places, arguments[2], spatial, strict=True)
    ]
    return values, wrap(np.ravel_multi_index(inside, spatial))


def max_pool1d(
    input: "Tensor",
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the maxima of windows along the last dimension.

    Args:
        input: shape [N, C, L] or [C, L].
        kernel_size: the number of elements of a window.
        stride: the distance of windows; the kernel size by default.
        padding: how far windows reach over both ends; elements outside never are the maximum.
        dilation: the distance of the elements of a window.
        ceil_mode: whether a last window may begin within the input and end outside.
        return_indices: whether to return the places of the maxima as well, int64: positions in
            the input's last dimension.

    Raises:
        RuntimeError: if the arguments do not fit the shape.
        NotImplementedError: for a dtype that is not floating point.
    """
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: "Tensor",
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the maxima of windows of the last two dimensions.

    Arguments and errors are those of `max_pool1d`, one number or two for each; the input is of
    shape [N, C, H, W] or [C, H, W], of floating point numbers or integers, and indices are
    positions in the flattened plane [H * W].
    """
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: "Tensor",
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the maxima of windows of the last three dimensions.

    Arguments and errors are those of `max_pool1d`, one number or three for each; the input is of
    shape [N, C, D, H, W] or [C, D, H, W], of floating point numbers or integers, and indices are
    positions in the flattened volume [D * H * W].
    """
    if not return_indices:  # PyTorch's list has no maxima with indices
        input = in_full_precision(input)
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def with_indices(operation: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return `operation` under `name`, returning indices whatever `return_indices` is."""
    signature = inspect.signature(operation)

    @functools.wraps(operation)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["return_indices"] = True
        return operation(*bound.args, **bound.kwargs)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"Return the result of `{operation.__name__}` and the places of its maxima."
    return run


def adaptive_sizes(x: "Tensor", ndim: int, output_size: Any, where: str) -> tuple[int, ...]:
    """Return the sizes of the result; None stands for that of the input.

    Raises:
        RuntimeError: for negative sizes, or another number of them.
    """
    spatial = x._array.shape[-ndim:]
    given = (output_size,) * ndim if not isinstance(output_size, (tuple, list)) else output_size
    if len(given) != ndim:
        raise RuntimeError(f"{where}: output_size must be {ndim} sizes, got {output_size}")
    pairs = zip(given, spatial, strict=True)
    sizes = sizes_of([own if each is None else each for each, own in pairs], ndim, where, "size")
    if min(sizes) < 0:
        raise RuntimeError(f"{where}: output_size must be 0 or more, got {sizes}")
    return sizes


def _adaptive_max_pool(ndim: int, input: "Tensor", output_size: Any, return_indices: bool) -> Any:
    where = f"adaptive_max_pool{ndim}d"
    x = check_adaptive(input, ndim, output_size, where)
    sizes = adaptive_sizes(x, ndim, output_size, where)
    pairs = zip(x._array.shape[-ndim:], sizes, strict=True)
    windows = tuple(adaptive(size, count) for size, count in pairs)
    return pooled(x, windows, f"AdaptiveMaxPool{max(ndim, 2)}D", return_indices)


def adaptive_max_pool1d(input: "Tensor", output_size: Any, return_indices: bool = False) -> Any:
    """Return the maxima of `output_size` windows that cover the last dimension evenly.

    Args:
        input: shape [N, C, L] or [C, L].
        output_size: the number of windows; None for L.
        return_indices: whether to return the places of the maxima as well, as `max_pool1d`.

    Raises:
        RuntimeError: if shapes or sizes do not fit.
        NotImplementedError: for a dtype that is not floating point.
    """
    return _adaptive_max_pool(1, input, output_size, return_indices)


def adaptive_max_pool2d(input: "Tensor", output_size: Any, return_indices: bool = False) -> Any:
    """Return the maxima of windows that cover the last two dimensions evenly.

    Arguments and errors are those of `adaptive_max_pool1d`, `output_size` one or two sizes.
    """
    return _adaptive_max_pool(2, input, output_size, return_indices)


@full_precision
def adaptive_max_pool3d(input: "Tensor", output_size: Any, return_indices: bool = False) -> Any:
    """Return the maxima of windows that cover the last three dimensions evenly.

    Arguments and errors are those of `adaptive_max_pool1d`, `output_size` one or three sizes.
    """
    return _adaptive_max_pool(3, input, output_size, return_indices)


adaptive_max_pool1d_with_indices = with_indices(
    adaptive_max_pool1d, "adaptive_max_pool1d_with_indices"
)
adaptive_max_pool2d_with_indices = with_indices(
    adaptive_max_pool2d, "adaptive_max_pool2d_with_indices"
)
adaptive_max_pool3d_with_indices = with_indices(
    adaptive_max_pool3d, "adaptive_max_pool3d_with_indices"
)
max_pool1d_with_indices = with_indices(max_pool1d, "max_pool1d_with_indices")
max_pool2d_with_indices = with_indices(max_pool2d, "max_pool2d_with_indices")
max_pool3d_with_indices = with_indices(max_pool3d, "max_pool3d_with_indices")
