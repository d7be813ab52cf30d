"""Activation functions with fused kernels."""

from math import pi, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.broadcasting import (
    compute,
)
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import category, check_tensor, real_floating
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._elementwise.exponential import exp
from offgrad.ops._elementwise.special import erf
from offgrad.ops._elementwise.trigonometry import tanh

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "gelu",
    "relu",
    "relu_",
]


class Relu(Op):
    """max(x, 0); keeps the result. The gradient at 0 is 0."""

    backward_takes_arrays = True
    is_recomputable = True

    def forward(self, x: Array) -> Array:
        if x.nbytes < memory.POOL_THRESHOLD or category(x.dtype) != 2:
            result = compute(np.maximum, x, np.zeros((), x.dtype))
        else:
            result = memory.empty(x.shape, x.dtype)
            kernels.relu(memory.contiguous(x), result)
        self.save(result=result)
        return result

    def backward(self, grad: "Tensor") -> Any:
        return ReluBackward.compute(grad, self.saved("result"))


class ReluBackward(Op):
    """grad where the result was positive, else 0; keeps the result."""

    torch_name = "ThresholdBackwardBackward0"
    is_elementwise = True

    def forward(self, grad: Array, result: Array) -> Array:
        self.save(result=result)
        # The result is never negative; the gradient passes where it is NaN, so that NaN stays.
        if grad.nbytes < memory.POOL_THRESHOLD:
            out = memory.zeros(grad.shape, grad.dtype)
            np.copyto(out, grad, where=result.astype(np.bool_))
            return out
        out = memory.empty(grad.shape, grad.dtype)
        if grad.dtype.kind != "f":
            # Bits times 0 or 1, as integers: the product of a gradient that is not finite is NaN.
            bits = f"u{grad.dtype.itemsize}"
            np.multiply(grad.view(bits), result != 0, out=out.view(bits))
        else:
            kernels.relu_backward(grad, result, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Mask the gradient: the mask itself has no derivative."""
        return ReluBackward.apply(grad, self.saved("result")), None


class Gelu(Op):
    """x Phi(x), Phi the normal distribution (Hendrycks and Gimpel, 2016); keeps x."""

    backward_takes_arrays = True
    is_recomputable = True

    def forward(self, x: Array, approximate: str) -> Array:
        self.approximate = approximate
        self.save(self=x)
        out = memory.empty(x.shape, x.dtype)
        kernels.gelu(memory.contiguous(x), out, approximate)  # type: ignore[arg-type]
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Multiply by the derivative, in one kernel."""
        return GeluBackward.compute(grad, self.saved("self"), approximate=self.approximate)


class GeluBackward(Op):
    """grad times the derivative of GELU at x; keeps both."""

    is_elementwise = True

    def forward(self, grad: Array, x: Array, approximate: str) -> Array:
        self.approximate = approximate
        self.save(grad=grad, self=x)
        out = memory.empty(x.shape, x.dtype)
        kernels.gelu_backward(memory.contiguous(grad), memory.contiguous(x), out, approximate)  # type: ignore[arg-type]
        return out

    def backward(self, grad: "Tensor") -> Any:
        slope = _gelu_slope if self.approximate == "none" else _gelu_slope_tanh
        inputs = (self.saved("grad"), self.saved("self"))
        return differentiate(lambda g, x: g * slope(x), inputs, (grad,), self.needs_input_grad)


def _gelu_slope(x: "Tensor") -> "Tensor":
    """Phi(x) + x phi(x)."""
    density = exp(x * x * -0.5) * (1 / sqrt(2 * pi))
    return (erf(x * sqrt(0.5)) + 1) * 0.5 + x * density


def _gelu_slope_tanh(x: "Tensor") -> "Tensor":
    """The derivative of x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""
    t = tanh((x + x**3 * 0.044715) * sqrt(2 / pi))
    return (t + 1) * 0.5 + x * 0.5 * (1 - t * t) * ((x * x * (3 * 0.044715) + 1) * sqrt(2 / pi))


def relu(input: "Tensor") -> "Tensor":
    """Return ``max(input, 0)``."""
    if category(check_tensor(input, "relu")._array.dtype) not in (1, 2):
        raise NotImplementedError(f"relu is defined for real numbers, got a {describe(input)}")
    return Relu.apply(input)


def gelu(input: "Tensor", approximate: str = "none") -> "Tensor":
    """Return the Gaussian error linear unit, exact or by its ``"tanh"`` approximation."""
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return Gelu.apply(real_floating(input, "gelu"), approximate=approximate)


relu_ = inplace_form(relu)
