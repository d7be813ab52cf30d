"""Tensors of one number, and without defined contents."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.tensor_base import TensorBase, new_storage, wrap
from offgrad.ops._core.dims import integers, shape_of
from offgrad.ops._core.dtypes import check_tensor, common_dtype, default_dtype, element
from offgrad.ops._core.factories import factory, new_shape
from offgrad.ops._core.memory_formats import empty_in_order, order_of

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


@factory
def empty(
    *args: Any, size: Any = None, dtype: Any = None, memory_format: Any = None, names: Any = None
) -> "Tensor":
    """Return an uninitialised tensor; its sizes come one by one, or as a tuple."""
    shape = new_shape(args, size, "empty")
    kind = default_dtype() if dtype is None else dtype
    if memory_format is None:
        return wrap(memory.empty(shape, kind))
    like = np.broadcast_to(np.empty((), kind), shape)
    return wrap(empty_in_order(shape, kind, order_of(like, memory_format, "empty")))


@factory
def empty_strided(size: Any, stride: Any, *, dtype: Any = None) -> "Tensor":
    """Return an uninitialised tensor whose dimensions have the strides `stride`, in elements."""
    shape = shape_of((size,), "empty_strided")
    steps = shape_of((stride,), "empty_strided")
    if len(shape) != len(steps):
        raise RuntimeError(
            f"empty_strided: each dimension needs a stride, got size {shape} and stride {steps}"
        )
    kind = default_dtype() if dtype is None else dtype
    extent = 0
    if min(shape, default=1):
        extent = 1 + sum((each - 1) * step for each, step in zip(shape, steps, strict=True))
    base = memory.empty((extent,), kind)
    strides = [step * kind.itemsize for step in steps]
    return wrap(np.ndarray(shape, kind, base, 0, strides), new_storage(base))


@factory
def empty_permuted(size: Any, physical_layout: Any, *, dtype: Any = None) -> "Tensor":
    """Return an uninitialised tensor whose dimensions lie in memory in the order given.

    Raises:
        RuntimeError: if `physical_layout` does not name each dimension once.
    """
    shape = shape_of((size,), "empty_permuted")
    order = integers(physical_layout, "empty_permuted", "physical_layout")
    if sorted(order) != list(range(len(shape))):
        problem = "Duplicate dim not allowed"
        if len(order) != len(shape):
            problem = (
                "Number of dimensions in size does not match the length of the physical_layout"
            )
        elif not 0 <= min(order) <= max(order) < len(shape):
            problem = "Dimension out of range"
        raise RuntimeError(
            f"empty_permuted: {problem}: physical_layout names each dimension once, got {order} "
            f"for size {shape}"
        )
    return wrap(empty_in_order(shape, default_dtype() if dtype is None else dtype, order))


@factory
def full(size: Sequence[int], fill_value: Any, *, dtype: Any = None, names: Any = None) -> "Tensor":
    """Return a constant tensor.

    Args:
        size: the shape, a tuple or list.
        fill_value: a number, or a tensor without dimensions.
        dtype: by default bool, int64, the default dtype, or complex, for a value of that kind.
        names: must be None.

    Raises:
        TypeError: if `size` is not a sequence of integers, or `fill_value` not a number.
        RuntimeError: if the value does not fit into the dtype.
    """
    value = number(fill_value, "full")
    kind = dtype if dtype is not None else common_dtype(value)
    return _constant(shape_of((integers(size, "full", "size"),), "full"), value, kind, "full")


def _constant(shape: tuple[int, ...], value: Any, dtype: Any, where: str) -> "Tensor":
    out = memory.empty(shape, dtype)
    out[...] = element(value, dtype, where)
    return wrap(out)


def number(value: Any, where: str) -> Any:
    """Return a number, or that in a tensor without dimensions.

    Raises:
        TypeError: for all else.
    """
    if isinstance(value, TensorBase) and not value._array.ndim:
        return value._array.tolist()
    if not isinstance(value, (bool, int, float, complex, np.generic)):
        raise TypeError(f"{where} takes numbers, got {type(value).__name__}")
    return value


@factory
def zeros(*args: Any, size: Any = None, dtype: Any = None, names: Any = None) -> "Tensor":
    """Return a tensor of zeros; its sizes come one by one, or as a tuple."""
    return _constant(new_shape(args, size, "zeros"), 0, dtype or default_dtype(), "zeros")


@factory
def ones(*args: Any, size: Any = None, dtype: Any = None, names: Any = None) -> "Tensor":
    """Return a tensor of ones; its sizes come one by one, or as a tuple."""
    return _constant(new_shape(args, size, "ones"), 1, dtype or default_dtype(), "ones")


@factory
def empty_like(input: "Tensor", *, dtype: Any = None, memory_format: Any = None) -> "Tensor":
    """Return an uninitialised tensor of the shape and dtype of `input`.

    Its dimensions lie in memory as those of `input` if that has no gaps.
    """
    return _empty_like(input, dtype, memory_format, "empty_like")


def _empty_like(input: "Tensor", dtype: Any, memory_format: Any, where: str) -> "Tensor":
    like = check_tensor(input, where)._array
    order = order_of(like, memory_format, where)
    return wrap(empty_in_order(like.shape, dtype or like.dtype, order))


def _filled(input: "Tensor", value: Any, dtype: Any, memory_format: Any, where: str) -> "Tensor":
    result = _empty_like(input, dtype, memory_format, where)
    result._array[...] = element(value, result._array.dtype, where)
    return result


@factory
def zeros_like(input: "Tensor", *, dtype: Any = None, memory_format: Any = None) -> "Tensor":
    """Return zeros of the shape, the dtype and the order in memory of `input`."""
    return _filled(input, 0, dtype, memory_format, "zeros_like")


@factory
def ones_like(input: "Tensor", *, dtype: Any = None, memory_format: Any = None) -> "Tensor":
    """Return ones of the shape, the dtype and the order in memory of `input`."""
    return _filled(input, 1, dtype, memory_format, "ones_like")


@factory
def full_like(
    input: "Tensor", fill_value: Any, *, dtype: Any = None, memory_format: Any = None
) -> "Tensor":
    """Return a constant tensor of the shape, the dtype and the order in memory of `input`."""
    value = number(fill_value, "full_like")
    return _filled(input, value, dtype, memory_format, "full_like")
