"""Powers of tensors and numbers."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels
from offgrad.autograd import grad_mode
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, numpy_dtype, wrap
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.broadcasting import (
    Broadcasting,
    are_large,
    compute,
    conj,
    converted,
    operands,
)
from offgrad.ops._core.dtypes import (
    TensorLike,
    as_factor,
    as_tensor_of,
    cast,
    cast_gradient,
    category,
    check_tensor,
    common_dtype,
)
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._elementwise.comparison import compare

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "float_power",
    "float_power_",
    "pow",
    "square",
    "square_",
]


_BITS: dict[Any, Any] = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}


def _power(a: Array, b: Array) -> Array:
    """Return ``a ** b``."""
    if not are_large(a, b):
        return compute(np.power, a, b)
    return compute(_power_of_many, a, b)


def _power_of_many(a: Array, b: Array, out: Array) -> None:
    if out.dtype in _BITS:
        kernels.elementwise_flat(_power_of_floats, out, a, b)
    else:
        kernels.elementwise(np.power, out, a, b)


def _power_of_floats(a: Array, b: Array, out: Array) -> None:
    """NumPy's power is slow for negative bases: |a|^b, then signs and NaN as C defines them."""
    if a.min() >= 0:
        np.power(a, b, out=out)
        return
    integers = _BITS[out.dtype]
    np.power(np.abs(a, out=kernels.scratch(0, a.size, a.dtype)), b, out=out)
    half = np.multiply(b, 0.5, out=kernels.scratch(0, b.size, b.dtype))
    rounded = kernels.scratch(1, b.size, b.dtype)
    is_odd = np.rint(half, out=rounded) != half
    is_integer = np.rint(b, out=rounded) == b
    is_odd &= is_integer
    is_odd &= np.signbit(a)
    bits = out.view(integers)
    np.bitwise_xor(bits, is_odd * np.iinfo(integers).min, out=bits)
    undefined = ~is_integer
    undefined &= (a < 0) & (a > -np.inf)
    if undefined.any():
        np.bitwise_or(bits, undefined * np.asarray(np.nan, out.dtype).view(integers), out=bits)


def _cube(x: Array, out: Array) -> None:
    np.multiply(x, x, out=out)
    np.multiply(out, x, out=out)


def _inverse_square(x: Array, out: Array) -> None:
    np.multiply(x, x, out=out)
    np.reciprocal(out, out=out)


def _inverse_root(x: Array, out: Array) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


# Exponents of which PyTorch, too, computes powers by these operations.
_STEPS: dict[Any, Any] = {
    0: lambda x, out: out.fill(1),
    1: np.positive,
    2: np.square,
    0.5: np.sqrt,
    3: _cube,
    -1: np.reciprocal,
    -2: _inverse_square,
    -0.5: _inverse_root,
}


def _in_steps(steps: Any, x: Array, out: Array) -> None:
    kernels.elementwise(steps, out, x)


def _times_slope(grad: Array, x: Array, out: Array, exponent: Any) -> None:
    """Write grad n x^(n-1) into `out`, in one pass over the memory."""
    steps = _STEPS[exponent - 1]

    def write(grad: Array, x: Array, out: Array) -> None:
        steps(x, out)
        np.multiply(out, exponent, out=out)
        np.multiply(grad, out, out=out)

    with np.errstate(all="ignore"):
        kernels.elementwise(write, out, grad, x)


class Pow(Broadcasting):
    """a ** b for tensors; keeps a, b, and the result if b needs a gradient."""

    suffix = "Backward1"

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        result = _power(*self.operands(dtype, a, b))
        self.save(self=a, exponent=b, result=result if self.needs_input_grad[1] else None)
        return result

    def backward(self, grad: "Tensor") -> Any:
        """d(a^b) = b a^(b-1) da + a^b log(a) db; 0 where b is 0, and where a is 0 and b >= 0."""
        need_a, need_b = self.needs_input_grad
        base, exponent = self.saved("self"), self.saved("exponent")
        grad_a = grad_b = None
        if need_a:
            slope = exponent * base ** (exponent - 1)
            grad_a = grad.new_zeros(()).where(exponent == 0, grad * conj(slope))
        if need_b:
            converted_base = cast(base, numpy_dtype(grad))
            grad_b = _to_exponent(
                grad, converted_base._array, converted_base.log(), exponent, self.saved("result")
            )
        return self.reduced(grad_a, grad_b)


def _to_exponent(
    grad: "Tensor", base: Array, log_base: "Tensor", exponent: "Tensor", result: "Tensor"
) -> "Tensor":
    """Return the gradient of the exponent: 0 where base is 0 and the exponent not negative."""
    power = exponent._array
    real = power.real if power.dtype.kind == "c" else power
    is_zero = (base == 0) & compare(np.greater_equal, real, 0)
    if power.dtype.kind == "c":
        is_zero &= power.imag == 0
    return grad.new_zeros(()).where(wrap(is_zero), grad * conj(result * log_base))


class PowScalar(Op):
    """x ** exponent for a number; keeps x unless the exponent is 0."""

    is_recomputable = True

    torch_name = "PowBackward0"

    def forward(self, x: Array, exponent: Any, dtype: np.dtype[Any]) -> Array:
        self.exponent, self.dtype = exponent, x.dtype
        self.save(self=None if exponent == 0 else x)
        x = converted(x, dtype)
        if exponent == 2:
            return compute(np.multiply, x, x)
        if exponent == 0.5:
            return compute(np.sqrt, x)
        steps = _STEPS.get(exponent)
        if steps is not None and dtype.kind == "f" and dtype.itemsize > 2:
            return compute(partial(_in_steps, steps) if kernels.is_large(x.size) else steps, x)
        return _power(x, np.asarray(exponent, dtype))

    def backward(self, grad: "Tensor") -> Any:
        """d(x^n) = n x^(n-1) dx, with powers down to x^0 if it is recorded.

        So the derivative after the last constant one is 0, as in PyTorch, and not without history.
        """
        n = self.exponent
        if n == 0:
            return cast_gradient(grad.new_zeros(grad.shape), self.dtype)
        is_recorded = grad_mode.state.grad_enabled
        if n == 1 and not is_recorded:
            return cast_gradient(grad, self.dtype)
        x = self.saved("self")
        base = x._array
        # Arrays of shapes alone take this way, too, so that estimates count its memory.
        if (
            n - 1 in _STEPS
            and (self.is_plain(grad) or (type(grad._array) is MetaArray and not is_recorded))
            and kernels.is_large(base.size)
            and base.dtype.char in "fd"
            and grad._array.dtype == base.dtype
        ):
            return wrap(compute(partial(_times_slope, exponent=n), grad._array, base))
        slope = x * n if n == 2 and not is_recorded else x ** (n - 1) * n
        return cast_gradient(grad * conj(slope), self.dtype)


class NumberPow(Op):
    """A number ** x; keeps the result, and x if the number is 0."""

    is_recomputable = True

    torch_name = "PowBackward2"

    def forward(self, x: Array, base: Any, dtype: np.dtype[Any]) -> Array:
        self.dtype = x.dtype
        self.self = base  # `_saved_self`, PyTorch's name
        result = _power(np.asarray(base, dtype), converted(x, dtype))
        self.save(exponent=x if base == 0 else None, result=result)
        return result

    def backward(self, grad: "Tensor") -> Any:
        """d(a^x) = a^x log(a) dx; for a = 0 it is 0 where x is not negative."""
        result = self.saved("result")
        base = np.asarray(self.self, grad._array.dtype)
        with np.errstate(all="ignore"):
            log_base = as_tensor_of(np.log(base), base.dtype, "pow")
        if self.self == 0:
            exponent = self.saved("exponent")
            return cast_gradient(_to_exponent(grad, base, log_base, exponent, result), self.dtype)
        return cast_gradient(grad * conj(result * log_base), self.dtype)


def pow(input: TensorLike, exponent: TensorLike) -> "Tensor":
    """Return ``input ** exponent``; one of them may be a number.

    Raises:
        RuntimeError: for integers to the power of a negative number.
    """
    if isinstance(exponent, TensorBase):
        a, b, dtype = operands("pow", input, exponent)
        if category(dtype) < 2:
            return wrap(_integer_power(converted(a._array, dtype), converted(b._array, dtype)))
        if not isinstance(input, TensorBase):
            return NumberPow.apply(b, base=input, dtype=dtype)
        return Pow.apply(a, b, dtype=dtype)
    if isinstance(exponent, np.generic):
        exponent = exponent.item()  # its dtype is not that of the arithmetic
    base, number, dtype = operands("pow", check_tensor(input, "pow"), exponent)
    if category(dtype) == 1 and exponent < 0:  # type: ignore[operator]
        raise RuntimeError(
            "pow: Integers to negative integer powers are not allowed, got "
            f"{dtype.name} ** {exponent}; convert to float"
        )
    if dtype == np.bool_:
        return wrap(_integer_power(base._array, number._array))
    as_factor(exponent, dtype, "pow")  # raises if it does not fit
    return PowScalar.apply(base, exponent=exponent, dtype=dtype)


def _integer_power(base: Array, exponent: Array) -> Array:
    """Return a power of integers or bools: with a negative exponent 0, except of 1 and -1."""
    if base.dtype == np.bool_:
        return np.asarray(base | ~exponent.astype(np.bool_))
    # With a negative exponent only its parity counts: the bases left are 1 and -1.
    magnitude = np.power(base, np.where(exponent < 0, exponent & 1, exponent))
    return np.asarray(np.where((exponent >= 0) | (np.abs(base) == 1), magnitude, 0)).astype(
        base.dtype
    )


def square(input: "Tensor") -> "Tensor":
    """Return the square."""
    return pow(input, 2)


def float_power(input: TensorLike, exponent: TensorLike) -> "Tensor":
    """Return ``input ** exponent`` computed in float64, or in complex128 if one is complex."""
    dtype = _float_power_dtype(input, exponent)
    a, b = (
        cast(each, dtype) if isinstance(each, TensorBase) else dtype.type(each).item()
        for each in (input, exponent)
    )
    return pow(a, b)


def _float_power_dtype(input: TensorLike, exponent: TensorLike) -> np.dtype[Any]:
    return np.dtype(np.complex128 if category(common_dtype(input, exponent)) == 3 else np.float64)


_float_power_in_place = inplace_form(float_power)


def float_power_(input: "Tensor", exponent: TensorLike) -> "Tensor":
    """Replace `input` by what `float_power` returns.

    Raises:
        RuntimeError: if `input` does not have the dtype of that.
    """
    dtype = _float_power_dtype(input, exponent)
    if input._array.dtype != dtype:
        raise RuntimeError(
            f"float_power_: the result has dtype {dtype.name}, which a {describe(input)} cannot "
            "hold; use float_power"
        )
    return _float_power_in_place(input, exponent)


square_ = inplace_form(square)
