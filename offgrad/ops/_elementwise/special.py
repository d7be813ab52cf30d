"""Error functions, stable logarithms of sums of exponentials, copysign, heaviside."""

from functools import partial
from math import log as log_of
from math import pi, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.ops._core.broadcasting import (
    Broadcasting,
    are_large,
    compute,
    conj,
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
from offgrad.ops._elementwise.comparison import compare, where
from offgrad.ops._elementwise.exponential import (
    exp,
    reciprocal,
)
from offgrad.ops._elementwise.unary import Unary

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "copysign",
    "erf",
    "erf_",
    "erfc",
    "erfc_",
    "erfinv",
    "heaviside",
    "logaddexp",
    "logaddexp2",
    "xlogy",
    "xlogy_",
]


class Erf(Unary):
    """The error function; keeps x."""

    is_on_threads = True

    @staticmethod
    def ufunc(x: Array, out: Array) -> None:
        kernels.erf(x, out)

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 2/sqrt(pi) e^(-x^2)."""
        return exp(-(saved * saved)) * (2 / sqrt(pi))


class Erfc(Unary):
    """1 - erf(x); keeps x."""

    is_on_threads = True

    @staticmethod
    def ufunc(x: Array, out: Array) -> None:
        kernels.erfc(x, out)

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return -2/sqrt(pi) e^(-x^2)."""
        return exp(-(saved * saved)) * (-2 / sqrt(pi))


class Erfinv(Unary):
    """The inverse of the error function; keeps x."""

    is_on_threads = True

    @staticmethod
    def ufunc(x: Array, out: Array) -> None:
        kernels.erfinv(x, out)

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return sqrt(pi)/2 e^(erfinv(x)^2)."""
        inverse = erfinv(saved)
        return exp(inverse * inverse) * (sqrt(pi) / 2)


def log_add_exp(a: Array, b: Array, out: Array) -> None:
    """Write ``log(exp(a) + exp(b))`` without overflow; also for complex numbers."""
    if a.dtype.kind != "c":
        np.logaddexp(a, b, out=out)
        return
    first = a.real >= b.real
    high, low = np.where(first, a, b), np.where(first, b, a)
    np.add(high, np.log1p(np.exp(low - high)), out=out)
    # The difference of two equal infinities is NaN.
    same = np.isinf(high.real) & (high.real == low.real)
    np.copyto(out, np.log(np.exp(high) + np.exp(low)), where=same)


class LogAddExp(Broadcasting):
    """log(base^a + base^b) to a base; keeps both."""

    torch_name = "LogaddexpBackward0"

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any], log_base: float) -> Array:
        """Return the logarithm of the sum."""
        self.log_base = log_base
        self.save(self=a, other=b)
        a, b = self.operands(dtype, a, b)
        if a.dtype.kind == "c" and log_base == 1:
            return compute(log_add_exp, a, b)
        ufunc: Any = np.logaddexp if log_base == 1 else np.logaddexp2
        if are_large(a, b):
            ufunc = partial(kernels.elementary, ufunc)
        return compute(ufunc, a, b)

    def backward(self, grad: "Tensor") -> Any:
        """Share the gradient as base^a to base^b."""
        need_a, need_b = self.needs_input_grad
        difference = (self.saved("other") - self.saved("self")) * self.log_base
        return self.reduced(
            grad * conj(reciprocal(1 + exp(difference))) if need_a else None,
            grad * conj(reciprocal(1 + exp(-difference))) if need_b else None,
        )


class Xlogy(Broadcasting):
    """a log b, and 0 where a is 0; keeps those that gradients need."""

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        self.save(self=a, other=b)
        return compute(kernels.xlogy, *self.operands(dtype, a, b))

    def backward(self, grad: "Tensor") -> Any:
        """d(a log b) = log b da + a/b db."""
        need_a, need_b = self.needs_input_grad
        a, b = self.saved("self"), self.saved("other")
        grad_a = None
        if need_a:
            grad_a = xlogy(grad, b)
            if not _is_positive_number(b._array):
                undefined = wrap((a._array == 0) & compare(np.less_equal, b._array, 0))
                grad_a = grad_a.masked_fill(undefined, 0)
        return self.reduced(grad_a, grad * (a / b) if need_b else None)


def _is_positive_number(array: Array) -> bool:
    is_number = type(array) is np.ndarray and array.size == 1
    return is_number and bool(compare(np.greater, array, 0).all())


class Copysign(Broadcasting):
    """|a| with the sign of b; keeps a and the result."""

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        """Return the magnitudes of a with the signs of b."""
        result = compute(np.copysign, *self.operands(dtype, a, b))
        self.save(self=a, result=result)
        return result

    def backward(self, grad: "Tensor") -> Any:
        """The gradient times the sign change of a; 0 where a is 0. That of b is 0."""
        need_a, need_b = self.needs_input_grad
        a, result = self.saved("self")._array, self.saved("result")._array
        grad_a = grad * wrap(np.sign(a) * np.sign(result)) if need_a else None
        return self.reduced(grad_a, grad.new_zeros(grad.shape) if need_b else None)


def erf(input: "Tensor") -> "Tensor":
    """Return the error function."""
    check_ordered(check_tensor(input, "erf"), "erf")
    return Erf.apply(floating(input, "erf"))


def erfc(input: "Tensor") -> "Tensor":
    """Return ``1 - erf(input)``, precise where erf is near 1."""
    check_ordered(check_tensor(input, "erfc"), "erfc")
    return Erfc.apply(floating(input, "erfc"))


def erfinv(input: "Tensor") -> "Tensor":
    """Return the inverse of the error function; infinite at -1 and 1, NaN beyond."""
    check_ordered(check_tensor(input, "erfinv"), "erfinv")
    return Erfinv.apply(floating(input, "erfinv"))


def logaddexp(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return ``log(exp(input) + exp(other))`` without overflow, for floating point tensors."""
    where = "logaddexp"
    a, b, dtype = operands(where, check_tensor(input, where), check_tensor(other, where))
    if category(dtype) < 2:
        raise NotImplementedError(
            f"{where} is defined for floating point tensors, got {dtype.name}; convert them"
        )
    return LogAddExp.apply(a, b, dtype=dtype, log_base=1)


def logaddexp2(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return ``log2(2**input + 2**other)`` without overflow, for floating point tensors."""
    where = "logaddexp2"
    a, b, dtype = operands(where, check_tensor(input, where), check_tensor(other, where))
    if category(dtype) != 2:
        raise NotImplementedError(
            f"{where} is defined for floating point tensors, got {dtype.name}; convert them"
        )
    return LogAddExp.named("Logaddexp2Backward0").apply(a, b, dtype=dtype, log_base=log_of(2))


def xlogy(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input * log(other)``, 0 where `input` is 0."""
    a, b, dtype = ordered_floats("xlogy", input, other)
    number = 1 if not isinstance(input, TensorBase) else 0 if isinstance(other, TensorBase) else 2
    return Xlogy.named(f"XlogyBackward{number}").apply(a, b, dtype=dtype)


def copysign(input: "Tensor", other: TensorLike) -> "Tensor":
    """Return the magnitude of `input` with the sign of `other`, also that of a zero."""
    a, b, dtype = ordered_floats("copysign", check_tensor(input, "copysign"), other)
    number = 0 if isinstance(other, TensorBase) else 1
    return Copysign.named(f"CopysignBackward{number}").apply(a, b, dtype=dtype)


def heaviside(input: "Tensor", values: "Tensor") -> "Tensor":
    """Return 1 for positive elements, `values` for zeros, and 0 for negative ones.

    The gradient goes to the elements of `values` in the result.

    Raises:
        RuntimeError: if the dtypes differ.
    """
    x, y = check_tensor(input, "heaviside"), check_tensor(values, "heaviside")
    check_ordered(x, "heaviside")
    if x._array.dtype != y._array.dtype:
        raise RuntimeError(
            f"heaviside needs two tensors of one dtype, got {x._array.dtype.name} and "
            f"{y._array.dtype.name}; convert one"
        )
    array = x._array
    with np.errstate(invalid="ignore"):  # bfloat16's NaN
        return where(wrap(array == 0), y, wrap((array > 0).astype(array.dtype)))


erf_ = inplace_form(erf)
erfc_ = inplace_form(erfc)
xlogy_ = inplace_form(xlogy)
