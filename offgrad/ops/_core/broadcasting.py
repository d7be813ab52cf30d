"""Broadcasting and type promotion of operands; results in tensor memory."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.node import as_tensors
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, numpy_dtype
from offgrad.memory.meta import MetaArray, meta_tensor_memory
from offgrad.ops._core.dtypes import (
    TensorLike,
    as_tensor_of,
    cast_gradient,
    category,
    check_operand,
    check_ordered,
    common_dtype,
    default_dtype,
    not_broadcastable,
    shared_number,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


_LARGE, _UFUNC = memory.POOL_THRESHOLD, np.ufunc
_MIN_THREADED = 1 << 20  # elements: NumPy's passes over fewer are as fast on one thread
_MIN_SHARED = 1 << 17  # elements of those for which there are compiled loops


def broadcast_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which two shapes broadcast.

    Raises:
        ValueError: they do not.
    """
    extra = len(a) - len(b)
    if extra >= 0:
        if a[extra:] == b:
            return a
    elif b[-extra:] == a:
        return b
    return np.broadcast_shapes(a, b)


def compute(ufunc: Callable[..., Any], *arrays: Array, dtype: Any = None) -> Array:
    """Return ``ufunc(*arrays)`` in tensor memory, C-ordered, of `dtype` or that of the arrays."""
    first = arrays[0]
    shape = first.shape
    is_broadcast = False
    for each in arrays:
        if each is not first and each.shape != shape:
            shape, before = broadcast_shape(shape, each.shape), shape
            is_broadcast = is_broadcast or shape != before
    if not is_broadcast and first.nbytes < _LARGE and type(ufunc) is _UFUNC:
        result: Array = ufunc(*arrays, order="C")
        return result
    dtype = first.dtype if dtype is None else dtype
    # Also outside of operations: comparisons are none.
    if any(type(each) is MetaArray for each in arrays):
        return meta_tensor_memory(shape, dtype)
    out = memory.empty(shape, dtype)
    if type(out) is MetaArray:
        return out
    least = _MIN_SHARED if ufunc in kernels.ARITHMETIC else _MIN_THREADED
    if out.size >= least and type(ufunc) is _UFUNC:
        kernels.elementwise(ufunc, out, *arrays)
    else:
        ufunc(*arrays, out=out)
    return out


def are_large(a: Array, b: Array) -> bool:
    """Return whether work on arrays broadcast to one shape is worth several pieces."""
    return kernels.is_large(a.size * b.size) and kernels.is_large(np.broadcast(a, b).size)


def rounded_once(function: Callable[..., Any], dtype: np.dtype[Any], *arrays: Array) -> Array:
    """Return what ``function(*arrays, out)`` writes in float32 as `dtype`, which has 2 bytes."""
    out = memory.empty(np.broadcast_shapes(*[each.shape for each in arrays]), dtype)
    kernels.elementwise_flat(function, out, *arrays)
    return out


def converted(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return `array` as `dtype`; itself if it has that dtype."""
    if array.dtype == dtype:
        return array
    out = memory.empty(array.shape, dtype)
    kernels.convert(array, out)
    return out


def conj(tensor: "Tensor") -> "Tensor":
    """Return the complex conjugate; a real tensor or array itself."""
    if numpy_dtype(tensor).kind != "c":
        return tensor
    result = tensor.conj_physical()
    if tensor._is_wrapped_number:
        result._is_wrapped_number = True
    return result


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return float32 for float16 and bfloat16, else `dtype`."""
    return np.dtype(np.float32) if kernels.is_half(dtype) else dtype


def wide(array: Array) -> Array:
    """Return an array of 2-byte floats as float32; any other itself."""
    return converted(array, wide_dtype(array.dtype))


class Broadcasting(Op):
    """An operation on arrays of broadcastable shapes, which it converts to one dtype.

    Subclasses save the arrays as they came: the user's tensors, not converted copies.
    """

    is_recomputable = True

    # The shapes of the operands if they differ.
    shapes: tuple[tuple[int, ...], ...] | None = None
    # The dtypes of the operands if one differs from that of the result.
    dtypes: tuple[np.dtype[Any], ...] | None = None

    def operands(self, dtype: np.dtype[Any], *arrays: Array) -> tuple[Array, ...]:
        """Return the arrays as `dtype`; record their shapes and dtypes for `reduced`."""
        if len(arrays) == 2:
            a, b = arrays
            shape_a, shape_b = a.shape, b.shape
            if shape_a != shape_b:
                self.shapes = shape_a, shape_b
            if a.dtype is dtype and b.dtype is dtype:
                return arrays
        else:
            self.shapes = tuple([each.shape for each in arrays])
        for each in arrays:
            if each.dtype != dtype:
                self.dtypes = tuple([each.dtype for each in arrays])
                return tuple([converted(each, dtype) for each in arrays])
        return arrays

    def computed_alike(self, ufunc: Any, dtype: np.dtype[Any], a: Array, b: Array) -> Array:
        """Return ``ufunc(a, b)`` of both as `dtype`."""
        if (
            a.dtype is dtype
            and b.dtype is dtype
            and a.nbytes < _LARGE
            and (a.shape == b.shape or not b.ndim or (not a.ndim and b.nbytes < _LARGE))
            and type(ufunc) is _UFUNC
        ):  # `operands` and `compute` in short
            if a.shape != b.shape:
                self.shapes = a.shape, b.shape
            result: Array = ufunc(a, b, order="C")
            return result
        return compute(ufunc, *self.operands(dtype, a, b))

    def computed(self, ufunc: Any, dtype: np.dtype[Any], a: Array, b: Array) -> Array:
        """Return ``ufunc(a, b)`` as `dtype`.

        As in PyTorch, a number `b` is not rounded to float16 or bfloat16 first.
        """
        if b.size != 1 or b.dtype is dtype or not kernels.is_half(dtype):
            return self.computed_alike(ufunc, dtype, a, b)
        a, _ = self.operands(dtype, a, b)  # records the dtypes; the number stays as it is
        return rounded_once(ufunc, dtype, a, converted(b, np.dtype(np.float32)))

    def reduced(self, *grads: "Tensor | None") -> "tuple[Tensor | None, ...]":
        """Return the gradients summed over the broadcast dimensions, in the operands' dtypes."""
        shapes = self.shapes
        if self.dtypes is None and shapes is None:
            return grads
        if self._on_arrays:
            if self.dtypes is None and shapes is not None:
                return _summed_arrays(grads, shapes)
            grads = as_tensors(grads)
        summed = grads
        if shapes is not None:
            summed = tuple(
                [
                    None if grad is None else grad.sum_to_size(shape)
                    for grad, shape in zip(grads, shapes, strict=True)
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


def _summed_arrays(grads: tuple[Any, ...], shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
    """Return arrays summed to `shapes`, which broadcast to theirs."""
    pairs = zip(grads, shapes, strict=True)
    return tuple([None if grad is None else _summed_to(grad, shape) for grad, shape in pairs])


def _summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Return `x` summed to a shape that broadcasts to its own, as `sum_to_size` does."""
    if x.shape == shape:
        return x
    extra = x.ndim - len(shape)
    axes = [*range(extra)]
    axes += [
        extra + axis for axis, size in enumerate(shape) if size == 1 and x.shape[extra + axis] != 1
    ]
    kept = tuple([1 if axis in axes else size for axis, size in enumerate(x.shape)])
    out = np.empty(kept, x.dtype)
    kernels.sum_axes(x, tuple(axes), True, out)
    return out.reshape(shape)


def operands(where: str, a: TensorLike, b: TensorLike) -> "tuple[Tensor, Tensor, np.dtype[Any]]":
    """Return both as tensors, numbers in the dtype to compute in, and that dtype.

    Raises:
        TypeError: for operands that are neither tensors nor numbers.
        RuntimeError: if the shapes do not broadcast.
    """
    if isinstance(a, TensorBase) and isinstance(b, TensorBase):
        array_a, array_b = a._array, b._array
        dtype = array_a.dtype
        if dtype is not array_b.dtype and dtype != array_b.dtype:
            dtype = common_dtype(a, b)
        if array_a.shape != array_b.shape:
            try:
                broadcast_shape(array_a.shape, array_b.shape)
            except ValueError:
                raise not_broadcastable(where, a, b) from None
        return a, b, dtype
    if isinstance(a, TensorBase):
        number, dtype = _beside(a, b, where)
        return a, number, dtype
    if isinstance(b, TensorBase):
        number, dtype = _beside(b, a, where)
        return number, b, dtype
    for each in (a, b):
        check_operand(each, where)
    dtype = common_dtype(a, b)
    return as_tensor_of(a, dtype, where), as_tensor_of(b, dtype, where), dtype


def _beside(tensor: "Tensor", value: Any, where: str) -> "tuple[Tensor, np.dtype[Any]]":
    """Return a number as a tensor of the dtype that it and `tensor` are promoted to; that dtype."""
    dtype, kind = tensor._array.dtype, type(value)
    if (kind is float and dtype.kind == "f") or (kind is int and dtype.kind in "fi"):
        as_tensor = shared_number if tensor._array.nbytes < _LARGE else as_tensor_of
        return as_tensor(value, dtype, where), dtype
    dtype = common_dtype(tensor, check_operand(value, where))
    return as_tensor_of(value, dtype, where), dtype


def factors(where: str, a: TensorLike, b: TensorLike) -> "tuple[Tensor, Tensor, np.dtype[Any]]":
    """Return what `operands` returns; beside 2-byte floats a number `b` stays float32."""
    if (
        isinstance(a, TensorBase)
        and kernels.is_half(a._array.dtype)
        and not isinstance(b, TensorBase)
    ):
        dtype = common_dtype(a, check_operand(b, where))
        return a, as_tensor_of(b, wide_dtype(dtype), where), dtype
    return operands(where, a, b)


def floats(where: str, a: TensorLike, b: TensorLike) -> "tuple[Tensor, Tensor, np.dtype[Any]]":
    """Return what `operands` returns, with the default dtype and numbers of it for integers."""
    x, y, dtype = operands(where, a, b)
    if category(dtype) < 2:
        dtype = default_dtype()
        x = x if isinstance(a, TensorBase) else as_tensor_of(a, dtype, where)
        y = y if isinstance(b, TensorBase) else as_tensor_of(b, dtype, where)
    return x, y, dtype


def ordered_floats(
    where: str, a: TensorLike, b: TensorLike
) -> "tuple[Tensor, Tensor, np.dtype[Any]]":
    """Return what `floats` returns; raise NotImplementedError for complex numbers."""
    x, y, dtype = floats(where, a, b)
    check_ordered(x, where)
    check_ordered(y, where)
    return x, y, dtype


def no_bools(*operands: TensorLike) -> None:
    """Raise RuntimeError for bools, tensors or numbers, which have no difference."""
    for each in operands:
        if isinstance(each, bool) or (
            isinstance(each, TensorBase) and each._array.dtype == np.bool_
        ):
            dtypes = [getattr(each, "dtype", type(each)) for each in operands]
            given = "two bool tensors" if dtypes[0] == dtypes[1] else "a bool tensor"
            raise RuntimeError(
                f"Subtraction, the `-` operator, with {given} is not supported; convert to "
                "numbers, or use ^ or ~"
            )
