"""Arithmetic of two tensors, broadcasting as NumPy does, promoting types as PyTorch does."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.ops.convert import (
    TensorLike,
    as_tensor_of,
    category,
    check_broadcastable,
    check_ordered,
    check_tensor,
    get_default_dtype,
    promote,
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


def conj(tensor: "Tensor") -> "Tensor":
    """Return the complex conjugate; a real tensor is its own."""
    if tensor._array.dtype.kind != "c":
        return tensor
    from offgrad.ops.complex import conj_physical

    return conj_physical(tensor)


class _Broadcasting(Op):
    """An operation on two arrays of broadcastable shapes."""

    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    def reduced(self, grad_a: "Tensor | None", grad_b: "Tensor | None") -> Any:
        """Return the gradients summed over the broadcast dimensions."""
        return (
            None if grad_a is None else sum_to_size(grad_a, self.shapes[0]),
            None if grad_b is None else sum_to_size(grad_b, self.shapes[1]),
        )


class Add(_Broadcasting):
    """a + alpha * b; keeps nothing."""

    ufunc: ClassVar[Any] = np.add
    sign: ClassVar[int] = 1

    def forward(self, a: Array, b: Array, alpha: Any = 1) -> Array:
        """Return the sum."""
        self.shapes = a.shape, b.shape
        self.alpha = alpha
        if alpha != 1:
            b = b * b.dtype.type(alpha)
        return compute(self.ufunc, a, b)

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient to a, and times the factor to b."""
        need_a, need_b = self.needs_input_grad
        factor = self.sign * self.alpha
        grad_b = grad if factor == 1 else grad * factor
        return self.reduced(grad if need_a else None, grad_b if need_b else None)


class Sub(Add):
    """a - alpha * b; keeps nothing."""

    ufunc = np.subtract
    sign = -1


class Mul(_Broadcasting):
    """a * b; keeps each factor whose partner needs a gradient."""

    def forward(self, a: Array, b: Array) -> Array:
        """Return the product."""
        self.shapes = a.shape, b.shape
        need_a, need_b = self.needs_input_grad
        self.save(self=a if need_b else None, other=b if need_a else None)
        return compute(np.multiply, a, b)

    def backward(self, grad: "Tensor") -> Any:
        """d(ab) = b da + a db."""
        need_a, need_b = self.needs_input_grad
        grad_b = grad * conj(self.saved("self")) if need_b else None
        grad_a = grad * conj(self.saved("other")) if need_a else None
        return self.reduced(grad_a, grad_b)


class Div(_Broadcasting):
    """a / b; keeps b, and a where b needs a gradient."""

    def forward(self, a: Array, b: Array) -> Array:
        """Return the quotient."""
        self.shapes = a.shape, b.shape
        self.save(self=a if self.needs_input_grad[1] else None, other=b)
        return compute(np.true_divide, a, b)

    def backward(self, grad: "Tensor") -> Any:
        """d(a/b) = da / b - a / b^2 db."""
        need_a, need_b = self.needs_input_grad
        dividend = conj(self.saved("self")) if need_b else None
        other = conj(self.saved("other"))
        quotient = grad / other
        return self.reduced(
            quotient if need_a else None,
            None if dividend is None else -quotient * (dividend / other),
        )


class Pow(_Broadcasting):
    """a ** b for tensors; keeps a, b, and the result where b needs a gradient."""

    def forward(self, a: Array, b: Array) -> Array:
        """Return the power."""
        self.shapes = a.shape, b.shape
        result = compute(np.power, a, b)
        self.save(self=a, exponent=b, result=result if self.needs_input_grad[1] else None)
        return result

    def backward(self, grad: "Tensor") -> Any:
        """d(a^b) = b a^(b-1) da + a^b log(a) db; 0 where b is 0, and where a is 0 and b > 0."""
        from offgrad.ops.compare import where
        from offgrad.ops.math import log

        need_a, need_b = self.needs_input_grad
        base, exponent = self.saved("self"), self.saved("exponent")
        grad_a = grad_b = None
        if need_a:
            slope = exponent * base ** (exponent - 1)
            grad_a = grad * conj(where(exponent == 0, slope.new_zeros(()), slope))
        if need_b:
            at_zero = (base == 0) & (exponent.real >= 0)
            grad_b = grad * conj(
                where(at_zero, base.new_zeros(()), self.saved("result") * log(base))
            )
        return self.reduced(grad_a, grad_b)


class PowScalar(Op):
    """x ** exponent for a number; keeps x unless the exponent is 0."""

    def name(self) -> str:
        """Return PyTorch's name."""
        return "PowBackward0"

    def forward(self, x: Array, exponent: Any) -> Array:
        """Return the power."""
        self.exponent = exponent
        self.save(self=None if exponent == 0 else x)
        if exponent == 2:
            return compute(np.multiply, x, x)
        if exponent == 0.5:
            return compute(np.sqrt, x)
        return compute(np.power, x, np.asarray(exponent, x.dtype))

    def backward(self, grad: "Tensor") -> Any:
        """d(x^n) = n x^(n-1) dx."""
        if self.exponent == 0:
            return grad.new_zeros(grad.shape)
        x = self.saved("self")
        slope = (
            x * self.exponent if self.exponent == 2 else x ** (self.exponent - 1) * self.exponent
        )
        return grad * conj(slope)


class Extremum(_Broadcasting):
    """The larger or smaller of two; keeps both. Where they are equal each gets half the
    gradient.
    """

    def name(self) -> str:
        """Return PyTorch's name."""
        return f"{self.ufunc.__name__.capitalize()}Backward0"

    def forward(self, a: Array, b: Array, ufunc: Any) -> Array:
        """Return the elementwise extremum."""
        self.shapes = a.shape, b.shape
        self.ufunc = ufunc
        self.save(self=a, other=b)
        return compute(ufunc, a, b)

    def backward(self, grad: "Tensor") -> Any:
        """Give the gradient to the winner."""
        a, b = self.saved("self"), self.saved("other")
        better = a > b if self.ufunc is np.maximum else a < b
        share = better.to(grad.dtype) + (a == b).to(grad.dtype) * 0.5
        need_a, need_b = self.needs_input_grad
        return self.reduced(
            grad * share if need_a else None, grad * (1 - share) if need_b else None
        )


def _operands(a: TensorLike, b: TensorLike, where: str) -> "tuple[Tensor, Tensor]":
    x, y = promote(a, b, where)
    if x._array.shape != y._array.shape:
        check_broadcastable(where, x, y)
    return x, y


def _no_bools(where: str, *operands: TensorLike) -> None:
    for each in operands:
        if isinstance(each, bool) or getattr(each, "dtype", None) == np.bool_:
            raise RuntimeError(f"{where} is not defined for bools; convert them, or use ^ or ~")


def _real_numbers(where: str, dtype: np.dtype[Any], *, bools: bool = False) -> None:
    if category(dtype) == 3 or (category(dtype) == 0 and not bools):
        raise RuntimeError(f"{where} is not defined for {dtype.name}; convert the operands")


def _check_alpha(alpha: Any, dtype: np.dtype[Any], where: str) -> None:
    if category(dtype) < 2 and not isinstance(alpha, int | np.integer):
        raise RuntimeError(f"{where}: for {dtype.name} alpha must be an integer, got {alpha}")


def add(input: TensorLike, other: TensorLike, *, alpha: Any = 1) -> "Tensor":
    """Return ``input + alpha * other``."""
    a, b = _operands(input, other, "add")
    _check_alpha(alpha, a._array.dtype, "add")
    return Add.apply(a, b, alpha=alpha)


def sub(input: TensorLike, other: TensorLike, *, alpha: Any = 1) -> "Tensor":
    """Return ``input - alpha * other``.

    Raises:
        RuntimeError: for bools.
    """
    _no_bools("sub", input, other)
    a, b = _operands(input, other, "sub")
    _check_alpha(alpha, a._array.dtype, "sub")
    return Sub.apply(a, b, alpha=alpha)


def mul(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input * other``."""
    return Mul.apply(*_operands(input, other, "mul"))


def div(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = None) -> "Tensor":
    """Return ``input / other``, true division unless `rounding_mode` is ``"floor"`` or
    ``"trunc"``.
    """
    from offgrad.ops.math import trunc

    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode == "trunc":
        quotient = div(input, other)
        return trunc(quotient).to(result_type(input, other))
    if rounding_mode is not None:
        raise RuntimeError(
            f"div: rounding_mode must be None, 'trunc' or 'floor', got {rounding_mode!r}"
        )
    dtype = result_type(input, other)
    if category(dtype) < 2:
        dtype = get_default_dtype()
    a, b = as_tensor_of(input, dtype, "div"), as_tensor_of(other, dtype, "div")
    check_broadcastable("div", a, b)
    return Div.apply(a, b)


def floor_divide(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``floor(input / other)`` in their common dtype; its gradient is zero."""
    from offgrad.ops.math import floor

    dtype = result_type(input, other)
    _real_numbers("floor_divide", dtype)
    if category(dtype) == 2:
        return floor(div(input, other))
    a, b = _operands(input, other, "floor_divide")
    if not b._array.all():
        raise RuntimeError(
            "floor_divide: an integer was divided by zero; mask the zeros or use floats"
        )
    return IntegerDivide.apply(a, b, ufunc=np.floor_divide)


def remainder(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input - other * floor(input / other)``: the remainder with the sign of `other`."""
    a, b = _operands(input, other, "remainder")
    _real_numbers("remainder", a._array.dtype)
    if category(a._array.dtype) < 2:
        if not b._array.all():
            raise RuntimeError(
                "remainder: an integer was divided by zero; mask the zeros or use floats"
            )
        return IntegerDivide.apply(a, b, ufunc=np.remainder)
    return a - b * floor_divide(a, b)


class IntegerDivide(_Broadcasting):
    """Quotient or remainder of integers; not differentiable."""

    def forward(self, a: Array, b: Array, ufunc: Any) -> Array:
        """Return the result."""
        self.shapes = a.shape, b.shape
        return compute(ufunc, a, b)


def pow(input: TensorLike, exponent: TensorLike) -> "Tensor":
    """Return ``input ** exponent``; one of them may be a number.

    Raises:
        RuntimeError: for integers to the power of a negative number.
    """
    if isinstance(exponent, TensorBase):
        a, b = _operands(input, exponent, "pow")
        if category(a._array.dtype) < 2:
            return wrap(_integer_power(a._array, b._array))
        return Pow.apply(a, b)
    base = check_tensor(input, "pow")
    dtype = result_type(base, exponent)
    if category(dtype) == 1 and exponent < 0:  # type: ignore[operator]
        raise RuntimeError(
            f"pow: integers to a negative power are not integers, got {dtype.name} ** {exponent}; "
            "convert to float"
        )
    if dtype == np.bool_:
        return wrap(_integer_power(base._array, np.asarray(exponent)))
    return PowScalar.apply(as_tensor_of(base, dtype, "pow"), exponent=exponent)


def _integer_power(base: Array, exponent: Array) -> Array:
    """Return a power of integers or bools; to a negative exponent only 1 and -1 are not 0."""
    if base.dtype == np.bool_:
        return np.asarray(base | ~exponent.astype(np.bool_))
    magnitude = np.power(base, np.abs(exponent))
    return np.asarray(np.where((exponent >= 0) | (np.abs(base) == 1), magnitude, 0)).astype(
        base.dtype
    )


def maximum(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the elementwise larger of two tensors; NaN if either is."""
    a, b = _operands(input, other, "maximum")
    check_ordered(a, "maximum")
    return Extremum.apply(a, b, ufunc=np.maximum)


def minimum(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the elementwise smaller of two tensors; NaN if either is."""
    a, b = _operands(input, other, "minimum")
    check_ordered(a, "minimum")
    return Extremum.apply(a, b, ufunc=np.minimum)
