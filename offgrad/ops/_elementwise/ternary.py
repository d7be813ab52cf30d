"""Operations on three tensors: interpolation, addition of products and quotients."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops._core.broadcasting import (
    Broadcasting,
    compute,
    conj,
    rounded_once,
)
from offgrad.ops._core.dtypes import (
    TensorLike,
    as_factor,
    category,
    check_broadcastable,
    check_tensor,
    common_dtype,
    from_old,
    number_of,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["addcdiv", "addcmul", "lerp"]


class Lerp(Broadcasting):
    """start + weight (end - start), the weight a number; keeps nothing."""

    def forward(self, start: Array, end: Array, weight: Any) -> Array:
        """Start from the nearer end: exact at both."""
        self.weight = weight
        start, end = self.operands(start.dtype, start, end)
        number_type = np.float32 if kernels.is_half(start.dtype) else start.dtype.type
        out = memory.empty(np.broadcast_shapes(start.shape, end.shape), start.dtype)
        kernels.lerp(start, end, number_type(weight), out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Split the gradient by the weight."""
        need_start, need_end = self.needs_input_grad
        weight = self.weight.conjugate() if isinstance(self.weight, complex) else self.weight
        return self.reduced(
            grad * (1 - weight) if need_start else None, grad * weight if need_end else None
        )


class LerpTensor(Broadcasting):
    """start + weight (end - start); keeps the weight, and the ends if it needs a gradient."""

    torch_name = "LerpBackward1"

    def forward(self, start: Array, end: Array, weight: Array) -> Array:
        need_start, need_end, need_weight = self.needs_input_grad
        self.save(
            weight=weight if need_start or need_end else None,
            self=start if need_weight else None,
            end=end if need_weight else None,
        )
        start, end, weight = self.operands(start.dtype, start, end, weight)
        out = memory.empty(np.broadcast_shapes(start.shape, end.shape, weight.shape), start.dtype)
        kernels.lerp(start, end, weight, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Split the gradient by the weight; the weight's is the gradient times the distance."""
        need_start, need_end, need_weight = self.needs_input_grad
        grad_start = grad_end = grad_weight = None
        if need_start or need_end:
            weight = conj(self.saved("weight"))
            grad_start, grad_end = grad * (1 - weight), grad * weight
        if need_weight:
            grad_weight = grad * conj(self.saved("end") - self.saved("self"))
        return self.reduced(
            grad_start if need_start else None, grad_end if need_end else None, grad_weight
        )


def _add_product(a: Array, b: Array, c: Array, out: Array, value: Any) -> None:
    kernels.add_product(a, b, c, value, out)


def _added(ufunc: np.ufunc, a: Array, b: Array, c: Array, value: Any) -> Array:
    """Return ``a + ufunc(value * b, c)``, in the order of PyTorch."""
    if not kernels.is_half(a.dtype):
        if ufunc is np.multiply and kernels.is_large(a.size):
            return compute(partial(_add_product, value=value), a, b, c)
        scaled = b if value == 1 else compute(np.multiply, b, np.asarray(a.dtype.type(value)))
        return compute(np.add, a, compute(ufunc, scaled, c))
    factor = np.float32(value)
    return rounded_once(lambda a, b, c, out: np.add(a, ufunc(b * factor, c), out), a.dtype, a, b, c)


def _scaled(tensor: "Tensor", factor: Any) -> "Tensor":
    return tensor if factor == 1 else tensor * factor


class AddProduct(Broadcasting):
    """a + value * b * c; keeps each of b and c if the other needs a gradient."""

    torch_name = "AddcmulBackward0"

    def forward(self, a: Array, b: Array, c: Array, dtype: np.dtype[Any], value: Any) -> Array:
        self.value = value
        _, need_b, need_c = self.needs_input_grad
        self.save(tensor1=b if need_c else None, tensor2=c if need_b else None)
        a, b, c = self.operands(dtype, a, b, c)
        return _added(np.multiply, a, b, c, value)

    def backward(self, grad: "Tensor") -> Any:
        """d(a + v b c) = da + v c db + v b dc."""
        need_a, need_b, need_c = self.needs_input_grad
        factor = self.value.conjugate()
        return self.reduced(
            grad if need_a else None,
            grad * _scaled(conj(self.saved("tensor2")), factor) if need_b else None,
            grad * _scaled(conj(self.saved("tensor1")), factor) if need_c else None,
        )


class AddQuotient(Broadcasting):
    """a + value * b / c; keeps c, and b if c needs a gradient."""

    torch_name = "AddcdivBackward0"

    def forward(self, a: Array, b: Array, c: Array, dtype: np.dtype[Any], value: Any) -> Array:
        self.value = value
        _, need_b, need_c = self.needs_input_grad
        self.save(tensor1=b if need_c else None, tensor2=c if need_b or need_c else None)
        a, b, c = self.operands(dtype, a, b, c)
        return _added(np.true_divide, a, b, c, value)

    def backward(self, grad: "Tensor") -> Any:
        """d(a + v b/c) = da + v/c db - v b/c^2 dc."""
        need_a, need_b, need_c = self.needs_input_grad
        grad_b = grad_c = None
        if need_b or need_c:
            divisor = conj(self.saved("tensor2"))
            grad_b = grad * (self.value.conjugate() / divisor)
            if need_c:
                grad_c = -grad_b * (conj(self.saved("tensor1")) / divisor)
        return self.reduced(grad if need_a else None, grad_b if need_b else None, grad_c)


def lerp(input: "Tensor", end: "Tensor", weight: TensorLike) -> "Tensor":
    """Return ``input + weight * (end - input)``, the weight a number or a tensor.

    Raises:
        RuntimeError: if the dtypes differ.
    """
    tensors = [check_tensor(input, "lerp"), check_tensor(end, "lerp")]
    if isinstance(weight, TensorBase):
        tensors.append(weight)
    dtype = tensors[0]._array.dtype
    if any(each._array.dtype != dtype for each in tensors):
        raise RuntimeError(
            "lerp needs tensors of one dtype, got "
            f"{', '.join(each._array.dtype.name for each in tensors)}; convert them"
        )
    if category(dtype) < 2:
        raise NotImplementedError(
            f"lerp is defined for floating point tensors, got {dtype.name}; convert them"
        )
    check_broadcastable("lerp", *tensors)
    if isinstance(weight, TensorBase):
        return LerpTensor.apply(*tensors)
    return Lerp.apply(*tensors, weight=weight)


def addcmul(
    input: "Tensor", tensor1: "Tensor", tensor2: "Tensor", *old: Any, value: Any = 1
) -> "Tensor":
    """Return ``input + value * tensor1 * tensor2``.

    PyTorch's old ``addcmul(input, value, tensor1, tensor2)`` warns.
    """
    if old:
        given = input, tensor1, tensor2, *old
        input, tensor1, tensor2, value = from_old("addcmul", 3, ("value",), *given)
    tensors = [check_tensor(each, "addcmul") for each in (input, tensor1, tensor2)]
    check_broadcastable("addcmul", *tensors)
    dtype = common_dtype(*tensors)
    value = as_factor(value, dtype, "addcmul")
    return AddProduct.apply(*tensors, dtype=dtype, value=value)


def addcdiv(
    input: "Tensor", tensor1: "Tensor", tensor2: "Tensor", *old: Any, value: Any = 1
) -> "Tensor":
    """Return ``input + value * tensor1 / tensor2``.

    PyTorch's old ``addcdiv(input, value, tensor1, tensor2)`` warns.

    Raises:
        RuntimeError: if both `tensor1` and `tensor2` are integers.
    """
    if old:
        given = input, tensor1, tensor2, *old
        input, tensor1, tensor2, value = from_old("addcdiv", 3, ("value",), *given)
    tensors = [check_tensor(each, "addcdiv") for each in (input, tensor1, tensor2)]
    if all(category(each._array.dtype) < 2 for each in tensors[1:]):
        raise RuntimeError("addcdiv divides floating point tensors, got integers; convert one")
    check_broadcastable("addcdiv", *tensors)
    value = number_of(value, "addcdiv")
    return AddQuotient.apply(*tensors, dtype=common_dtype(*tensors), value=value)
