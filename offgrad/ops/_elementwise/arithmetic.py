"""Arithmetic of two tensors, broadcasting as NumPy does, promoting types as PyTorch does."""

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import TensorBase, numpy_dtype, wrap
from offgrad.ops._core.broadcasting import (
    Broadcasting,
    are_large,
    compute,
    conj,
    factors,
    floats,
    no_bools,
    operands,
    rounded_once,
)
from offgrad.ops._core.direct import Direct, direct_result, fit_elementwise
from offgrad.ops._core.dtypes import (
    TensorLike,
    as_factor,
    category,
    from_old,
    not_implemented,
    number_of,
)
from offgrad.ops._core.inplace_forms import direct_ufuncs
from offgrad.ops._core.sparse_data import SparseRefusalError, of_sparse

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "floor_divide",
    "fmod",
    "remainder",
    "add",
    "div",
    "divide",
    "mul",
    "multiply",
    "rsub",
    "sub",
    "subtract",
    "true_divide",
]


class Add(Broadcasting):
    """a + alpha * b; keeps nothing."""

    backward_takes_arrays = True
    ufunc: ClassVar[Any] = np.add
    sign: ClassVar[int] = 1

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any], alpha: Any = 1) -> Array:
        self.alpha = alpha
        if alpha != 1:
            a, b = self.operands(dtype, a, b)
            if kernels.is_half(dtype):
                factor = np.float32(dtype.type(alpha))  # as in PyTorch
                return rounded_once(lambda a, b, out: self.ufunc(a, b * factor, out), dtype, a, b)
            if dtype.kind in "fc" and are_large(a, b):
                factor = self.sign * alpha
                return compute(lambda a, b, out: kernels.add_scaled(a, b, factor, out), a, b)
            return compute(self.ufunc, a, b * dtype.type(alpha))
        return self.computed_alike(self.ufunc, dtype, a, b)

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient to a, and the gradient times the factor to b."""
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
        result = super().forward(b, a, dtype, alpha)
        self.shapes = None if self.shapes is None else self.shapes[::-1]
        self.dtypes = None if self.dtypes is None else self.dtypes[::-1]
        return result

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient to b, and the gradient times the factor to a."""
        need_a, need_b = self.needs_input_grad
        return self.reduced(self.scaled(grad) if need_a else None, grad if need_b else None)


class Mul(Broadcasting):
    """a * b; keeps each factor whose partner needs a gradient."""

    backward_takes_arrays = True

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        need_a, need_b = self.needs_input_grad
        self.save(self=a if need_b else None, other=b if need_a else None)
        return self.computed(np.multiply, dtype, a, b)

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


def _truncating_division_on_threads(a: Array, b: Array, out: Array) -> None:
    kernels.elementwise(_truncating_division, out, a, b)


class Div(Broadcasting):
    """a / b; keeps b, and a if b needs a gradient. Rounded, it keeps nothing: gradient zero."""

    backward_takes_arrays = True

    def forward(
        self, a: Array, b: Array, dtype: np.dtype[Any], rounding_mode: str | None = None
    ) -> Array:
        self.rounding_mode = rounding_mode
        if rounding_mode is None:
            self.save(self=a if self.needs_input_grad[1] else None, other=b)
            return self.computed(np.true_divide, dtype, a, b)
        if rounding_mode == "trunc":
            return self.computed(_truncating_division_on_threads, dtype, a, b)
        is_large = are_large(a, b) and not kernels.is_half(dtype)
        floor_divide = kernels.floor_divide if is_large else np.floor_divide
        return self.computed(floor_divide, dtype, a, b)

    def backward(self, grad: "Tensor") -> Any:
        """d(a/b) = da / b - a / b^2 db."""
        need_a, need_b = self.needs_input_grad
        if self.rounding_mode is not None:
            zero: Any = memory.zeros(grad.shape, numpy_dtype(grad))
            zero = zero if self._on_arrays else wrap(zero)
            return self.reduced(zero if need_a else None, zero if need_b else None)
        other = conj(self.saved("other"))
        quotient = grad / other
        grad_b = -quotient * (conj(self.saved("self")) / other) if need_b else None
        return self.reduced(quotient if need_a else None, grad_b)


def _checked_alpha(alpha: Any, dtype: np.dtype[Any], where: str) -> Any:
    alpha = number_of(alpha, where)
    if category(dtype) < 2 and not isinstance(alpha, (int, np.integer)):
        raise RuntimeError(
            f"{where}: for {dtype.name} argument alpha must not be a floating point number, got "
            f"{alpha}"
        )
    if isinstance(alpha, bool) and category(dtype) > 0:
        raise RuntimeError(
            f"{where}: Boolean alpha only supported for Boolean results, not {dtype.name}"
        )
    if isinstance(alpha, complex) and category(dtype) != 3:
        raise RuntimeError(f"{where}: for {dtype.name} alpha must be real, got {alpha}")
    return as_factor(alpha, dtype, where)


_ADD, _SUB, _MUL, _DIV = (
    Direct(op, fit_elementwise, partial(ufunc, order="C"), takes_dtype=True)
    for op, ufunc in ((Add, np.add), (Sub, np.subtract), (Mul, np.multiply), (Div, np.divide))
)


def add(input: TensorLike, other: TensorLike, *old: Any, alpha: Any = 1) -> "Tensor":
    """Return ``input + alpha * other``; PyTorch's old ``add(input, alpha, other)`` warns."""
    if old:
        input, other, alpha = from_old("add", 2, ("alpha",), input, other, *old)
    is_plain = type(alpha) is int and alpha == 1
    if is_plain and (result := direct_result(_ADD, input, other)) is not None:
        return result
    a, b, dtype = operands("add", input, other)
    if not is_plain:
        alpha = _checked_alpha(alpha, dtype, "add")
    try:
        return Add.apply(a, b, dtype=dtype, alpha=alpha)
    except SparseRefusalError:
        return of_sparse("add", (input, other), {"alpha": alpha})


def sub(input: TensorLike, other: TensorLike, *old: Any, alpha: Any = 1) -> "Tensor":
    """Return ``input - alpha * other``; PyTorch's old ``sub(input, alpha, other)`` warns.

    Raises:
        RuntimeError: for bools.
    """
    if old:
        input, other, alpha = from_old("sub", 2, ("alpha",), input, other, *old)
    is_plain = type(alpha) is int and alpha == 1
    if is_plain and (result := direct_result(_SUB, input, other)) is not None:
        return result
    if not isinstance(input, TensorBase) and isinstance(other, TensorBase) and alpha == 1:
        return rsub(other, input)
    no_bools(input, other)
    a, b, dtype = operands("sub", input, other)
    if not is_plain:
        alpha = _checked_alpha(alpha, dtype, "sub")
    try:
        return Sub.apply(a, b, dtype=dtype, alpha=alpha)
    except SparseRefusalError:
        return of_sparse("sub", (input, other), {"alpha": alpha})


def rsub(input: "Tensor", other: TensorLike, *, alpha: Any = 1) -> "Tensor":
    """Return ``other - alpha * input``.

    Raises:
        RuntimeError: for bools.
    """
    no_bools(input, other)
    a, b, dtype = operands("rsub", input, other)
    if type(alpha) is not int or alpha != 1:
        alpha = _checked_alpha(alpha, dtype, "rsub")
    number = 0 if isinstance(other, TensorBase) else 1
    return Rsub.named(f"RsubBackward{number}").apply(a, b, dtype=dtype, alpha=alpha)


def mul(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input * other``."""
    if not isinstance(input, TensorBase):
        input, other = other, input  # as PyTorch: `factors` leaves the second one exact
    if (result := direct_result(_MUL, input, other)) is not None:
        return result
    a, b, dtype = factors("mul", input, other)
    return Mul.apply(a, b, dtype=dtype)


def div(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = None) -> "Tensor":
    """Return ``input / other``.

    With `rounding_mode` ``"floor"`` the quotient is rounded down, with ``"trunc"`` towards zero, in
    the common dtype; its gradient is zero then.
    """
    if rounding_mode is not None:
        return rounded_div(input, other, rounding_mode)
    if not isinstance(input, TensorBase) and isinstance(other, TensorBase):
        return mul(other.reciprocal(), input)  # as PyTorch, to the last bit
    if (result := direct_result(_DIV, input, other)) is not None:
        return result
    a, b, dtype = factors("div", input, other)
    if category(dtype) < 2:
        a, b, dtype = floats("div", input, other)
    return Div.apply(a, b, dtype=dtype)


subtract, multiply, divide, true_divide = sub, mul, div, div

direct_ufuncs.update({add: np.add, sub: np.subtract, mul: np.multiply, div: np.divide})


class Remainder(Broadcasting):
    """a - b * q, where q is a / b rounded; keeps both if b needs a gradient."""

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any], rounding_mode: str) -> Array:
        self.rounding_mode = rounding_mode
        if self.needs_input_grad[1]:
            self.save(self=a, other=b)
        a, b = self.operands(dtype, a, b)
        is_large = are_large(a, b)
        if rounding_mode == "floor":
            has_signed_zeros = dtype.kind not in "iu"
            return compute(
                kernels.remainder if is_large or has_signed_zeros else np.remainder, a, b
            )
        return compute(kernels.fmod if is_large else np.fmod, a, b)

    def backward(self, grad: "Tensor") -> Any:
        """d(a mod b) = da - q db: the rounded quotient is constant between its steps."""
        need_a, need_b = self.needs_input_grad
        grad_b = None
        if need_b:
            a, b = self.saved("self"), self.saved("other")
            grad_b = -grad * rounded_div(a, b, self.rounding_mode)
        return self.reduced(grad if need_a else None, grad_b)


def _real_numbers(
    where: str, input: TensorLike, other: TensorLike
) -> "tuple[Tensor, Tensor, np.dtype[Any]]":
    """Return the operands and their dtype; raise for bools, complex numbers and integer zeros."""
    a, b, dtype = factors(where, input, other)
    if category(dtype) in (0, 3):
        raise not_implemented(where, dtype, "convert the operands")
    if category(dtype) == 1 and a._array.size and not b._array.all():
        raise RuntimeError(
            f"{where}: ZeroDivisionError: an integer was divided by zero; mask the zeros or use "
            "floats"
        )
    return a, b, dtype


def rounded_div(input: TensorLike, other: TensorLike, rounding_mode: str) -> "Tensor":
    """Return the rounded quotient, in the common dtype; its gradient is zero."""
    if rounding_mode not in ("floor", "trunc"):
        raise RuntimeError(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
            f"{rounding_mode!r}"
        )
    a, b, dtype = _real_numbers("div", input, other)
    return Div.named("DivBackward2").apply(a, b, dtype=dtype, rounding_mode=rounding_mode)


def floor_divide(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``floor(input / other)`` in their common dtype; its gradient is zero."""
    a, b, dtype = _real_numbers("floor_divide", input, other)
    return Div.named("DivBackward2").apply(a, b, dtype=dtype, rounding_mode="floor")


def remainder(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input - other * floor(input / other)``: the remainder with the sign of `other`."""
    return _remainder("remainder", input, other, "floor")


def fmod(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input - other * trunc(input / other)``: the remainder with the sign of `input`."""
    return _remainder("fmod", input, other, "trunc")


def _remainder(where: str, input: TensorLike, other: TensorLike, rounding_mode: str) -> "Tensor":
    a, b, dtype = _real_numbers(where, input, other)
    name = f"{where.capitalize()}Backward{1 if isinstance(other, TensorBase) else 0}"
    return Remainder.named(name).apply(a, b, dtype=dtype, rounding_mode=rounding_mode)
