"""Divisors, shifts of bits, and the parts of floating point numbers."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.broadcasting import Broadcasting, compute, converted, operands
from offgrad.ops._core.dtypes import TensorLike, cast, category, check_tensor
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._core.results import result

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "bitwise_left_shift",
    "bitwise_right_shift",
    "frexp",
    "gcd",
    "gcd_",
    "lcm",
    "lcm_",
    "ldexp",
    "ldexp_",
    "nextafter",
]


def _of_integers(ufunc: Any, input: TensorLike, other: TensorLike, where: str) -> "Tensor":
    a, b, dtype = operands(where, input, other)
    if category(dtype) != 1:
        raise NotImplementedError(f"{where} is defined for integers, got {dtype.name}")
    return wrap(compute(ufunc, converted(a._array, dtype), converted(b._array, dtype)))


def gcd(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return the greatest common divisors of integers, not negative; that of 0 and 0 is 0."""
    return _of_integers(np.gcd, input, other, "gcd")


def lcm(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return the least common multiples of integers, not negative."""
    return _of_integers(np.lcm, input, other, "lcm")


def bitwise_left_shift(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input << other`` of integers; 0 for shifts by all bits and more."""
    return _of_integers(np.left_shift, input, other, "bitwise_left_shift")


def bitwise_right_shift(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input >> other`` of integers: numbers below 0 stay below 0."""
    return _of_integers(np.right_shift, input, other, "bitwise_right_shift")


def ldexp(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input * 2**other``."""
    a, b, _ = operands("ldexp", input, other)
    product: Tensor = a * 2.0**b
    dtype = a._array.dtype
    return cast(product, dtype) if category(dtype) == 2 and dtype.itemsize == 2 else product


@result("frexp")
class Parts(NamedTuple):
    """A mantissa from 1/2 to 1 (its absolute value), and an exponent."""

    mantissa: "Tensor"
    exponent: "Tensor"


class Frexp(Op):
    """The mantissa and the exponent to the base 2; keeps the exponent."""

    def forward(self, x: Array) -> tuple[Array, Array]:
        mantissa, exponent = np.frexp(x)
        self.save(result1=exponent)
        return np.asarray(mantissa), np.asarray(exponent, np.int32)

    def backward(self, grad: "Tensor | None", _: Any) -> Any:
        return None if grad is None else grad / self.saved("result1").to(grad.dtype).exp2()


def frexp(input: "Tensor") -> Parts:
    """Return mantissas and exponents: ``input = mantissa * 2**exponent``.

    Raises:
        RuntimeError: for other numbers than real floating point ones.
    """
    x = check_tensor(input, "frexp")
    if category(x._array.dtype) != 2:
        raise RuntimeError(f"frexp() needs a floating dtype, got a {describe(x)}")
    return Parts(*Frexp.apply_all(x))


class Nextafter(Broadcasting):
    """The numbers next to a in the direction of b; keeps where they differ from a."""

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        a, b = self.operands(dtype, a, b)
        self.save(differs=np.asarray(a != b))
        return compute(np.nextafter, a, b)

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient to a where b differs, as PyTorch does; that of b is 0."""
        need_a, need_b = self.needs_input_grad
        grad_a = grad * self.saved("differs") if need_a else None
        return self.reduced(grad_a, grad.new_zeros(grad.shape) if need_b else None)


def nextafter(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the floating point numbers next to `input` in the direction of `other`."""
    a, b, dtype = operands("nextafter", input, other)
    if category(dtype) != 2:
        raise NotImplementedError(
            f"nextafter is defined for floating point numbers, got {dtype.name}"
        )
    return Nextafter.apply(a, b, dtype=dtype)


gcd_ = inplace_form(gcd)
lcm_ = inplace_form(lcm)
ldexp_ = inplace_form(ldexp)
