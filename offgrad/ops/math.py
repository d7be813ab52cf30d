"""Functions of one tensor, element by element."""

from collections.abc import Callable
from math import pi
from math import sqrt as sqrt_of
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.ops.arithmetic import compute, conj, maximum, minimum
from offgrad.ops.convert import as_tensor_of, check_ordered, check_tensor, floating, result_type

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


class _Unary(Op):
    """f(x) by a ufunc; keeps x, or the result where the derivative is simpler from it."""

    ufunc: ClassVar[Callable[..., Any]]
    keeps: ClassVar[str] = "self"

    def forward(self, x: Array) -> Array:
        """Return f(x)."""
        result = compute(type(self).ufunc, x)
        self.save(**{self.keeps: x if self.keeps == "self" else result})
        return result

    def backward(self, grad: "Tensor") -> Any:
        """Multiply by the derivative."""
        return grad * conj(self.derivative(self.saved(self.keeps)))

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return f'(x) from what was kept."""
        raise NotImplementedError


class Neg(Op):
    """-x; keeps nothing."""

    def forward(self, x: Array) -> Array:
        """Return the negative."""
        return compute(np.negative, x)

    def backward(self, grad: "Tensor") -> Any:
        """Negate."""
        return -grad


class Exp(_Unary):
    """e^x; keeps the result, its own derivative."""

    ufunc = np.exp
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return e^x."""
        return saved


class Expm1(_Unary):
    """e^x - 1; keeps the result."""

    ufunc = np.expm1
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return e^x."""
        return saved + 1


class Log(_Unary):
    """log x; keeps x."""

    ufunc = np.log

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1/x."""
        return reciprocal(saved)


class Log1p(_Unary):
    """log(1 + x); keeps x."""

    ufunc = np.log1p

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1/(1 + x)."""
        return reciprocal(saved + 1)


class Log2(_Unary):
    """log2 x; keeps x."""

    ufunc = np.log2

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1/(x log 2)."""
        return reciprocal(saved * float(np.log(2)))


class Sqrt(_Unary):
    """The square root; keeps the result."""

    ufunc = np.sqrt
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1/(2 sqrt x)."""
        return reciprocal(saved * 2)


def _rsqrt(x: Array, out: Array) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


class Rsqrt(_Unary):
    """1/sqrt x; keeps the result."""

    ufunc = _rsqrt
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return -x^(-3/2)/2."""
        return saved**3 * -0.5


class Reciprocal(_Unary):
    """1/x; keeps the result."""

    ufunc = np.reciprocal
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return -1/x^2."""
        return -(saved * saved)


class Sin(_Unary):
    """Sine; keeps x."""

    ufunc = np.sin

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return cos x."""
        return cos(saved)


class Cos(_Unary):
    """Cosine; keeps x."""

    ufunc = np.cos

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return -sin x."""
        return -sin(saved)


class Tanh(_Unary):
    """Hyperbolic tangent; keeps the result."""

    ufunc = np.tanh
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1 - tanh^2 x."""
        return 1 - saved * saved


def _sigmoid(x: Array, out: Array) -> None:
    # Through tanh nothing overflows: s(x) = (1 + tanh(x/2))/2.
    np.multiply(x, x.dtype.type(0.5), out=out)
    np.tanh(out, out=out)
    np.add(out, x.dtype.type(1), out=out)
    np.multiply(out, x.dtype.type(0.5), out=out)


class Sigmoid(_Unary):
    """1/(1 + e^-x); keeps the result."""

    ufunc = _sigmoid
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return s(x) (1 - s(x))."""
        return saved * (1 - saved)


def _erf(x: Array, out: Array) -> None:
    from math import erf as scalar_erf

    out[...] = np.vectorize(scalar_erf, otypes=[np.float64])(x)


class Erf(_Unary):
    """The error function; keeps x."""

    ufunc = _erf

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 2/sqrt(pi) e^(-x^2)."""
        return exp(-(saved * saved)) * (2 / sqrt_of(pi))


class Stepwise(Op):
    """floor, ceil, round, trunc: piecewise constant, so the gradient is zero; keeps nothing."""

    def name(self) -> str:
        """Return PyTorch's name."""
        return f"{self.kind.capitalize()}Backward0"

    def forward(self, x: Array, ufunc: Any, kind: str) -> Array:
        """Return the rounded value."""
        self.kind, self.shape = kind, x.shape
        return x.copy() if x.dtype.kind in "iub" else compute(ufunc, x)

    def backward(self, grad: "Tensor") -> Any:
        """Return zeros."""
        return grad.new_zeros(self.shape)


class Clamp(Op):
    """x limited to [min, max]; keeps x. The gradient is 1 inside, bounds included, else 0."""

    def forward(self, x: Array, min: Any, max: Any) -> Array:
        """Return the limited values; NaN stays."""
        self.min, self.max = min, max
        self.save(self=x)
        low = None if min is None else np.asarray(min, x.dtype)
        high = None if max is None else np.asarray(max, x.dtype)
        out = memory.empty(x.shape, x.dtype)
        np.clip(x, low, high, out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Mask."""
        x = self.saved("self")._array
        inside = np.ones(x.shape, np.bool_)
        if self.min is not None:
            inside &= x >= self.min
        if self.max is not None:
            inside &= x <= self.max
        return grad.masked_fill(wrap(~inside), 0)


def neg(input: "Tensor") -> "Tensor":
    """Return ``-input``."""
    if check_tensor(input, "neg")._array.dtype == np.bool_:
        raise RuntimeError("neg is not defined for bool tensors; use ~ or logical_not()")
    return Neg.apply(input)


def exp(input: "Tensor") -> "Tensor":
    """Return e to the power of `input`."""
    return Exp.apply(floating(input, "exp"))


def expm1(input: "Tensor") -> "Tensor":
    """Return ``exp(input) - 1``, precise near 0."""
    return Expm1.apply(floating(input, "expm1"))


def log(input: "Tensor") -> "Tensor":
    """Return the natural logarithm."""
    return Log.apply(floating(input, "log"))


def log1p(input: "Tensor") -> "Tensor":
    """Return ``log(1 + input)``, precise near 0."""
    return Log1p.apply(floating(input, "log1p"))


def log2(input: "Tensor") -> "Tensor":
    """Return the logarithm to base 2."""
    return Log2.apply(floating(input, "log2"))


def sqrt(input: "Tensor") -> "Tensor":
    """Return the square root."""
    return Sqrt.apply(floating(input, "sqrt"))


def rsqrt(input: "Tensor") -> "Tensor":
    """Return one over the square root."""
    return Rsqrt.apply(floating(input, "rsqrt"))


def reciprocal(input: "Tensor") -> "Tensor":
    """Return ``1 / input``."""
    return Reciprocal.apply(floating(input, "reciprocal"))


def square(input: "Tensor") -> "Tensor":
    """Return the square."""
    return input**2


def sin(input: "Tensor") -> "Tensor":
    """Return the sine of an angle in radians."""
    return Sin.apply(floating(input, "sin"))


def cos(input: "Tensor") -> "Tensor":
    """Return the cosine of an angle in radians."""
    return Cos.apply(floating(input, "cos"))


def tanh(input: "Tensor") -> "Tensor":
    """Return the hyperbolic tangent."""
    return Tanh.apply(floating(input, "tanh"))


def sigmoid(input: "Tensor") -> "Tensor":
    """Return ``1 / (1 + exp(-input))``."""
    return Sigmoid.apply(floating(input, "sigmoid"))


def erf(input: "Tensor") -> "Tensor":
    """Return the error function."""
    check_ordered(check_tensor(input, "erf"), "erf")
    return Erf.apply(floating(input, "erf"))


def _steppable(input: "Tensor", where: str) -> "Tensor":
    check_ordered(check_tensor(input, where), where)
    if input._array.dtype == np.bool_:
        raise RuntimeError(f"{where} is not defined for bool tensors; convert to a number")
    return input


def floor(input: "Tensor") -> "Tensor":
    """Return the largest integer not above `input`, as the same dtype."""
    return Stepwise.apply(_steppable(input, "floor"), ufunc=np.floor, kind="floor")


def ceil(input: "Tensor") -> "Tensor":
    """Return the smallest integer not below `input`, as the same dtype."""
    return Stepwise.apply(_steppable(input, "ceil"), ufunc=np.ceil, kind="ceil")


def round(input: "Tensor") -> "Tensor":
    """Return the nearest integer, halves to even, as the same dtype."""
    return Stepwise.apply(_steppable(input, "round"), ufunc=np.rint, kind="round")


def trunc(input: "Tensor") -> "Tensor":
    """Return the integer part, as the same dtype."""
    return Stepwise.apply(_steppable(input, "trunc"), ufunc=np.trunc, kind="trunc")


def clamp(input: "Tensor", min: Any = None, max: Any = None) -> "Tensor":
    """Return `input` limited to `min` and `max`, numbers or tensors; one may be None.

    Raises:
        RuntimeError: if both are None.
    """
    if min is None and max is None:
        raise RuntimeError("clamp needs min, max or both, got neither")
    bounds = [each for each in (min, max) if each is not None]
    x = check_tensor(input, "clamp")
    check_ordered(x, "clamp")
    if any(isinstance(each, TensorBase) for each in bounds):
        x = x if min is None else maximum(x, as_tensor_of(min, result_type(x, min), "clamp"))
        return x if max is None else minimum(x, as_tensor_of(max, result_type(x, max), "clamp"))
    x = as_tensor_of(x, result_type(x, *bounds), "clamp")
    return Clamp.apply(x, min=min, max=max)
