"""Rounded quotients and remainders of division."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops.arithmetic import Broadcasting, Div, compute, operands
from offgrad.ops.convert import TensorLike, category

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


class Remainder(Broadcasting):
    """a - b * q, where q is a / b rounded; keeps both where b needs a gradient."""

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any], rounding_mode: str) -> Array:
        """Return the remainder."""
        self.rounding_mode = rounding_mode
        if self.needs_input_grad[1]:
            self.save(self=a, other=b)
        ufunc = np.remainder if rounding_mode == "floor" else np.fmod
        return compute(ufunc, *self.operands(dtype, a, b))

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
    a, b, dtype = operands(where, input, other)
    if category(dtype) in (0, 3):
        raise NotImplementedError(f"{where} is not defined for {dtype.name}; convert the operands")
    if category(dtype) == 1 and not b._array.all():
        raise RuntimeError(f"{where}: an integer was divided by zero; mask the zeros or use floats")
    return a, b, dtype


def rounded_div(input: TensorLike, other: TensorLike, rounding_mode: str) -> "Tensor":
    """Return the quotient rounded, in the common dtype; its gradient is zero."""
    if rounding_mode not in ("floor", "trunc"):
        raise RuntimeError(
            f"div: rounding_mode must be None, 'trunc' or 'floor', got {rounding_mode!r}"
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
