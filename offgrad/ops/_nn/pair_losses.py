"""Losses of pairs of elements as operations: fused forward and fused gradients."""

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._elementwise.clamping import clamp
from offgrad.ops._elementwise.comparison import where
from offgrad.ops._elementwise.exponential import log, log1p, sigmoid

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def _prepared(x: Array) -> Array:
    """Return an array that kernels take: contiguous, 16-bit floats as float32."""
    return memory.contiguous(x.astype(np.float32) if x.dtype.itemsize == 2 else x)


class PairLoss(Op):
    """A function of each pair of elements, optionally reduced; keeps both.

    Parameters become attributes.
    """

    # Whether the loss depends on x - target alone, so that both derivatives add up to 0.
    is_of_difference: ClassVar[bool] = True

    reduction: int
    count: int

    def forward(self, x: Array, target: Array, reduction: int, **parameters: Any) -> Array:
        """Return the losses, or their mean or sum."""
        self.reduction, self.count = reduction, x.size
        self.__dict__.update(parameters)
        self.save(self=x, target=target)
        a, b, kernel = _prepared(x), _prepared(target), self.kernel()
        if reduction:
            total = kernel.total(a, b)
            with np.errstate(all="ignore"):
                mean = np.float64(total) / (x.size if reduction == 1 else 1)
            return np.asarray(mean, x.dtype)
        out = memory.empty(x.shape, a.dtype)
        kernel.values(a, b, out)
        return out if out.dtype == x.dtype else out.astype(x.dtype)

    def backward(self, grad: "Tensor") -> Any:
        need_x, need_target = self.needs_input_grad
        x, target = self.saved("self"), self.saved("target")
        grad_x = grad_target = None
        if need_x or self.is_of_difference:
            name = self.name().replace("Backward0", "BackwardBackward0")
            grad_x = PairLossBackward.named(name).apply(grad, x, target, loss=self)
        if need_target and self.is_of_difference:
            assert grad_x is not None
            grad_target = -grad_x
        elif need_target:
            grad_target = self.scaled(grad) * self.target_slope(x, target)
        return grad_x if need_x else None, grad_target

    def scaled(self, grad: "Tensor") -> "Tensor":
        """Return the gradient of each loss: `grad`, over the number of losses for their mean."""
        return grad / self.count if self.reduction == 1 else grad

    def kernel(self) -> "kernels.PairLoss":
        """Return the loss as a kernel."""
        raise NotImplementedError

    def slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """Return the derivative by x, in differentiable operations."""
        raise NotImplementedError

    def target_slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """Return the derivative by the target, where it is not minus the one by x."""
        raise NotImplementedError


class PairLossBackward(Op):
    """A gradient times the derivative of a loss by x, in one pass; keeps all three."""

    torch_name = "PairLossBackwardBackward0"

    def forward(self, grad: Array, x: Array, target: Array, loss: PairLoss) -> Array:
        """Return the gradient of x."""
        # Parameters of the loss, without its saved tensors.
        self.scaled, self.slope = loss.scaled, loss.slope
        self.save(grad_output=grad, self=x, target=target)
        a, b = _prepared(x), _prepared(target)
        out = memory.empty(x.shape, a.dtype)
        scale: Any = _prepared(grad)
        if loss.reduction:
            divisor = loss.count if loss.reduction == 1 else 1
            with np.errstate(all="ignore"):
                scale = a.dtype.type(scale / a.dtype.type(divisor))
        loss.kernel().slopes(a, b, scale, out)
        return out if out.dtype == x.dtype else out.astype(x.dtype)

    def backward(self, grad: "Tensor") -> Any:
        inputs = self.saved("grad_output"), self.saved("self"), self.saved("target")
        return differentiate(
            lambda g, x, target: self.scaled(g) * self.slope(x, target),
            inputs,
            (grad,),
            self.needs_input_grad,
        )


class MseLoss(PairLoss):
    """(x - target)^2; keeps both."""

    def kernel(self) -> "kernels.PairLoss":
        return kernels.mse()

    def slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """2 (x - target)."""
        return (x - target) * 2


class SmoothL1Loss(PairLoss):
    """|d| - beta / 2, for |d| < beta d^2 / (2 beta), d = x - target; keeps both."""

    beta: float

    def kernel(self) -> "kernels.PairLoss":
        return kernels.smooth_l1(self.beta)

    def slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """d / beta, limited to -1 and 1."""
        d = x - target
        return where(d.abs() < self.beta, d / self.beta, d.sign())


class HuberLoss(PairLoss):
    """d^2 / 2, beyond delta delta (|d| - delta / 2), d = x - target; keeps both."""

    delta: float

    def kernel(self) -> "kernels.PairLoss":
        return kernels.huber(self.delta)

    def slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """d, limited to -delta and delta."""
        d = x - target
        return where(d.abs() < self.delta, d, d.sign() * self.delta)


class SoftMarginLoss(PairLoss):
    """log(1 + e^(-target x)); keeps both."""

    is_of_difference = False

    def kernel(self) -> "kernels.PairLoss":
        return kernels.soft_margin()

    def slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """-target sigmoid(-target x)."""
        return -target * sigmoid(-target * x)

    def target_slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """-x sigmoid(-target x)."""
        return -x * sigmoid(-target * x)


class BinaryCrossEntropy(PairLoss):
    """-target log x - (1 - target) log(1 - x), logarithms at least -100; keeps both."""

    is_of_difference = False

    def kernel(self) -> "kernels.PairLoss":
        return kernels.binary_cross_entropy()

    def slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """(x - target) / (x (1 - x))."""
        return (x - target) / clamp((1 - x) * x, min=1e-12)

    def target_slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """log(1 - x) - log x."""
        return clamp(log1p(-x), min=-100) - clamp(log(x), min=-100)


class BinaryCrossEntropyWithLogits(PairLoss):
    """The binary cross-entropy of sigmoid(x), without overflow; keeps both."""

    is_of_difference = False

    def kernel(self) -> "kernels.PairLoss":
        return kernels.binary_cross_entropy_with_logits()

    def slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """sigmoid(x) - target."""
        return sigmoid(x) - target

    def target_slope(self, x: "Tensor", target: "Tensor") -> "Tensor":
        """-x."""
        return -x
