"""Arithmetic of two tensors, broadcasting as NumPy does, promoting types as PyTorch does."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops.convert import (
    TensorLike,
    as_tensor_of,
    cast,
    category,
    check_broadcastable,
    get_default_dtype,
    result_type,
)
from offgrad.ops.reduce import sum_to_size

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


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
    """Return `array` as `dtype`, itself if it is."""
    if array.dtype == dtype:
        return array
    out = memory.empty(array.shape, dtype)
    np.copyto(out, array, casting="unsafe")
    return out


def conj(tensor: "Tensor") -> "Tensor":
    """Return the complex conjugate; a real tensor is its own."""
    if tensor._array.dtype.kind != "c":
        return tensor
    from offgrad.ops.complex_numbers import conj_physical

    return conj_physical(tensor)


class Broadcasting(Op):
    """An operation on arrays of broadcastable shapes, which it converts to one dtype.

    What is saved are the arrays as they came: tensors of the user's, not converted copies.
    """

    is_cheap = True

    shapes: tuple[tuple[int, ...], ...]
    # The dtypes of the operands, where one differs from that of the result.
    dtypes: tuple[np.dtype[Any], ...] | None = None

    def operands(self, dtype: np.dtype[Any], *arrays: Array) -> tuple[Array, ...]:
        """Return the arrays as `dtype`; remember what they were."""
        self.shapes = tuple([each.shape for each in arrays])
        for each in arrays:
            if each.dtype != dtype:
                self.dtypes = tuple([each.dtype for each in arrays])
                return tuple([converted(each, dtype) for each in arrays])
        return arrays

    def reduced(self, *grads: "Tensor | None") -> "tuple[Tensor | None, ...]":
        """Return the gradients summed over the broadcast dimensions, in the operands' dtypes."""
        found = tuple(
            [
                None if grad is None else sum_to_size(grad, shape)
                for grad, shape in zip(grads, self.shapes, strict=True)
            ]
        )
        if self.dtypes is None:
            return found
        return tuple(
            [
                None if grad is None else cast(grad, dtype)
                for grad, dtype in zip(found, self.dtypes, strict=True)
            ]
        )


class Add(Broadcasting):
    """a + alpha * b; keeps nothing."""

    ufunc: ClassVar[Any] = np.add
    sign: ClassVar[int] = 1

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any], alpha: Any = 1) -> Array:
        """Return the sum."""
        a, b = self.operands(dtype, a, b)
        self.alpha = alpha
        if alpha != 1:
            b = b * dtype.type(alpha)
        return compute(self.ufunc, a, b)

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient to a, and times the factor to b."""
        need_a, need_b = self.needs_input_grad
        return self.reduced(grad if need_a else None, self.scaled(grad) if need_b else None)

    def scaled(self, grad: "Tensor") -> "Tensor":
        """Return the gradient times the factor of b."""
        factor = self.sign * self.alpha
        if isinstance(factor, complex):
            factor = factor.conjugate()
        return grad if factor == 1 else grad * factor


class Sub(Add):
    """a - alpha * b; keeps nothing."""

    ufunc = np.subtract
    sign = -1


class Rsub(Sub):
    """b - alpha * a; keeps nothing."""

    def forward(  # type: ignore[override]
        self, a: Array, b: Array, dtype: np.dtype[Any], alpha: Any
    ) -> Array:
        """Return the difference."""
        result = super().forward(b, a, dtype, alpha)
        self.shapes = self.shapes[::-1]
        self.dtypes = None if self.dtypes is None else self.dtypes[::-1]
        return result

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient to b, and times the factor to a."""
        need_a, need_b = self.needs_input_grad
        return self.reduced(self.scaled(grad) if need_a else None, grad if need_b else None)


class Mul(Broadcasting):
    """a * b; keeps each factor whose partner needs a gradient."""

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        """Return the product."""
        need_a, need_b = self.needs_input_grad
        self.save(self=a if need_b else None, other=b if need_a else None)
        return compute(np.multiply, *self.operands(dtype, a, b))

    def backward(self, grad: "Tensor") -> Any:
        """d(ab) = b da + a db."""
        need_a, need_b = self.needs_input_grad
        grad_b = grad * conj(self.saved("self")) if need_b else None
        grad_a = grad * conj(self.saved("other")) if need_a else None
        return self.reduced(grad_a, grad_b)


def _truncating_division(a: Array, b: Array, out: Array) -> None:
    if a.dtype.kind in "iu":
        # Exact for integers of any size, unlike the quotient of floats.
        np.floor_divide(a, b, out=out)
        np.add(out, 1, out=out, where=(out < 0) & (out * b != a), casting="unsafe")
    else:
        np.true_divide(a, b, out=out)
        np.trunc(out, out=out)


class Div(Broadcasting):
    """a / b; keeps b, and a where b needs a gradient. Rounded it keeps nothing: gradient zero."""

    def forward(
        self, a: Array, b: Array, dtype: np.dtype[Any], rounding_mode: str | None = None
    ) -> Array:
        """Return the quotient."""
        self.rounding_mode = rounding_mode
        if rounding_mode is None:
            self.save(self=a if self.needs_input_grad[1] else None, other=b)
            return compute(np.true_divide, *self.operands(dtype, a, b))
        ufunc = np.floor_divide if rounding_mode == "floor" else _truncating_division
        return compute(ufunc, *self.operands(dtype, a, b))

    def backward(self, grad: "Tensor") -> Any:
        """d(a/b) = da / b - a / b^2 db."""
        need_a, need_b = self.needs_input_grad
        if self.rounding_mode is not None:
            zero = grad.new_zeros(grad.shape)
            return self.reduced(zero if need_a else None, zero if need_b else None)
        other = conj(self.saved("other"))
        quotient = grad / other
        grad_b = -quotient * (conj(self.saved("self")) / other) if need_b else None
        return self.reduced(quotient if need_a else None, grad_b)


def operands(where: str, a: TensorLike, b: TensorLike) -> "tuple[Tensor, Tensor, np.dtype[Any]]":
    """Return both as tensors, numbers in the dtype to compute in, and that dtype.

    Raises:
        TypeError: for what is neither tensor nor number.
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
        if not isinstance(each, TensorBase | bool | int | float | complex | np.generic):
            raise TypeError(
                f"{where} takes tensors and numbers, got {type(each).__name__}; convert it with "
                "offgrad.tensor()"
            )
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


def _check_alpha(alpha: Any, dtype: np.dtype[Any], where: str) -> None:
    if category(dtype) < 2 and not isinstance(alpha, int | np.integer):
        raise RuntimeError(f"{where}: for {dtype.name} alpha must be an integer, got {alpha}")
    if isinstance(alpha, complex) and category(dtype) != 3:
        raise RuntimeError(f"{where}: for {dtype.name} alpha must be real, got {alpha}")


def add(input: TensorLike, other: TensorLike, *, alpha: Any = 1) -> "Tensor":
    """Return ``input + alpha * other``."""
    a, b, dtype = operands("add", input, other)
    if alpha != 1:
        _check_alpha(alpha, dtype, "add")
    return Add.apply(a, b, dtype=dtype, alpha=alpha)


def sub(input: TensorLike, other: TensorLike, *, alpha: Any = 1) -> "Tensor":
    """Return ``input - alpha * other``.

    Raises:
        RuntimeError: for bools.
    """
    if not isinstance(input, TensorBase) and isinstance(other, TensorBase) and alpha == 1:
        return rsub(other, input)
    no_bools("sub", input, other)
    a, b, dtype = operands("sub", input, other)
    if alpha != 1:
        _check_alpha(alpha, dtype, "sub")
    return Sub.apply(a, b, dtype=dtype, alpha=alpha)


def rsub(input: "Tensor", other: TensorLike, *, alpha: Any = 1) -> "Tensor":
    """Return ``other - alpha * input``.

    Raises:
        RuntimeError: for bools.
    """
    no_bools("rsub", input, other)
    a, b, dtype = operands("rsub", input, other)
    if alpha != 1:
        _check_alpha(alpha, dtype, "rsub")
    number = 0 if isinstance(other, TensorBase) else 1
    return Rsub.named(f"RsubBackward{number}").apply(a, b, dtype=dtype, alpha=alpha)


def mul(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input * other``."""
    a, b, dtype = operands("mul", input, other)
    return Mul.apply(a, b, dtype=dtype)


def div(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = None) -> "Tensor":
    """Return ``input / other``: true division, or the quotient rounded down (`rounding_mode`
    ``"floor"``) or towards zero (``"trunc"``) in the common dtype, whose gradient is zero.
    """
    if rounding_mode is not None:
        from offgrad.ops.division import rounded_div

        return rounded_div(input, other, rounding_mode)
    if not isinstance(input, TensorBase) and isinstance(other, TensorBase):
        from offgrad.ops.math import reciprocal

        return mul(reciprocal(other), input)  # as PyTorch, to the last bit
    a, b, dtype = operands("div", input, other)
    if category(dtype) < 2:
        dtype = get_default_dtype()
    return Div.apply(a, b, dtype=dtype)


subtract, multiply, divide, true_divide = sub, mul, div, div
