"""Max unpooling, the partial inverse of max pooling."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dims import integers
from offgrad.ops._core.dtypes import check_tensor, shape_error
from offgrad.ops._nn.windows import INTEGERS, check_input, sizes_of

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__: list[str] = []


def _unpooled_size(
    input: "Tensor", ndim: int, kernel: Any, stride: Any, padding: Any, output_size: Any
) -> tuple[int, ...]:
    where = f"max_unpool{ndim}d"
    windows = sizes_of(kernel, ndim, where, "kernel_size")
    steps = windows if stride is None or stride == [] else sizes_of(stride, ndim, where, "stride")
    pads = sizes_of(padding, ndim, where, "padding")
    spatial = input._array.shape[input._array.ndim - ndim :]
    default = tuple(
        (size - 1) * step + window - 2 * pad
        for size, window, step, pad in zip(spatial, windows, steps, pads, strict=True)
    )
    if output_size is None:
        return default
    given = integers(tuple(output_size), where, "output_size")
    if len(given) == ndim + 2:
        given = given[2:]
    if len(given) != ndim:
        raise ValueError(f"output_size must have {ndim} or {ndim + 2} numbers, got {len(given)}")
    for dim, (size, wanted, step) in enumerate(zip(default, given, steps, strict=True)):
        if not size - step < wanted < size + step:
            raise ValueError(
                f"output_size={given} does not fit: dimension {dim} must be above {size - step} "
                f"and below {size + step}"
            )
    return given


def _max_unpool(
    ndim: int, input: "Tensor", indices: "Tensor", kernel_size: Any, stride: Any, padding: Any,
    output_size: Any,
) -> "Tensor":  # fmt: skip
    where = f"max_unpool{ndim}d"
    x = check_input(input, ndim, where, INTEGERS)
    sizes = _unpooled_size(x, ndim, kernel_size, stride, padding, output_size)
    at = check_tensor(indices, where)
    if at._array.dtype != np.int64:
        raise RuntimeError(f"{where}: indices must be int64, got {at._array.dtype.name}")
    if at._array.shape != x._array.shape:
        raise shape_error(where, "indices must have the input's shape", x, at)
    lead = x._array.shape[: x._array.ndim - ndim]
    count = prod(sizes)
    flat = (*lead, prod(x._array.shape[x._array.ndim - ndim :]))
    if at._array.size and not at.is_meta and not 0 <= at._array.min() <= at._array.max() < count:
        raise RuntimeError(
            f"Found an invalid max index: {at._array.min()} to {at._array.max()} (output volumes "
            f"are of size {'x'.join(map(str, sizes))})"
        )
    zeros = x.new_zeros((*lead, count))
    return zeros.scatter(len(lead), at.reshape(flat), x.reshape(flat)).reshape(*lead, *sizes)


@full_precision
def max_unpool1d(
    input: "Tensor",
    indices: "Tensor",
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> "Tensor":
    """Return zeros with the values of `input` at the places that max pooling found.

    Args:
        input: the maxima, shape [N, C, L] or [C, L].
        indices: their places, as max pooling returns them.
        kernel_size: of the pooling, as its stride and padding: they give the size of the result.
        stride: the kernel size by default.
        padding: see `kernel_size`.
        output_size: the size itself, where several are possible.

    Raises:
        ValueError: if `output_size` does not fit.
        RuntimeError: if the indices do not.
    """
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


@full_precision
def max_unpool2d(
    input: "Tensor",
    indices: "Tensor",
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> "Tensor":
    """Return zeros with the values of `input` at the places that max pooling found.

    Arguments and errors are those of `max_unpool1d`, for inputs [N, C, H, W] or [C, H, W].
    """
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


@full_precision
def max_unpool3d(
    input: "Tensor",
    indices: "Tensor",
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> "Tensor":
    """Return zeros with the values of `input` at the places that max pooling found.

    Arguments and errors are those of `max_unpool1d`, for inputs [N, C, D, H, W] or [C, D, H, W].
    """
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size)
