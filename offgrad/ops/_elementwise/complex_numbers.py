"""Magnitude, sign and angle; complex numbers from their parts, and their parts."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels
from offgrad._dtype import type_name
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.broadcasting import (
    Broadcasting,
    compute,
)
from offgrad.ops._core.broadcasting import (
    conj as conjugate,
)
from offgrad.ops._core.dtypes import (
    category,
    check_broadcastable,
    check_tensor,
    floating,
    not_implemented,
)
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._elementwise.rounding import sign_of

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "abs",
    "abs_",
    "absolute",
    "angle",
    "complex",
    "conj",
    "conj_physical",
    "conj_physical_",
    "imag",
    "is_complex",
    "is_floating_point",
    "polar",
    "real",
    "resolve_conj",
    "sgn",
    "view_as_complex",
    "view_as_real",
]

_COMPLEX_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.complex64),
    "float64": np.dtype(np.complex128),
}


class Abs(Op):
    """|x|; keeps x. The gradient at 0 is 0."""

    is_recomputable = True

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
        self.self_sym_sizes, self.is_complex = x.shape, x.dtype.kind == "c"
        self.save(self=x if self.is_complex else None)
        return compute(sign_of, x)

    def backward(self, grad: "Tensor") -> Any:
        """Zero for real x; for complex x the gradient's tangential part over |x|."""
        if not self.is_complex:
            return grad.new_zeros(self.self_sym_sizes)
        x = self.saved("self")
        radius = x.abs()
        safe = radius.new_ones(()).where(radius == 0, radius)
        direction = x / safe
        tangential = (grad - direction * (conjugate(direction) * grad).real) / safe
        return grad.new_zeros(()).where(radius == 0, tangential)


class Angle(Op):
    """The angle of a complex number; keeps it. A real number has angle 0 or pi: gradient 0."""

    def forward(self, x: Array) -> Array:
        self.self_sym_sizes, self.is_complex = x.shape, x.dtype.kind == "c"
        self.save(self=x if self.is_complex else None)
        if self.is_complex:
            return compute(np.arctan2, x.imag, x.real)
        return compute(kernels.angle, x)

    def backward(self, grad: "Tensor") -> Any:
        """d angle(x) = Im(conj(x) dx)/|x|^2, and 0 at 0."""
        if not self.is_complex:
            return grad.new_zeros(self.self_sym_sizes)
        x = self.saved("self")
        # i x/|x|^2 is i/conj(x), which does not overflow.
        slope = 1j / conjugate(x)
        return (grad * slope).masked_fill(wrap(x._array == 0), 0)


class ConjPhysical(Op):
    """The complex conjugate in new memory; keeps nothing."""

    def forward(self, x: Array) -> Array:
        return compute(np.conjugate, x)

    def backward(self, grad: "Tensor") -> Any:
        return conjugate(grad)


class ViewAsReal(Op):
    """Real and imaginary part along a new last dimension, a view; keeps nothing."""

    is_view = True

    def forward(self, x: Array) -> Array:
        return np.lib.stride_tricks.as_strided(
            x.real, (*x.shape, 2), (*x.strides, x.dtype.itemsize // 2)
        )

    def backward(self, grad: "Tensor") -> Any:
        """Join the parts of the gradient."""
        return view_as_complex(grad.contiguous())


class ViewAsComplex(Op):
    """Pairs along the last dimension as complex numbers, a view; keeps nothing."""

    is_view = True

    def forward(self, x: Array) -> Array:
        dtype = _COMPLEX_DTYPES[x.dtype.name]
        if not x.size:  # strides of an empty array may be anything
            return np.empty(x.shape[:-1], dtype)
        view: Array = x.view(dtype)[..., 0]
        return view

    def backward(self, grad: "Tensor") -> Any:
        return view_as_real(grad)


class Complex(Broadcasting):
    """A complex number from its parts; keeps nothing."""

    def forward(self, real: Array, imag: Array) -> Array:
        self.shapes = real.shape, imag.shape
        dtype = _COMPLEX_DTYPES[real.dtype.name]
        return compute(partial(kernels.elementary, _complex), real, imag, dtype=dtype)

    def backward(self, grad: "Tensor") -> Any:
        need_real, need_imag = self.needs_input_grad
        return self.reduced(real(grad) if need_real else None, imag(grad) if need_imag else None)


def _complex(a: Array, b: Array, out: Array) -> None:
    out.real, out.imag = a, b


class Polar(Broadcasting):
    """A complex number from magnitude and angle; keeps the angle if the magnitude needs a gradient,
    and the result if the angle does.
    """

    def forward(self, magnitude: Array, angle: Array) -> Array:
        self.shapes = magnitude.shape, angle.shape
        need_magnitude, need_angle = self.needs_input_grad
        dtype = _COMPLEX_DTYPES[magnitude.dtype.name]
        result = compute(partial(kernels.elementary, _polar), magnitude, angle, dtype=dtype)
        self.save(angle=angle if need_magnitude else None, result=result if need_angle else None)
        return result

    def backward(self, grad: "Tensor") -> Any:
        """d(r e^(it)) = e^(it) dr + i r e^(it) dt."""
        need_magnitude, need_angle = self.needs_input_grad
        grad_magnitude = grad_angle = None
        if need_magnitude:
            angle = self.saved("angle")
            grad_magnitude = real(grad) * angle.cos() + imag(grad) * angle.sin()
        if need_angle:
            grad_angle = real(conjugate(grad) * (self.saved("result") * 1j))
        return self.reduced(grad_magnitude, grad_angle)


def _polar(magnitude: Array, angle: Array, out: Array) -> None:
    np.multiply(magnitude, np.cos(angle), out=out.real)
    np.multiply(magnitude, np.sin(angle), out=out.imag)


def abs(input: "Tensor") -> "Tensor":
    """Return the absolute value."""
    if check_tensor(input, "abs")._array.dtype == np.bool_:
        raise not_implemented("abs", input._array.dtype, "convert to a number")
    return Abs.apply(input)


def sgn(input: "Tensor") -> "Tensor":
    """Return the sign: -1, 0 or 1, 0 for NaN; ``input / abs(input)`` of complex numbers."""
    if check_tensor(input, "sgn")._array.dtype == np.bool_:
        return input.clone()
    return Sgn.apply(input)


def angle(input: "Tensor") -> "Tensor":
    """Return the angle of complex numbers, from -pi to pi; pi for negative real ones, else 0."""
    return Angle.apply(floating(input, "angle"))


def conj(input: "Tensor") -> "Tensor":
    """Return the complex conjugate; of a real tensor the tensor itself.

    The result has its own memory: PyTorch's is a view that conjugates later.
    """
    if check_tensor(input, "conj")._array.dtype.kind != "c":
        return input
    return ConjPhysical.named("ConjBackward0").apply(input)


def conj_physical(input: "Tensor") -> "Tensor":
    """Return the complex conjugate in new memory; of a real tensor the tensor itself."""
    if check_tensor(input, "conj_physical")._array.dtype.kind != "c":
        return input
    return ConjPhysical.apply(input)


def resolve_conj(input: "Tensor") -> "Tensor":
    """Return `input`: conjugation is never deferred."""
    return check_tensor(input, "resolve_conj")


def view_as_real(input: "Tensor") -> "Tensor":
    """Return a real view of a complex tensor, its parts along a new last dimension.

    Raises:
        RuntimeError: for real tensors.
    """
    if check_tensor(input, "view_as_real")._array.dtype.kind != "c":
        raise RuntimeError(
            f"view_as_real is only supported for complex tensors, got {input._array.dtype.name}"
        )
    return ViewAsReal.apply(input)


@full_precision
def view_as_complex(input: "Tensor") -> "Tensor":
    """Return a complex view of a float32 or float64 tensor, whose last dimension holds the parts.

    Raises:
        RuntimeError: for other dtypes; if the last dimension is not of size 2 and stride 1, or
            another stride is odd.
    """
    array = check_tensor(input, "view_as_complex")._array
    if array.dtype.name not in _COMPLEX_DTYPES:
        raise RuntimeError(
            f"view_as_complex is defined for float32 and float64 tensors, got {array.dtype.name}"
        )
    if array.ndim == 0 or array.shape[-1] != 2:
        raise RuntimeError(
            f"view_as_complex: Tensor must have a last dimension of size 2, got a {describe(input)}"
        )
    steps = input.stride()
    if array.size and (steps[-1] != 1 or any(step % 2 for step in steps[:-1])):
        raise RuntimeError(
            "view_as_complex needs pairs next to each other in memory (last stride 1, the others "
            f"even), got strides {steps}; use contiguous()"
        )
    return ViewAsComplex.apply(input)


def _parts(where: str, a: "Tensor", b: "Tensor") -> "tuple[Tensor, Tensor]":
    dtypes = [check_tensor(each, where)._array.dtype for each in (a, b)]
    if dtypes[0].name not in _COMPLEX_DTYPES or dtypes[0] != dtypes[1]:
        first, second = map(type_name, dtypes)
        problem = "Expected both inputs to be Half, Float or Double tensors"
        if {dtypes[0].name, dtypes[1].name} <= set(_COMPLEX_DTYPES):
            problem = f"Expected object of scalar type {first} but got scalar type {second} for "
            problem += "second argument,"
        raise RuntimeError(f"{where}: {problem} but got {first} and {second}; convert them")
    check_broadcastable(where, a, b)
    return a, b


def complex(real: "Tensor", imag: "Tensor") -> "Tensor":
    """Return complex numbers of the given parts, both float32 or both float64."""
    return Complex.apply(*_parts("complex", real, imag))


@full_precision
def polar(abs: "Tensor", angle: "Tensor") -> "Tensor":
    """Return complex numbers of the given magnitude and angle, both float32 or both float64."""
    return Polar.apply(*_parts("polar", abs, angle))


def real(input: "Tensor") -> "Tensor":
    """Return a view of the real part; of a real tensor the tensor itself."""
    if check_tensor(input, "real")._array.dtype.kind != "c":
        return input
    return view_as_real(input).select(-1, 0)


def imag(input: "Tensor") -> "Tensor":
    """Return a view of the imaginary part of a complex tensor.

    Raises:
        RuntimeError: for real tensors.
    """
    if check_tensor(input, "imag")._array.dtype.kind != "c":
        raise RuntimeError(
            "imag is not implemented for tensors with non-complex dtypes, got "
            f"{input._array.dtype.name}"
        )
    return view_as_real(input).select(-1, 1)


def is_complex(input: "Tensor") -> bool:
    """Return whether the dtype is complex."""
    return check_tensor(input, "is_complex")._array.dtype.kind == "c"


def is_floating_point(input: "Tensor") -> bool:
    """Return whether the dtype is a real floating point type."""
    return category(check_tensor(input, "is_floating_point")._array.dtype) == 2


absolute = abs


_abs_ = inplace_form(abs)


def abs_(input: "Tensor") -> "Tensor":
    """Replace the elements by their absolute values; return the tensor.

    Raises:
        RuntimeError: for complex numbers, whose absolute values are real.
    """
    if check_tensor(input, "abs_")._array.dtype.kind == "c":
        raise RuntimeError(
            f"In-place abs is not supported for complex tensors, got a {describe(input)}; use abs()"
        )
    return _abs_(input)


absolute_ = abs_
conj_physical_ = inplace_form(conj_physical)
