"""Exponentials, logarithms, roots and the logistic function, element by element."""

from math import log as log_of
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.broadcasting import (
    compute,
    conj,
)
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import check_ordered, check_tensor, floating
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._elementwise.comparison import compare
from offgrad.ops._elementwise.unary import FusedUnary, Unary

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "exp",
    "exp2",
    "exp2_",
    "exp_",
    "expm1",
    "expm1_",
    "log",
    "log10",
    "log10_",
    "log1p",
    "log1p_",
    "log2",
    "log2_",
    "log_",
    "logit",
    "logit_",
    "neg",
    "neg_",
    "negative",
    "negative_",
    "positive",
    "reciprocal",
    "reciprocal_",
    "rsqrt",
    "rsqrt_",
    "sigmoid",
    "sigmoid_",
    "sqrt",
    "sqrt_",
]


class Neg(Op):
    """-x; keeps nothing."""

    backward_takes_arrays = True

    is_recomputable = True

    def forward(self, x: Array) -> Array:
        return compute(np.negative, x)

    def backward(self, grad: "Tensor") -> Any:
        return -grad


class Exp(Unary):
    """e^x; keeps the result, its own derivative."""

    backward_takes_arrays = True
    ufunc = np.exp
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return e^x."""
        return saved


def _exp2(x: Array, out: Array) -> None:
    if x.dtype.kind == "c":
        np.multiply(x, log_of(2), out=out)
        np.exp(out, out=out)
    else:
        kernels.elementary(np.exp2, x, out=out)


class Exp2(Unary):
    """2^x; keeps the result."""

    ufunc = _exp2
    is_on_threads = True
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 2^x log 2."""
        return saved * log_of(2)


class Expm1(Unary):
    """e^x - 1; keeps the result."""

    backward_takes_arrays = True
    ufunc = np.expm1
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return e^x."""
        return saved + 1


class _Logarithm(Unary):
    """A logarithm; keeps x."""

    def backward(self, grad: "Tensor") -> Any:
        """Divide by the inverse of the derivative."""
        return grad / conj(self.inverse_slope(self.saved("self")))

    def inverse_slope(self, x: "Tensor") -> "Tensor":
        """Return 1/f'(x)."""
        raise NotImplementedError


class Log(_Logarithm):
    """log x; keeps x."""

    backward_takes_arrays = True
    ufunc = np.log

    def inverse_slope(self, x: "Tensor") -> "Tensor":
        """Return x."""
        return x


def _log1p(x: Array, out: Array) -> None:
    if x.dtype.kind != "c":
        kernels.elementary(np.log1p, x, out=out)
        return
    # NumPy's loses small numbers beside 1. Here the square of |1 + x| less 1 keeps them.
    a, b = x.real.astype(np.float64), x.imag.astype(np.float64)
    square = a * (2 + a) + b * b
    out.real = np.where(np.abs(square) < 0.5, np.log1p(square) / 2, np.log(np.hypot(1 + a, b)))
    out.imag = np.arctan2(b, 1 + a)


class Log1p(_Logarithm):
    """log(1 + x); keeps x."""

    ufunc = _log1p
    is_on_threads = True

    torch_name = "Log1PBackward0"

    def inverse_slope(self, x: "Tensor") -> "Tensor":
        """Return 1 + x."""
        return x + 1


class Log2(_Logarithm):
    """log2 x; keeps x."""

    ufunc = np.log2

    def inverse_slope(self, x: "Tensor") -> "Tensor":
        """Return x log 2."""
        return x * log_of(2)


class Log10(_Logarithm):
    """log10 x; keeps x."""

    ufunc = np.log10

    def inverse_slope(self, x: "Tensor") -> "Tensor":
        """Return x log 10."""
        return x * log_of(10)


class Sqrt(Unary):
    """The square root; keeps the result."""

    ufunc = np.sqrt
    keeps = "result"

    def backward(self, grad: "Tensor") -> Any:
        """Divide by 2 sqrt x."""
        return grad / conj(self.saved("result") * 2)

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1/(2 sqrt x)."""
        return reciprocal(saved * 2)


def _rsqrt(x: Array, out: Array) -> None:
    kernels.rsqrt(x, out)


class Rsqrt(Unary):
    """1/sqrt x; keeps the result."""

    ufunc = _rsqrt
    is_on_threads = True
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return -x^(-3/2)/2."""
        return saved**3 * -0.5


class Reciprocal(FusedUnary):
    """1/x, whose derivative is -1/x^2; keeps the result."""

    ufunc = np.reciprocal
    factors = (0, 0, -1)

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return -1/x^2."""
        return -(saved * saved)


def _sigmoid(x: Array, out: Array) -> None:
    if x.dtype.kind != "c":
        kernels.sigmoid(x, out)
        return
    # s(x) = (1 + tanh(x/2))/2 does not overflow.
    np.multiply(x, x.dtype.type(0.5), out=out)
    np.tanh(out, out=out)
    np.add(out, x.dtype.type(1), out=out)
    np.multiply(out, x.dtype.type(0.5), out=out)


class Sigmoid(FusedUnary):
    """s(x) = 1/(1 + e^-x), whose derivative is s(x) (1 - s(x)); keeps the result."""

    ufunc = _sigmoid
    is_on_threads = True
    factors = (0, 1, -1)

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return s(x) (1 - s(x))."""
        return saved * (1 - saved)


class Logit(Op):
    """log(x / (1 - x)), x limited to [eps, 1 - eps]; keeps x. The gradient outside is 0."""

    is_recomputable = True

    def forward(self, x: Array, eps: float | None) -> Array:
        self.eps = eps
        self.save(self=x)

        def write(x: Array, out: Array) -> None:
            limited = x if eps is None else np.clip(x, eps, 1 - eps)
            kernels.elementary(np.log, np.asarray(limited / (1 - limited)), out=out)

        out = memory.empty(x.shape, x.dtype)
        kernels.elementwise(write, out, x)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return LogitBackward.apply(grad, self.saved("self"), eps=self.eps)


class LogitBackward(Op):
    """g / (x (1 - x)), outside [eps, 1 - eps] 0, without eps NaN; keeps g and x."""

    is_elementwise = True

    def forward(self, grad: Array, x: Array, eps: float | None) -> Array:
        self.eps = eps
        self.save(grad_output=grad, self=x)
        out = memory.empty(x.shape, x.dtype)
        kernels.logit_backward(grad, x, out, *_limits(eps))
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Differentiate the formula."""
        low, outside = _limits(self.eps)

        def reference(g: "Tensor", x: "Tensor") -> Any:
            above = compare(np.greater_equal, x._array, low)
            is_inside = above & compare(np.less_equal, x._array, 1 - low)
            return (g / (x * (1 - x))).masked_fill(wrap(~is_inside), outside)

        inputs = self.saved("grad_output"), self.saved("self")
        return differentiate(reference, inputs, (grad,), self.needs_input_grad)


def _limits(eps: float | None) -> tuple[float, float]:
    """Return the lower limit of logit, and its derivative outside the limits."""
    return (0, nan) if eps is None else (eps, 0)


def neg(input: "Tensor") -> "Tensor":
    """Return ``-input``."""
    if check_tensor(input, "neg")._array.dtype == np.bool_:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported; use ~ or logical_not()"
        )
    return Neg.apply(input)


def positive(input: "Tensor") -> "Tensor":
    """Return `input` itself.

    Raises:
        RuntimeError: for bools.
    """
    if check_tensor(input, "positive")._array.dtype == np.bool_:
        raise RuntimeError("positive is not defined for bool tensors; convert to a number")
    return input


def exp(input: "Tensor") -> "Tensor":
    """Return e to the power of `input`."""
    return Exp.apply(floating(input, "exp"))


def exp2(input: "Tensor") -> "Tensor":
    """Return 2 to the power of `input`."""
    return Exp2.apply(floating(input, "exp2"))


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


def log10(input: "Tensor") -> "Tensor":
    """Return the logarithm to base 10."""
    return Log10.apply(floating(input, "log10"))


def sqrt(input: "Tensor") -> "Tensor":
    """Return the square root."""
    return Sqrt.apply(floating(input, "sqrt"))


def rsqrt(input: "Tensor") -> "Tensor":
    """Return one over the square root."""
    return Rsqrt.apply(floating(input, "rsqrt"))


def reciprocal(input: "Tensor") -> "Tensor":
    """Return ``1 / input``."""
    return Reciprocal.apply(floating(input, "reciprocal"))


def sigmoid(input: "Tensor") -> "Tensor":
    """Return ``1 / (1 + exp(-input))``."""
    return Sigmoid.apply(floating(input, "sigmoid"))


def logit(input: "Tensor", eps: float | None = None) -> "Tensor":
    """Return ``log(input / (1 - input))``; `eps` first limits `input` to ``[eps, 1 - eps]``."""
    check_ordered(check_tensor(input, "logit"), "logit")
    return Logit.apply(floating(input, "logit"), eps=eps)


negative = neg


exp_ = inplace_form(exp)
exp2_ = inplace_form(exp2)
expm1_ = inplace_form(expm1)
log_ = inplace_form(log)
log10_ = inplace_form(log10)
log1p_ = inplace_form(log1p)
log2_ = inplace_form(log2)
logit_ = inplace_form(logit)
neg_ = inplace_form(neg)
negative_ = inplace_form(negative)
reciprocal_ = inplace_form(reciprocal)
rsqrt_ = inplace_form(rsqrt)
sigmoid_ = inplace_form(sigmoid)
sqrt_ = inplace_form(sqrt)
