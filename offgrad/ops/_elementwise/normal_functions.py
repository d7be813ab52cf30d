"""The normal distribution's integrals, its quantiles, and entropy."""

from math import pi, sqrt
from typing import TYPE_CHECKING

from offgrad.ops._elementwise.comparison import where
from offgrad.ops._elementwise.exponential import exp
from offgrad.ops._elementwise.gamma_functions import scipy_function
from offgrad.ops._elementwise.unary import KernelUnary, Unary, kernel

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class SpecialNdtr(KernelUnary):
    """The normal distribution function; keeps x."""

    ufunc = kernel("ndtr")
    backward_kernel = kernel("ndtr_backward")

    @classmethod
    def derivative(cls, saved: "Tensor") -> "Tensor":
        """Return the normal density."""
        return exp(saved * saved * -0.5) / sqrt(2 * pi)


class SpecialNdtri(Unary):
    """The quantiles of the normal distribution; keeps the result."""

    ufunc = scipy_function("ndtri")
    keeps = "result"

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return 1 / the normal density of the result."""
        return exp(saved * saved * 0.5) * sqrt(2 * pi)


class SpecialLogNdtr(KernelUnary):
    """The logarithm of the normal distribution function; keeps x."""

    ufunc = kernel("log_ndtr")
    backward_kernel = kernel("log_ndtr_backward")

    @classmethod
    def derivative(cls, saved: "Tensor") -> "Tensor":
        """Return the normal density over the distribution function.

        Below 1 by erfcx, without underflow; above 1 that would overflow.
        """
        is_high = saved > 1
        low, high = saved.masked_fill(is_high, 0), saved.masked_fill(~is_high, 1)
        ratio = exp(high * high * -0.5) / (sqrt(2 * pi) * SpecialNdtr.apply(high))
        return where(is_high, ratio, sqrt(2 / pi) / SpecialErfcx.apply(low * (-1 / sqrt(2))))


class SpecialErfcx(KernelUnary):
    """e^(x^2) erfc(x); keeps x."""

    ufunc = kernel("erfcx")
    backward_kernel = kernel("erfcx_backward")

    @classmethod
    def derivative(cls, saved: "Tensor") -> "Tensor":
        """Return 2 x erfcx(x) - 2/sqrt(pi)."""
        return 2 * saved * SpecialErfcx.apply(saved) - 2 / sqrt(pi)


class SpecialEntr(KernelUnary):
    """-x log x, 0 at 0 and -inf below; keeps x."""

    ufunc = kernel("entr")
    backward_kernel = kernel("entr_backward")

    @classmethod
    def derivative(cls, saved: "Tensor") -> "Tensor":
        """Return -1 - log x: infinity at 0 and NaN below."""
        return -saved.log() - 1
