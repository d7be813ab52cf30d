"""Piecewise constant functions: rounding and sign."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.ops._core.broadcasting import (
    compute,
)
from offgrad.ops._core.dtypes import category, check_ordered, check_tensor, not_implemented
from offgrad.ops._core.inplace_forms import inplace_form

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "ceil",
    "ceil_",
    "fix",
    "fix_",
    "floor",
    "floor_",
    "frac",
    "frac_",
    "round",
    "round_",
    "sign",
    "trunc",
    "trunc_",
]


class Stepwise(Op):
    """floor, ceil, round, trunc, sign: the gradient is 0; keeps nothing."""

    def forward(self, x: Array, ufunc: Any, decimals: int = 0) -> Array:
        self.self_sym_sizes = x.shape
        if decimals:
            out = memory.empty(x.shape, x.dtype)
            np.round(x, decimals, out=out)
            return out
        return compute(ufunc, x)

    def backward(self, grad: "Tensor") -> Any:
        return grad.new_zeros(self.self_sym_sizes)


def sign_of(x: Array, out: Array) -> None:
    """Write the sign, -1, 0 or 1, or x/|x| for complex x; as PyTorch, 0 for a real NaN."""
    if category(x.dtype) == 2:
        kernels.sign(x, out)
    else:
        np.sign(x, out=out)


def _frac(x: Array, out: Array) -> None:
    np.trunc(x, out=out)
    np.subtract(x, out, out=out)


class Frac(Op):
    """x less its integer part; keeps nothing."""

    def forward(self, x: Array) -> Array:
        """Return the fractional part, with the sign of x."""
        return compute(partial(kernels.elementary, _frac), x)

    def backward(self, grad: "Tensor") -> Any:
        """The integer part is constant between its steps."""
        return grad


def _stepwise(input: "Tensor", ufunc: Any, kind: str, decimals: int = 0) -> "Tensor":
    if check_tensor(input, kind)._array.dtype.kind == "c":
        reason = "it needs an order, which complex numbers lack"
        raise not_implemented(kind, input._array.dtype, reason)
    if input._array.dtype == np.bool_:
        raise not_implemented(kind, input._array.dtype, "convert to a number")
    if input._array.dtype.kind in "iu" and kind != "sign":
        if decimals:
            raise NotImplementedError("round to decimals is defined for floating point tensors")
        return input.clone()
    name = f"{kind.capitalize()}Backward{1 if decimals else 0}"
    return Stepwise.named(name).apply(input, ufunc=ufunc, decimals=decimals)


def floor(input: "Tensor") -> "Tensor":
    """Return the largest integer not above `input`, as the same dtype."""
    return _stepwise(input, np.floor, "floor")


def ceil(input: "Tensor") -> "Tensor":
    """Return the smallest integer not below `input`, as the same dtype."""
    return _stepwise(input, np.ceil, "ceil")


def round(input: "Tensor", *, decimals: int = 0) -> "Tensor":
    """Return the nearest number with `decimals` decimals, halves to even, as the same dtype."""
    return _stepwise(input, np.rint, "round", decimals)


def trunc(input: "Tensor") -> "Tensor":
    """Return the integer part, as the same dtype."""
    return _stepwise(input, np.trunc, "trunc")


def frac(input: "Tensor") -> "Tensor":
    """Return ``input - trunc(input)``."""
    check_ordered(check_tensor(input, "frac"), "frac")
    if input._array.dtype.kind in "biu":
        raise NotImplementedError(
            f"frac is defined for floating point tensors, got {input._array.dtype.name}"
        )
    return Frac.apply(input)


def sign(input: "Tensor") -> "Tensor":
    """Return the sign of a real tensor: -1, 0 or 1.

    Raises:
        NotImplementedError: for complex tensors, which have `sgn`.
    """
    if check_tensor(input, "sign")._array.dtype.kind == "c":
        raise NotImplementedError("sign is not defined for complex tensors; use sgn()")
    if input._array.dtype == np.bool_:
        return input.clone()
    return _stepwise(input, sign_of, "sign")


fix = trunc


ceil_ = inplace_form(ceil)
fix_ = inplace_form(fix)
floor_ = inplace_form(floor)
frac_ = inplace_form(frac)
round_ = inplace_form(round)
trunc_ = inplace_form(trunc)
