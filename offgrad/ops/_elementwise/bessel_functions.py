"""Bessel functions and others of `special`."""

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad import kernels
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.broadcasting import Broadcasting, compute, ordered_floats
from offgrad.ops._core.dtypes import TensorLike
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._elementwise.comparison import compare, where
from offgrad.ops._elementwise.gamma_functions import _real, scipy_function
from offgrad.ops._elementwise.normal_functions import (
    SpecialEntr,
    SpecialErfcx,
    SpecialLogNdtr,
    SpecialNdtr,
    SpecialNdtri,
)
from offgrad.ops._elementwise.trigonometry import sin
from offgrad.ops._elementwise.unary import KernelUnary, Unary, kernel

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["i0", "i0_"]


class _OfPair(Unary):
    """A Bessel function; the derivative comes from that of the neighbouring order.

    `partner` names the other function, and `slope` gives the derivative from x, the function and
    its partner (Abramowitz and Stegun, 9.1.27, 9.1.28 and 9.6.26 to 9.6.28).
    """

    partner: ClassVar[str]

    def derivative(self, saved: "Tensor") -> "Tensor":
        return self.slope(saved, type(self).apply(saved), self.partner_of(saved))

    def partner_of(self, x: "Tensor") -> "Tensor":
        """Return the other function of x."""
        result: Tensor = FUNCTIONS[self.partner].apply(x)
        return result

    def slope(self, x: "Tensor", own: "Tensor", other: "Tensor") -> "Tensor":
        """Return f'(x)."""
        raise NotImplementedError


def _divided(own: "Tensor", x: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return own / x, and where x is so near to 0 that its rounding counts.

    There the quotient is without a use, and without a derivative.
    """
    near = wrap(compare(np.less_equal, np.abs(x._array), 2.0 ** (-52 if x.itemsize == 8 else -23)))
    return own / x.masked_fill(near, 1), near


class I0(KernelUnary):
    """The modified Bessel function of order 0; keeps x."""

    ufunc = kernel("i0")
    backward_kernel = kernel("i0_backward")

    @classmethod
    def derivative(cls, saved: "Tensor") -> "Tensor":
        return SpecialI1.apply(saved)


class SpecialI1(KernelUnary):
    """The modified Bessel function of order 1; keeps x."""

    ufunc = kernel("i1")
    backward_kernel = kernel("i1_backward")

    @classmethod
    def derivative(cls, saved: "Tensor") -> "Tensor":
        quotient, near_zero = _divided(SpecialI1.apply(saved), saved)
        return (I0.apply(saved) - quotient).masked_fill(near_zero, 0.5)


class SpecialI0E(KernelUnary):
    """e^-|x| I0(x); keeps x."""

    torch_name = "SpecialI0EBackward0"
    ufunc = kernel("i0e")
    backward_kernel = kernel("i0e_backward")

    @classmethod
    def derivative(cls, saved: "Tensor") -> "Tensor":
        return SpecialI1E.apply(saved) - saved.sign() * SpecialI0E.apply(saved)


class SpecialI1E(KernelUnary):
    """e^-|x| I1(x); keeps x."""

    torch_name = "SpecialI1EBackward0"
    ufunc = kernel("i1e")
    backward_kernel = kernel("i1e_backward")

    @classmethod
    def derivative(cls, saved: "Tensor") -> "Tensor":
        own = SpecialI1E.apply(saved)
        quotient, near_zero = _divided(own, saved)
        slope = SpecialI0E.apply(saved) - own * saved.sign() - quotient
        return slope.masked_fill(near_zero, 0.5)


class BesselJ0(_OfPair):
    """The Bessel function J0 of the first kind; keeps x."""

    ufunc = scipy_function("j0")
    partner = "bessel_j1"

    def derivative(self, saved: "Tensor") -> "Tensor":
        return -self.partner_of(saved)


class BesselJ1(_OfPair):
    """The Bessel function J1 of the first kind; keeps x."""

    ufunc = scipy_function("j1")
    partner = "bessel_j0"

    def slope(self, x: "Tensor", own: "Tensor", other: "Tensor") -> "Tensor":
        quotient, near_zero = _divided(own, x)
        return (other - quotient).masked_fill(near_zero, 0.5)


class BesselY0(_OfPair):
    """The Bessel function Y0 of the second kind; keeps x."""

    ufunc = scipy_function("y0")
    partner = "bessel_y1"

    def derivative(self, saved: "Tensor") -> "Tensor":
        return -self.partner_of(saved)


class BesselY1(_OfPair):
    """The Bessel function Y1 of the second kind; keeps x."""

    ufunc = scipy_function("y1")
    partner = "bessel_y0"

    def slope(self, x: "Tensor", own: "Tensor", other: "Tensor") -> "Tensor":
        return other - own / x


class ModifiedBesselK0(_OfPair):
    """The modified Bessel function K0 of the second kind; keeps x."""

    ufunc = scipy_function("k0")
    partner = "modified_bessel_k1"

    def derivative(self, saved: "Tensor") -> "Tensor":
        return -self.partner_of(saved)


class ModifiedBesselK1(_OfPair):
    """The modified Bessel function K1 of the second kind; keeps x."""

    ufunc = scipy_function("k1")
    partner = "modified_bessel_k0"

    def slope(self, x: "Tensor", own: "Tensor", other: "Tensor") -> "Tensor":
        return -other - own / x


class ScaledModifiedBesselK0(_OfPair):
    """e^x K0(x); keeps x."""

    ufunc = scipy_function("k0e")
    partner = "scaled_modified_bessel_k1"

    def slope(self, x: "Tensor", own: "Tensor", other: "Tensor") -> "Tensor":
        return own - other


class ScaledModifiedBesselK1(_OfPair):
    """e^x K1(x); keeps x."""

    ufunc = scipy_function("k1e")
    partner = "scaled_modified_bessel_k0"

    def slope(self, x: "Tensor", own: "Tensor", other: "Tensor") -> "Tensor":
        return own - other - own / x


class SpecialXlog1Py(Broadcasting):
    """a log(1 + b), and 0 where a is 0; keeps both."""

    torch_name = "SpecialXlog1PyBackward0"

    def forward(self, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        from scipy.special import xlog1py as scipy_xlog1py

        self.save(self=a, other=b)
        return compute(lambda a, b, out: scipy_xlog1py(a, b, out=out, casting="unsafe"),
                       *self.operands(dtype, a, b))  # fmt: skip

    def backward(self, grad: "Tensor") -> Any:
        """d(a log(1 + b)) = log(1 + b) da + a/(1 + b) db."""
        need_a, need_b = self.needs_input_grad
        a, b = self.saved("self"), self.saved("other")
        grad_a = None
        if need_a:
            undefined = wrap((a._array == 0) & compare(np.less_equal, b._array, -1))
            grad_a = xlog1py(grad, b).masked_fill(undefined, 0)
        return self.reduced(grad_a, grad * (a / (b + 1)) if need_b else None)


class SpecialZeta(Broadcasting):
    """Hurwitz's zeta function, the sum of (q + k)^-x; keeps both."""

    def forward(self, x: Array, q: Array, dtype: np.dtype[Any]) -> Array:
        from scipy.special import zeta as scipy_zeta

        self.save(self=x, other=q)
        first, second = self.operands(dtype, x, q)
        return compute(partial(kernels.elementary, scipy_zeta), first, second)

    def backward(self, grad: "Tensor") -> Any:
        """d zeta(x, q)/dq = -x zeta(x + 1, q); that of x is not known in closed form."""
        if self.needs_input_grad[0]:
            raise RuntimeError(
                "the derivative for 'special_zeta: input' is not implemented: only `other` has a "
                "gradient; detach `input`"
            )
        x, q = self.saved("self"), self.saved("other")
        return self.reduced(None, grad * (-x * zeta(x + 1, q)))


def _airy(part: int) -> Any:
    """Return the function of part `part` of what ``scipy.special.airy`` returns."""

    def run(x: Array, out: Array) -> None:
        from scipy.special import airy

        np.copyto(out, airy(x)[part], casting="unsafe")

    return staticmethod(run)


class SpecialAiryAi(Unary):
    """Airy's function Ai; keeps x."""

    torch_name = "SpecialAiryAiBackward0"
    ufunc = _airy(0)

    def derivative(self, saved: "Tensor") -> "Tensor":
        return AiryAiSlope.apply(saved)


class AiryAiSlope(Unary):
    """The derivative of Airy's function Ai; keeps x."""

    ufunc = _airy(1)

    def derivative(self, saved: "Tensor") -> "Tensor":
        return saved * SpecialAiryAi.apply(saved)  # Abramowitz and Stegun, 10.4.1


FUNCTIONS: dict[str, type[Unary]] = {
    "airy_ai": SpecialAiryAi,
    "bessel_j0": BesselJ0,
    "bessel_j1": BesselJ1,
    "bessel_y0": BesselY0,
    "bessel_y1": BesselY1,
    "entr": SpecialEntr,
    "erfcx": SpecialErfcx,
    "i0": I0,
    "i0e": SpecialI0E,
    "i1": SpecialI1,
    "i1e": SpecialI1E,
    "log_ndtr": SpecialLogNdtr,
    "modified_bessel_k0": ModifiedBesselK0,
    "modified_bessel_k1": ModifiedBesselK1,
    "ndtr": SpecialNdtr,
    "ndtri": SpecialNdtri,
    "scaled_modified_bessel_k0": ScaledModifiedBesselK0,
    "scaled_modified_bessel_k1": ScaledModifiedBesselK1,
}
"""The operations of one argument by their public names."""


def public(name: str) -> Any:
    """Return the function that users call `name`."""
    operation = FUNCTIONS[name]

    def function(input: "Tensor") -> "Tensor":
        return operation.apply(_real(input, name))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return this function of each element: {operation.__doc__}"
    return function


def spherical_bessel_j0(input: "Tensor") -> "Tensor":
    """Return the spherical Bessel function of order 0 of each element: sin(x) / x, 1 at 0."""
    x = _real(input, "spherical_bessel_j0")
    array = x._array
    is_small, is_infinite = wrap(np.abs(array) < 0.1), wrap(np.isinf(array))
    square = x * x
    series = 1 - square / 6 * (1 - square / 20 * (1 - square / 42 * (1 - square / 72)))
    far = x.masked_fill(wrap((np.abs(array) < 0.1) | np.isinf(array)), 1)
    return where(is_small, series, sin(far) / far).masked_fill(is_infinite, 0)


def xlog1py(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return ``input * log1p(other)``, 0 where `input` is 0."""
    a, b, dtype = ordered_floats("xlog1py", input, other)
    return SpecialXlog1Py.apply(a, b, dtype=dtype)


def zeta(input: TensorLike, other: TensorLike) -> "Tensor":
    """Return Hurwitz's zeta function; the gradient of `input` raises."""
    a, b, dtype = ordered_floats("zeta", input, other)
    return SpecialZeta.apply(a, b, dtype=dtype)


i0 = public("i0")
i0_ = inplace_form(i0)
