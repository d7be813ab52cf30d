"""The gamma function's relatives, and distributions of which it is a part."""

from functools import partial
from math import log, pi
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels
from offgrad.autograd.op import Array, Op
from offgrad.ops._core.broadcasting import Broadcasting, compute, ordered_floats
from offgrad.ops._core.dtypes import (
    TensorLike,
    check_ordered,
    check_tensor,
    floating,
)
from offgrad.ops._elementwise.exponential import exp
from offgrad.ops._elementwise.unary import KernelUnary, Unary, kernel

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "digamma",
    "igamma",
    "igammac",
    "lgamma",
    "mvlgamma",
    "polygamma",
]


def scipy_function(name: str) -> Any:
    """Return ``scipy.special.name``, imported at its first call."""

    def run(*arrays: Array, **out: Array) -> None:  # which may also be the last of `arrays`
        from scipy import special

        getattr(special, name)(*arrays, casting="unsafe", **out)

    return staticmethod(run)


class Lgamma(KernelUnary):
    """The logarithm of |gamma(x)|; keeps x."""

    ufunc = kernel("lgamma")
    backward_kernel = kernel("lgamma_backward")

    @classmethod
    def derivative(cls, saved: "Tensor") -> "Tensor":
        """Return digamma(x)."""
        return digamma(saved)


class Digamma(Unary):
    """The derivative of lgamma; keeps x."""

    is_on_threads = True
    ufunc = kernel("digamma")

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return polygamma(1, x)."""
        return polygamma(1, saved)


class Polygamma(Op):
    """The n-th derivative of digamma; keeps x."""

    is_recomputable = True

    def forward(self, x: Array, n: int) -> Array:
        self.n = n
        self.save(self=x)
        if n == 1:
            return compute(kernels.trigamma, x)
        from scipy.special import polygamma as scipy_polygamma

        def write(x: Array, out: Array) -> None:
            np.copyto(out, scipy_polygamma(n, x.astype(np.float64)), casting="unsafe")

        return compute(partial(kernels.elementary, write), x)

    def backward(self, grad: "Tensor") -> Any:
        """d polygamma(n, x) = polygamma(n + 1, x)."""
        return grad * polygamma(self.n + 1, self.saved("self"))


class Igamma(Broadcasting):
    """The regularized lower incomplete gamma function P(a, x), or 1 - P; keeps both."""

    def forward(self, a: Array, x: Array, dtype: np.dtype[Any], upper: bool) -> Array:
        from scipy.special import gammainc, gammaincc

        self.upper = upper
        self.save(self=a, other=x)
        function = gammaincc if upper else gammainc
        first, second = self.operands(dtype, a, x)
        return compute(partial(kernels.elementary, function), first, second)

    def backward(self, grad: "Tensor") -> Any:
        """dP/dx = x^(a - 1) e^-x / gamma(a); that of a is not known in closed form."""
        if self.needs_input_grad[0]:
            name = "igammac" if self.upper else "igamma"
            raise NotImplementedError(
                f"the derivative for '{name}: input' is not implemented: only `other` has a "
                "gradient; detach `input`"
            )
        a, x = self.saved("self"), self.saved("other")
        density = exp((a - 1) * x.log() - x - lgamma(a))
        return self.reduced(None, grad * (-density if self.upper else density))


def _real(input: "Tensor", where: str) -> "Tensor":
    check_ordered(check_tensor(input, where), where)
    return floating(input, where)


def lgamma(input: "Tensor") -> "Tensor":
    """Return log|gamma(x)| for each element x."""
    return Lgamma.apply(_real(input, "lgamma"))


def digamma(input: "Tensor") -> "Tensor":
    """Return the derivative of log(gamma(x)): -inf at 0, NaN at -1, -2 ..."""
    return Digamma.apply(_real(input, "digamma"))


def polygamma(n: "int | Tensor", input: "Tensor | int") -> "Tensor":
    """Return the n-th derivative of digamma.

    Raises:
        RuntimeError: for a negative n.
    """
    if not isinstance(n, int):  # as a method, the tensor comes first
        n, input = input, n
    if not isinstance(n, int) or n < 0:
        raise RuntimeError(f"polygamma: n must be 0 or more, got {n}")
    x = _real(check_tensor(input, "polygamma"), "polygamma")
    return digamma(x) if n == 0 else Polygamma.apply(x, n=n)


def mvlgamma(input: "Tensor", p: int) -> "Tensor":
    """Return the logarithm of the multivariate gamma function of dimension `p`.

    The sum of lgamma(x - j/2) over j from 0 to p - 1, and p (p - 1)/4 log(pi).

    Raises:
        RuntimeError: for p below 1.
    """
    if p < 1:
        raise RuntimeError(f"mvlgamma: p must be 1 or more, got {p}")
    x = _real(input, "mvlgamma")
    # Sums over the first dimension are faster than those of short rows.
    steps = x.new_tensor(np.arange(p) / -2).reshape(p, *[1] * x.ndim)
    return lgamma(x.unsqueeze(0) + steps).sum(0) + p * (p - 1) / 4 * log(pi)


def _incomplete(where: str, input: TensorLike, other: TensorLike, upper: bool) -> "Tensor":
    a, b, dtype = ordered_floats(where, input, other)
    return Igamma.named(f"{where.capitalize()}Backward0").apply(a, b, dtype=dtype, upper=upper)


def igamma(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the regularized lower incomplete gamma function P(input, other).

    The integral of t^(input - 1) e^-t from 0 to `other`, divided by gamma(input). The gradient of
    `input` raises.
    """
    return _incomplete("igamma", input, other, False)


def igammac(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the regularized upper incomplete gamma function, ``1 - igamma(input, other)``."""
    return _incomplete("igammac", input, other, True)
