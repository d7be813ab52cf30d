"""Piecewise activation functions, each one operation that keeps its input."""

from math import inf, nan, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, numpy_dtype
from offgrad.ops._core.autocast import lower_precision
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import (
    category,
    check_tensor,
    element,
    real_floating,
    shape_error,
)
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._elementwise.comparison import where
from offgrad.ops._nn.smooth_activations import Activation, FusedActivation
from offgrad.ops._random.samples import rand_like
from offgrad.ops._reduction.sums import sum_to_size

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "prelu",
    "relu6",
    "rrelu",
    "rrelu_",
    "softshrink",
    "threshold",
    "threshold_",
]


Slopes = tuple[float, float, float, float, float, float]
"""Bounds, the slopes between and outside them, that of NaN, and that which lets nothing pass.

A bound or slope of NaN does not count."""


class TwoSlopes(Activation):
    """A function with one slope between two bounds, and another outside; keeps the input."""

    backward_takes_arrays = True

    def backward(self, grad: "Tensor") -> Any:
        """Multiply by the slopes, in one pass."""
        x = self.saved("self")
        op = TwoSlopesBackward.named(f"{type(self).__name__[:-1]}Backward0")
        return op.compute(grad, x, slopes=self.slopes(numpy_dtype(x)))

    def slopes(self, dtype: np.dtype[Any]) -> Slopes:
        """Return the slopes, with bounds for numbers of `dtype`."""
        raise NotImplementedError


class TwoSlopesBackward(Op):
    """grad times one of two slopes, which x decides; keeps x."""

    is_elementwise = True

    def forward(self, grad: Array, x: Array, slopes: Slopes) -> Array:
        self.slopes = slopes
        self.save(self=x)
        out = memory.empty(x.shape, x.dtype)
        kernels.two_slopes_backward(grad, x, out, *slopes)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Multiply by the same slopes, whose derivative is 0."""
        op = TwoSlopesBackward.named(type(self).__name__)
        return (
            op.apply(grad, self.saved("self"), slopes=self.slopes),
            grad.new_zeros(grad.shape) if self.needs_input_grad[1] else None,
        )


class LeakyRelu(TwoSlopes):
    """x above 0, else negative_slope x; keeps x. The derivative at 0 is the slope."""

    negative_slope: float

    def value(self, x: Array) -> Any:
        return np.where(x > 0, x, x * self.negative_slope)

    def write(self, x: Array, out: Array) -> None:
        kernels.two_slopes_backward(x, x, out, *self.slopes(x.dtype))

    def slopes(self, dtype: np.dtype[Any]) -> Slopes:
        """1 or the slope."""
        return 0, nan, 1, self.negative_slope, self.negative_slope, nan


class Hardtanh(TwoSlopes):
    """x limited to a range; keeps x. The derivative at the limits is 0."""

    min_val: float
    max_val: float

    def value(self, x: Array) -> Any:
        return np.clip(x, x.dtype.type(self.min_val), x.dtype.type(self.max_val))

    def write(self, x: Array, out: Array) -> None:
        low, high = x.dtype.type(self.min_val), x.dtype.type(self.max_val)
        kernels.clip(x, out, low, high)

    def slopes(self, dtype: np.dtype[Any]) -> Slopes:
        """1 within the range."""
        return self.min_val, self.max_val, 1, 0, 0, 0


class Hardsigmoid(TwoSlopes):
    """(x + 3) / 6 limited to 0 and 1; keeps x. The derivative at the limits is 0."""

    def value(self, x: Array) -> Any:
        return np.clip(x + 3, 0, 6) / 6

    def write(self, x: Array, out: Array) -> None:
        kernels.hardsigmoid(x, out)

    def slopes(self, dtype: np.dtype[Any]) -> Slopes:
        """1/6 within the limits."""
        return -3, 3, 1 / 6, 0, 0, 0


class Hardswish(FusedActivation):
    """x times hardsigmoid(x) (Howard et al., 2019); keeps x."""

    @staticmethod
    def value(x: Array, out: Array) -> None:
        kernels.hardswish(x, out)

    @staticmethod
    def gradient(grad: Array, x: Array, out: Array) -> None:
        kernels.hardswish_backward(grad, x, out)

    @staticmethod
    def slope(x: "Tensor") -> "Tensor":
        """x / 3 + 1/2 between -3 and 3, 0 below and 1 above; NaN has no second derivative."""
        ends = where(x.detach() >= 3, x.new_ones(()), x.new_full((), nan))
        middle = where(x < 3, x / 3 + 0.5, ends)
        return where(x <= -3, x.new_zeros(()), middle)


class Threshold(TwoSlopes):
    """x above the threshold, else a value; keeps x."""

    threshold: float
    replacement: float

    def value(self, x: Array) -> Any:
        bound = x.dtype.type(self.threshold) if x.dtype.kind == "f" else self.threshold
        return np.where(x <= bound, np.asarray(self.replacement, x.dtype), x)

    def write(self, x: Array, out: Array) -> None:
        if x.dtype.kind == "f":
            kernels.threshold(x, out, self.threshold, self.replacement)
        else:
            super().write(x, out)

    def slopes(self, dtype: np.dtype[Any]) -> Slopes:
        """1 above the threshold."""
        return self.threshold, nan, 1, 0, 1, 0


def _one_outside(bound: float, dtype: np.dtype[Any]) -> Slopes:
    """Return slopes of 1 outside [-bound, bound], 0 within; `bound` is rounded to `dtype`."""
    number = np.float64 if dtype.itemsize == 8 else np.float32
    beyond = float(np.nextafter(number(dtype.type(bound)), number(inf)))
    return -beyond, beyond, 0, 1, 0, 0


class Softshrink(TwoSlopes):
    """x moved by lambd towards 0, and 0 within [-lambd, lambd]; keeps x."""

    lambd: float

    def value(self, x: Array) -> Any:
        small = np.abs(x) <= self.lambd
        return np.where(small, 0, x - np.copysign(self.lambd, x))

    def write(self, x: Array, out: Array) -> None:
        kernels.shrink(x, out, self.lambd, self.lambd)

    def slopes(self, dtype: np.dtype[Any]) -> Slopes:
        """1 outside [-lambd, lambd]."""
        return _one_outside(self.lambd, dtype)


class Hardshrink(TwoSlopes):
    """x, and 0 within [-lambd, lambd]; keeps x."""

    lambd: float

    def value(self, x: Array) -> Any:
        return np.where(np.abs(x) <= self.lambd, 0, x)

    def write(self, x: Array, out: Array) -> None:
        kernels.shrink(x, out, self.lambd, 0)

    def slopes(self, dtype: np.dtype[Any]) -> Slopes:
        """1 outside [-lambd, lambd]."""
        return _one_outside(self.lambd, dtype)


class PreluKernel(Op):
    """x above 0, else a learned weight times x; keeps both."""

    is_recomputable = True

    def forward(self, x: Array, weight: Array) -> Array:
        """Return the values; the weight has one element, or the sizes 1 but for channels."""
        self.save(self=x, weight=weight)
        out = memory.empty(x.shape, x.dtype)
        kernels.prelu(_by_channel(x, weight), weight.reshape(-1), _by_channel(out, weight))
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Return both gradients, in one kernel."""
        inputs = self.saved("self"), self.saved("weight")
        return PreluKernelBackward.apply_all(grad, *inputs, needs=self.needs_input_grad)


class PreluKernelBackward(Op):
    """dx = g, or g w where x <= 0; dw = the sum of g x where x <= 0; keeps g, x and w."""

    def forward(
        self, grad: Array, x: Array, weight: Array, needs: tuple[bool, ...]
    ) -> tuple[Array | None, ...]:
        """Return the gradients that `needs` asks for."""
        self.needs = needs
        self.save(grad_output=grad, self=x, weight=weight)
        dx = memory.empty(x.shape, x.dtype) if needs[0] else None
        dweight = memory.empty(weight.shape, weight.dtype) if needs[1] else None
        kernels.prelu_backward(
            _by_channel(grad, weight),
            _by_channel(x, weight),
            weight.reshape(-1),
            None if dx is None else _by_channel(dx, weight),
            None if dweight is None else dweight.reshape(-1),
        )
        return dx, dweight

    def backward(self, *grads: "Tensor | None") -> Any:
        """Differentiate the formula."""

        def reference(g: "Tensor", x: "Tensor", weight: "Tensor") -> Any:
            zero = x.new_zeros(())
            shares = sum_to_size(where(x > 0, zero, g * x), weight.shape)
            results = where(x > 0, g, g * weight), shares
            return tuple(
                each if needed else None for each, needed in zip(results, self.needs, strict=True)
            )

        inputs = self.saved("grad_output"), self.saved("self"), self.saved("weight")
        return differentiate(reference, inputs, grads, self.needs_input_grad)


def _by_channel(x: Array, weight: Array) -> Array:
    """Return `x` as contiguous [N, C, L], with one channel for one weight."""
    if weight.size == 1:
        shape = (x.shape[0] if x.ndim else 1), 1, prod(x.shape[1:])
    else:
        shape = x.shape[0], x.shape[1], prod(x.shape[2:])
    return memory.contiguous(x).reshape(shape)


def _real(input: "Tensor", where: str) -> "Tensor":
    if category(check_tensor(input, where)._array.dtype) not in (1, 2):
        raise NotImplementedError(f"{where} is defined for real numbers, got a {describe(input)}")
    return input


def leaky_relu(input: "Tensor", negative_slope: float = 0.01) -> "Tensor":
    """Return `input`, and ``negative_slope * input`` below 0."""
    x = real_floating(input, "leaky_relu")
    return LeakyRelu.apply(x, negative_slope=float(negative_slope))


def rrelu(
    input: "Tensor", lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False
) -> "Tensor":
    """Return `input`, below 0 times a factor: random from `lower` to `upper` in training, else
    their mean.

    Raises:
        RuntimeError: if `lower` exceeds `upper`.
    """
    x = real_floating(input, "rrelu")
    if lower > upper:
        raise RuntimeError(f"rrelu: lower must not exceed upper, got {lower} and {upper}")
    if not training:
        return leaky_relu(x, (lower + upper) / 2)
    return x * where(x > 0, x.new_ones(()), rand_like(x) * (upper - lower) + lower)


@lower_precision
def prelu(input: "Tensor", weight: "Tensor") -> "Tensor":
    """Return `input`, and ``weight * input`` below 0, with one weight or one for each channel.

    Raises:
        RuntimeError: if the number of weights is neither 1 nor that of channels (dimension 1).
    """
    x = real_floating(input, "prelu")
    channels = x._array.shape[1] if x._array.ndim > 1 else 1
    if check_tensor(weight, "prelu")._array.ndim > 1 or weight._array.size not in (1, channels):
        raise RuntimeError(
            f"prelu: one weight, or one for each of {channels} channels, is needed, got a "
            f"{describe(weight)}"
        )
    if weight._array.dtype != x._array.dtype:
        raise shape_error("prelu", "dtypes must be equal", x, weight)
    if not x._array.ndim:
        weight = weight.reshape(())
    else:
        shape = [weight._array.size if axis == 1 else 1 for axis in range(x._array.ndim)]
        weight = weight.reshape(shape)
    return PreluKernel.apply(x, weight)


def hardtanh(input: "Tensor", min_val: float = -1.0, max_val: float = 1.0) -> "Tensor":
    """Return `input` limited to a range; the gradient at its ends is 0."""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val must not exceed max_val, got {min_val}, {max_val}")
    return Hardtanh.apply(_real(input, "hardtanh"), min_val=min_val, max_val=max_val)


def relu6(input: "Tensor") -> "Tensor":
    """Return `input` limited to 0 and 6."""
    return hardtanh(input, 0, 6)


def hardsigmoid(input: "Tensor") -> "Tensor":
    """Return ``(input + 3) / 6`` limited to 0 and 1."""
    return Hardsigmoid.apply(real_floating(input, "hardsigmoid"))


def hardswish(input: "Tensor") -> "Tensor":
    """Return ``input * hardsigmoid(input)``."""
    return Hardswish.apply(real_floating(input, "hardswish"))


def threshold(input: "Tensor", threshold: float, value: float) -> "Tensor":
    """Return `input` where it is above the threshold, else `value`."""
    return Threshold.apply(_real(input, "threshold"), threshold=threshold, replacement=value)


def softshrink(input: "Tensor", lambd: float = 0.5) -> "Tensor":
    """Return `input` moved towards 0 by `lambd`, and 0 within ``[-lambd, lambd]``.

    Raises:
        RuntimeError: if `lambd` is negative, infinite or NaN.
    """
    if not 0 <= lambd < inf:
        raise RuntimeError(f"softshrink: lambd must be finite and not negative, got {lambd}")
    return Softshrink.apply(real_floating(input, "softshrink"), lambd=float(lambd))


def hardshrink(input: "Tensor", lambd: float = 0.5) -> "Tensor":
    """Return `input`, and 0 within ``[-lambd, lambd]``.

    Raises:
        RuntimeError: if `lambd` does not fit into float16 or bfloat16 of `input`.
    """
    tensor = real_floating(input, "hardshrink")
    if kernels.is_half(tensor._array.dtype):
        lambd = float(element(lambd, tensor._array.dtype, "hardshrink"))
    return Hardshrink.apply(tensor, lambd=float(lambd))


rrelu_ = inplace_form(rrelu)
threshold_ = inplace_form(threshold)
