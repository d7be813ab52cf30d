"""Trigonometric and hyperbolic functions and their inverses, angles, sinc."""

from functools import partial
from math import factorial, pi
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.broadcasting import (
    Broadcasting,
    are_large,
    compute,
    operands,
    ordered_floats,
)
from offgrad.ops._core.dtypes import (
    TensorLike,
    category,
    check_ordered,
    check_tensor,
    floating,
)
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._elementwise.exponential import reciprocal, rsqrt
from offgrad.ops._elementwise.unary import FusedUnary, Unary

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "acos",
    "acos_",
    "acosh",
    "acosh_",
    "arccos",
    "arccos_",
    "arccosh",
    "arccosh_",
    "arcsin",
    "arcsin_",
    "arcsinh",
    "arcsinh_",
    "arctan",
    "arctan2",
    "arctan_",
    "arctanh",
    "arctanh_",
    "asin",
    "asin_",
    "asinh",
    "asinh_",
    "atan",
    "atan2",
    "atan_",
    "atanh",
    "atanh_",
    "cos",
    "cos_",
    "cosh",
    "cosh_",
    "deg2rad",
    "deg2rad_",
    "hypot",
    "rad2deg",
    "rad2deg_",
    "sin",
    "sin_",
    "sinc",
    "sinc_",
    "sinh",
    "sinh_",
    "tan",
    "tan_",
    "tanh",
    "tanh_",
]


class Sin(Unary):
    """Sine; keeps x."""

    ufunc = np.sin

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return cos x."""
        return cos(saved)


class Cos(Unary):
    """Cosine; keeps x."""

    ufunc = np.cos

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return -sin x."""
        return -sin(saved)


class Tan(Unary):
    """Tangent; keeps the result."""

    backward_takes_arrays = True
    ufunc = np.tan
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1 + tan^2 x."""
        return saved * saved + 1


class Asin(Unary):
    """Inverse sine; keeps x."""

    ufunc = np.arcsin

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1/sqrt(1 - x^2)."""
        return rsqrt(1 - saved * saved)


class Acos(Unary):
    """Inverse cosine; keeps x."""

    ufunc = np.arccos

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return -1/sqrt(1 - x^2)."""
        return -rsqrt(1 - saved * saved)


class Atan(Unary):
    """Inverse tangent; keeps x."""

    ufunc = np.arctan

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1/(1 + x^2)."""
        return reciprocal(saved * saved + 1)


class Sinh(Unary):
    """Hyperbolic sine; keeps x."""

    ufunc = np.sinh

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return cosh x."""
        return cosh(saved)


class Cosh(Unary):
    """Hyperbolic cosine; keeps x."""

    ufunc = np.cosh

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return sinh x."""
        return sinh(saved)


class Tanh(FusedUnary):
    """Hyperbolic tangent, whose derivative is 1 - tanh^2 x; keeps the result."""

    ufunc = np.tanh
    factors = (1, 0, -1)

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1 - tanh^2 x."""
        return 1 - saved * saved


class Asinh(Unary):
    """Inverse hyperbolic sine; keeps x."""

    ufunc = np.arcsinh

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1/sqrt(x^2 + 1)."""
        return rsqrt(saved * saved + 1)


class Acosh(Unary):
    """Inverse hyperbolic cosine; keeps x."""

    ufunc = np.arccosh

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1/(sqrt(x - 1) sqrt(x + 1)), with the branch cut of acosh."""
        if saved._array.dtype.kind == "c":
            return rsqrt(saved - 1) * rsqrt(saved + 1)
        return rsqrt(saved * saved - 1)


class Atanh(Unary):
    """Inverse hyperbolic tangent; keeps x."""

    ufunc = np.arctanh

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1/(1 - x^2)."""
        return reciprocal(1 - saved * saved)


def _sinc(x: Array, out: Array) -> None:
    out[...] = np.sinc(x)


class Sinc(Unary):
    """sin(pi x)/(pi x), and 1 at 0; keeps x."""

    ufunc = _sinc

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return (cos(pi x) - sinc(x))/x; near 0, where that cancels, its Taylor series."""
        array = saved._array
        is_near = wrap(np.abs(array) < 1 / pi)
        far = saved.masked_fill(is_near, 1)
        slope = ((cos(far * pi) - sinc(far)) / far).masked_fill(is_near, 0)
        if type(array) is np.ndarray and not is_near._array.any():
            return slope
        near = saved.masked_fill(~is_near, 0)
        square = near * near
        series = square * 0 + _SINC_SERIES[0]
        for coefficient in _SINC_SERIES[1:]:
            series = series * square + coefficient
        result: Tensor = slope + near * series
        return result


_SINC_SERIES = [(-1) ** k * 2 * k * pi ** (2 * k) / factorial(2 * k + 1) for k in range(11, 0, -1)]
"""The derivative of sinc is the sum of a_k x^(2k - 1): a_11 to a_1, exact to 1e-19 up to 1/pi."""


class Atan2(Broadcasting):
    """The angle of the point (b, a); keeps both. The gradient at the origin is 0."""

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        self.save(self=a, other=b)
        ufunc: Any = np.arctan2
        if are_large(a, b):
            ufunc = partial(kernels.elementary, ufunc)
        return compute(ufunc, *self.operands(dtype, a, b))

    def backward(self, grad: "Tensor") -> Any:
        """d atan2(a, b) = (b da - a db)/(a^2 + b^2)."""
        need_a, need_b = self.needs_input_grad
        a, b = self.saved("self"), self.saved("other")
        squared = a * a + b * b
        share = (grad / squared).masked_fill(wrap(squared._array == 0), 0)
        return self.reduced(share * b if need_a else None, share * -a if need_b else None)


class Hypot(Broadcasting):
    """sqrt(a^2 + b^2); keeps both and the result. The gradient at the origin is 0."""

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        need_a, need_b = self.needs_input_grad
        ufunc = kernels.hypot if are_large(a, b) else np.hypot
        result = compute(ufunc, *self.operands(dtype, a, b))
        self.save(self=a if need_a else None, other=b if need_b else None, result=result)
        return result

    def backward(self, grad: "Tensor") -> Any:
        """d hypot(a, b) = (a da + b db)/hypot(a, b)."""
        need_a, need_b = self.needs_input_grad
        result = self.saved("result")
        share = (grad / result).masked_fill(wrap(result._array == 0), 0)
        return self.reduced(
            share * self.saved("self") if need_a else None,
            share * self.saved("other") if need_b else None,
        )


class Scale(Op):
    """x times a constant; keeps nothing."""

    is_recomputable = True

    def forward(self, x: Array, factor: float) -> Array:
        self.factor = factor
        return compute(np.multiply, x, np.asarray(factor, x.dtype))

    def backward(self, grad: "Tensor") -> Any:
        return grad * self.factor


def sin(input: "Tensor") -> "Tensor":
    """Return the sine of an angle in radians."""
    return Sin.apply(floating(input, "sin"))


def cos(input: "Tensor") -> "Tensor":
    """Return the cosine of an angle in radians."""
    return Cos.apply(floating(input, "cos"))


def tan(input: "Tensor") -> "Tensor":
    """Return the tangent of an angle in radians."""
    return Tan.apply(floating(input, "tan"))


def asin(input: "Tensor") -> "Tensor":
    """Return the inverse sine, in radians."""
    return Asin.apply(floating(input, "asin"))


def acos(input: "Tensor") -> "Tensor":
    """Return the inverse cosine, in radians."""
    return Acos.apply(floating(input, "acos"))


def atan(input: "Tensor") -> "Tensor":
    """Return the inverse tangent, in radians."""
    return Atan.apply(floating(input, "atan"))


def sinh(input: "Tensor") -> "Tensor":
    """Return the hyperbolic sine."""
    return Sinh.apply(floating(input, "sinh"))


def cosh(input: "Tensor") -> "Tensor":
    """Return the hyperbolic cosine."""
    return Cosh.apply(floating(input, "cosh"))


def tanh(input: "Tensor") -> "Tensor":
    """Return the hyperbolic tangent."""
    return Tanh.apply(floating(input, "tanh"))


def asinh(input: "Tensor") -> "Tensor":
    """Return the inverse hyperbolic sine."""
    return Asinh.apply(floating(input, "asinh"))


def acosh(input: "Tensor") -> "Tensor":
    """Return the inverse hyperbolic cosine."""
    return Acosh.apply(floating(input, "acosh"))


def atanh(input: "Tensor") -> "Tensor":
    """Return the inverse hyperbolic tangent."""
    return Atanh.apply(floating(input, "atanh"))


def sinc(input: "Tensor") -> "Tensor":
    """Return ``sin(pi x) / (pi x)``, and 1 at 0."""
    return Sinc.apply(floating(input, "sinc"))


def atan2(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return the angle between the first axis and the point (`other`, `input`), from -pi to pi."""
    first, second = check_tensor(input, "atan2"), check_tensor(other, "atan2")
    a, b, dtype = ordered_floats("atan2", first, second)
    return Atan2.apply(a, b, dtype=dtype)


def hypot(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return ``sqrt(input^2 + other^2)`` without overflow, for floating point tensors."""
    a, b, dtype = operands("hypot", check_tensor(input, "hypot"), check_tensor(other, "hypot"))
    if category(dtype) != 2:
        raise NotImplementedError(
            f"hypot is defined for floating point tensors, got {dtype.name}; convert them"
        )
    return Hypot.apply(a, b, dtype=dtype)


def deg2rad(input: "Tensor") -> "Tensor":
    """Return degrees as radians."""
    check_ordered(check_tensor(input, "deg2rad"), "deg2rad")
    x = floating(input, "deg2rad")
    return Scale.named("Deg2RadBackward0").apply(x, factor=pi / 180)


def rad2deg(input: "Tensor") -> "Tensor":
    """Return radians as degrees."""
    check_ordered(check_tensor(input, "rad2deg"), "rad2deg")
    x = floating(input, "rad2deg")
    return Scale.named("Rad2DegBackward0").apply(x, factor=180 / pi)


arcsin, arccos, arctan = asin, acos, atan
arcsinh, arccosh, arctanh = asinh, acosh, atanh
arctan2 = atan2


acos_ = inplace_form(acos)
acosh_ = inplace_form(acosh)
arccos_ = inplace_form(arccos)
arccosh_ = inplace_form(arccosh)
arcsin_ = inplace_form(arcsin)
arcsinh_ = inplace_form(arcsinh)
arctan_ = inplace_form(arctan)
arctanh_ = inplace_form(arctanh)
asin_ = inplace_form(asin)
asinh_ = inplace_form(asinh)
atan_ = inplace_form(atan)
atanh_ = inplace_form(atanh)
cos_ = inplace_form(cos)
cosh_ = inplace_form(cosh)
deg2rad_ = inplace_form(deg2rad)
rad2deg_ = inplace_form(rad2deg)
sin_ = inplace_form(sin)
sinc_ = inplace_form(sinc)
sinh_ = inplace_form(sinh)
tan_ = inplace_form(tan)
tanh_ = inplace_form(tanh)
