"""Max pooling over windows at random places, so that sizes shrink by any factor.

Source: B. Graham, "Fractional max-pooling", arXiv:1412.6071.
"""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._nn.max_pooling import with_indices
from offgrad.ops._nn.windows import check_input, sizes_of
from offgrad.ops._random.samples import rand

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__: list[str] = []


def _starts(sample: Array, size: int, count: int, kernel: int) -> Array:
    """Return where the windows of each plane begin, [planes, count], from numbers in [0, 1)."""
    last = np.full((len(sample), 1), size - kernel)
    if count == 1:
        return last
    alpha = sample.dtype.type(size - kernel) / sample.dtype.type(count - 1)
    number = np.arange(count - 1, dtype=sample.dtype)
    u = sample[:, None]
    starts = np.floor((number + u) * alpha).astype(np.int64) - np.floor(u * alpha).astype(np.int64)
    return np.concatenate([starts, last], 1)


def _sizes(
    x: "Tensor", ndim: int, output_size: Any, output_ratio: Any, kernel: tuple[int, ...]
) -> tuple[int, ...]:
    where = f"fractional_max_pool{ndim}d"
    spatial = x._array.shape[-ndim:]
    if output_size is None:
        if output_ratio is None:
            raise ValueError(f"{where} needs output_size or output_ratio")
        ratios = output_ratio if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * ndim
        if len(ratios) != ndim:
            raise ValueError(
                f"{where} requires output_ratio to either be a single Int or tuple of Ints, one "
                f"ratio or {ndim}, got {output_ratio}"
            )
        output_size = tuple(int(size * ratio) for size, ratio in zip(spatial, ratios, strict=True))
    sizes = sizes_of(output_size, ndim, where, "output_size")
    for size, count, window in zip(spatial, sizes, kernel, strict=True):
        if count + window - 1 > size:
            raise RuntimeError(
                f"{where}(): pool size {window} too large relative to input size {size} for "
                f"{count} windows"
            )
    return sizes


def _fractional_max_pool(
    ndim: int, input: "Tensor", kernel_size: Any, output_size: Any, output_ratio: Any,
    return_indices: bool, samples: "Tensor | None",
) -> Any:  # fmt: skip
    where = f"fractional_max_pool{ndim}d"
    x = check_input(input, ndim, where)
    kernel = sizes_of(kernel_size, ndim, where, "kernel_size")
    counts = _sizes(x, ndim, output_size, output_ratio, kernel)
    spatial, lead = x._array.shape[-ndim:], x._array.shape[:-ndim]
    batch = lead if len(lead) == 2 else (1, *lead)
    if samples is None:
        samples = rand(*batch, ndim, dtype=x._array.dtype)
    numbers = check_tensor(samples, where)._array
    if numbers.ndim == 2 and len(lead) == 1:
        numbers = numbers[None]
    if numbers.shape != (*batch, ndim):
        raise RuntimeError(
            f"{where}: _random_samples must have the shape {[*batch, ndim]}, got a "
            f"{describe(samples)}"
        )
    numbers = numbers.reshape(prod(batch), ndim)
    if ndim == 2:
        numbers = numbers[:, ::-1]  # PyTorch's order of two is width, height
    places = np.zeros((prod(batch), *(1,) * (2 * ndim)), np.int64)
    for axis, (size, count, window) in enumerate(zip(spatial, counts, kernel, strict=True)):
        elements = _starts(numbers[:, axis], size, count, window)[..., None] + np.arange(window)
        shape = [len(places), *(1,) * (2 * ndim)]
        shape[1 + axis], shape[1 + ndim + axis] = count, window
        places = places * size + elements.reshape(shape)
    index = wrap(places.reshape(*lead, prod(counts) * prod(kernel)))
    values = x.reshape(*lead, prod(spatial)).gather(-1, index)
    found = values.reshape(*lead, *counts, prod(kernel)).max(-1)
    if not return_indices:
        return found.values
    every = index.reshape(*lead, *counts, prod(kernel))
    return found.values, every.gather(-1, found.indices.unsqueeze(-1)).squeeze(-1)


@full_precision
def fractional_max_pool2d(
    input: "Tensor",
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: "Tensor | None" = None,
) -> Any:
    """Return the maxima of windows at random places that cover the last two dimensions.

    Args:
        input: shape [N, C, H, W] or [C, H, W].
        kernel_size: the sizes of a window, or one for both.
        output_size: the number of windows in each dimension, or one for both.
        output_ratio: instead, that number over the size.
        return_indices: whether to return the places of the maxima as well, int64.
        _random_samples: numbers from 0 to 1, shape [N, C, 2], that choose the places.

    Raises:
        ValueError: without `output_size` and `output_ratio`.
        RuntimeError: if the windows do not fit.
    """
    return _fractional_max_pool(
        2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


@full_precision
def fractional_max_pool3d(
    input: "Tensor",
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: "Tensor | None" = None,
) -> Any:
    """Return the maxima of windows at random places that cover the last three dimensions.

    Arguments and errors are those of `fractional_max_pool2d`, with `_random_samples` [N, C, 3].
    """
    return _fractional_max_pool(
        3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


fractional_max_pool2d_with_indices = with_indices(
    fractional_max_pool2d, "fractional_max_pool2d_with_indices"
)
fractional_max_pool3d_with_indices = with_indices(
    fractional_max_pool3d, "fractional_max_pool3d_with_indices"
)
