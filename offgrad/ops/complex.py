"""Magnitude and sign, and the parts of complex numbers."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.op import Array, Op
from offgrad.ops.arithmetic import compute, conj
from offgrad.ops.convert import check_tensor

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


class Abs(Op):
    """|x|; keeps x. The gradient at 0 is 0."""

    def forward(self, x: Array) -> Array:
        """Return the absolute value; real for complex x."""
        self.save(self=x)
        return compute(np.abs, x, dtype=np.abs(np.empty(0, x.dtype)).dtype)

    def backward(self, grad: "Tensor") -> Any:
        """d|x| = sgn(x) dx, with sgn(x) = x/|x| for complex x."""
        return grad * sgn(self.saved("self"))


class Sgn(Op):
    """x/|x|, and 0 at 0; keeps x if it is complex."""

    def forward(self, x: Array) -> Array:
        """Return the sign."""
        self.shape, self.is_complex = x.shape, x.dtype.kind == "c"
        self.save(self=x if self.is_complex else None)
        return compute(np.sign, x)

    def backward(self, grad: "Tensor") -> Any:
        """Zero for real x; for complex x the part of the gradient along the circle, over |x|."""
        if not self.is_complex:
            return grad.new_zeros(self.shape)
        from offgrad.ops.compare import where

        x = self.saved("self")
        radius = x.abs()
        safe = where(radius == 0, radius.new_ones(()), radius)
        direction = x / safe
        across = (grad - direction * (conj(direction) * grad).real.to(x.dtype)) / safe
        return where(radius == 0, grad.new_zeros(()), across)


class ConjPhysical(Op):
    """The complex conjugate; keeps nothing."""

    def forward(self, x: Array) -> Array:
        """Return the conjugate."""
        return compute(np.conjugate, x)

    def backward(self, grad: "Tensor") -> Any:
        """Conjugate."""
        return conj(grad)


class Real(Op):
    """The real part of a complex tensor, a view; keeps nothing."""

    is_view = True

    def forward(self, x: Array) -> Array:
        """Return the view."""
        self.dtype = x.dtype
        view: Array = x.real
        return view

    def backward(self, grad: "Tensor") -> Any:
        """The gradient is real."""
        return grad.to(self.dtype)


class Imag(Op):
    """The imaginary part of a complex tensor, a view; keeps nothing."""

    is_view = True

    def forward(self, x: Array) -> Array:
        """Return the view."""
        self.dtype = x.dtype
        return x.imag

    def backward(self, grad: "Tensor") -> Any:
        """The gradient is imaginary."""
        return grad.to(self.dtype) * 1j


def abs(input: "Tensor") -> "Tensor":
    """Return the absolute value."""
    if check_tensor(input, "abs")._array.dtype == np.bool_:
        raise RuntimeError("abs is not defined for bool tensors; convert to a number")
    return Abs.apply(input)


def sgn(input: "Tensor") -> "Tensor":
    """Return the sign: -1, 0 or 1; for complex `input` the point of the unit circle."""
    return Sgn.apply(check_tensor(input, "sgn"))


def sign(input: "Tensor") -> "Tensor":
    """Return the sign of a real tensor: -1, 0 or 1.

    Raises:
        RuntimeError: for complex tensors, which have `sgn`.
    """
    if check_tensor(input, "sign")._array.dtype.kind == "c":
        raise RuntimeError("sign is not defined for complex tensors; use sgn()")
    return Sgn.apply(input)


def conj_physical(input: "Tensor") -> "Tensor":
    """Return the complex conjugate, computed; a real tensor is returned as it is."""
    if check_tensor(input, "conj")._array.dtype.kind != "c":
        return input
    return ConjPhysical.apply(input)


def real(input: "Tensor") -> "Tensor":
    """Return a view of the real part; a real tensor is returned as it is."""
    if check_tensor(input, "real")._array.dtype.kind != "c":
        return input
    return Real.apply(input)


def imag(input: "Tensor") -> "Tensor":
    """Return a view of the imaginary part of a complex tensor.

    Raises:
        RuntimeError: for real tensors.
    """
    if check_tensor(input, "imag")._array.dtype.kind != "c":
        raise RuntimeError(f"imag is defined for complex tensors, got {input._array.dtype.name}")
    return Imag.apply(input)
