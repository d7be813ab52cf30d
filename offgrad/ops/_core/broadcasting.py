"""Broadcasting and type promotion of operands; results in tensor memory."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops._core.dtypes import (
    TensorLike,
    as_tensor_of,
    cast_gradient,
    check_broadcastable,
    check_operand,
    result_type,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def compute(ufunc: Callable[..., Any], *arrays: Array, dtype: Any = None) -> Array:
    """Return ``ufunc(*arrays)`` in tensor memory, C-ordered, of `dtype` or that of the arrays."""
    first = arrays[0]
    shape = first.shape
    for each in arrays[1:]:
        if each.shape != shape:
            shape = np.broadcast_shapes(shape, each.shape)
    if first.nbytes < memory.POOL_THRESHOLD and shape == first.shape and type(ufunc) is np.ufunc:
        result: Array = ufunc(*arrays, order="C")
        return result
    out = memory.empty(shape, first.dtype if dtype is None else dtype)
    ufunc(*arrays, out=out)
    return out


def converted(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return `array` as `dtype`; itself if it has that dtype."""
    if array.dtype == dtype:
        return array
    out = memory.empty(array.shape, dtype)
    np.copyto(out, array, casting="unsafe")
    return out


def conj(tensor: "Tensor") -> "Tensor":
    """Return the complex conjugate; a real tensor itself."""
    if tensor._array.dtype.kind != "c":
        return tensor
    result = tensor.conj_physical()
    if tensor._is_wrapped_number:
        result._is_wrapped_number = True
    return result


class Broadcasting(Op):
    """An operation on arrays of broadcastable shapes, which it converts to one dtype.

    Subclasses save the arrays as they came: the user's tensors, not converted copies.
    """

    is_recomputable = True

    shapes: tuple[tuple[int, ...], ...]
    # The dtypes of the operands if one differs from that of the result.
    dtypes: tuple[np.dtype[Any], ...] | None = None

    def operands(self, dtype: np.dtype[Any], *arrays: Array) -> tuple[Array, ...]:
        """Return the arrays as `dtype`; record their shapes and dtypes for `reduced`."""
        self.shapes = tuple([each.shape for each in arrays])
        for each in arrays:
            if each.dtype != dtype:
                self.dtypes = tuple([each.dtype for each in arrays])
                return tuple([converted(each, dtype) for each in arrays])
        return arrays

    def reduced(self, *grads: "Tensor | None") -> "tuple[Tensor | None, ...]":
        """Return the gradients summed over the broadcast dimensions, in the operands' dtypes."""
        summed = tuple(
            [
                None if grad is None else grad.sum_to_size(shape)
                for grad, shape in zip(grads, self.shapes, strict=True)
            ]
        )
        if self.dtypes is None:
            return summed
        return tuple(
            [
                None if grad is None else cast_gradient(grad, dtype)
                for grad, dtype in zip(summed, self.dtypes, strict=True)
            ]
        )


def operands(where: str, a: TensorLike, b: TensorLike) -> "tuple[Tensor, Tensor, np.dtype[Any]]":
    """Return both as tensors, numbers in the dtype to compute in, and that dtype.

    Raises:
        TypeError: for operands that are neither tensors nor numbers.
        RuntimeError: if the shapes do not broadcast.
    """
    if isinstance(a, TensorBase) and isinstance(b, TensorBase):
        dtype = a._array.dtype
        if dtype != b._array.dtype:
            dtype = result_type(a, b)
        if a._array.shape != b._array.shape:
            check_broadcastable(where, a, b)
        return a, b, dtype
    for each in (a, b):
        check_operand(each, where)
    if isinstance(a, TensorBase):
        dtype = result_type(a, b)
        return a, as_tensor_of(b, dtype, where), dtype
    if isinstance(b, TensorBase):
        dtype = result_type(a, b)
        return as_tensor_of(a, dtype, where), b, dtype
    dtype = result_type(a, b)
    return as_tensor_of(a, dtype, where), as_tensor_of(b, dtype, where), dtype


def no_bools(where: str, *operands: TensorLike) -> None:
    """Raise RuntimeError for bools, tensors or numbers."""
    for each in operands:
        if isinstance(each, bool) or getattr(each, "dtype", None) == np.bool_:
            raise RuntimeError(f"{where} is not defined for bools; convert them, or use ^ or ~")
