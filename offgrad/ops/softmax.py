"""Softmax and its logarithm, by kernels over the last dimension."""

from typing import TYPE_CHECKING, Any

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.ops.convert import cast, floating
from offgrad.ops.higher_order import differentiate
from offgrad.ops.math import exp
from offgrad.ops.reduce import normalize_dim

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


class Softmax(Op):
    """e^x over its sum along the last dimension; keeps the result."""

    def forward(self, x: Array) -> Array:
        """Return the probabilities."""
        out = memory.empty(x.shape, x.dtype)
        kernels.softmax(memory.contiguous(x), out)
        self.save(result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """(g - sum(g p)) p, in one kernel."""
        return SoftmaxBackward.apply(grad, self.saved("result"))


class SoftmaxBackward(Op):
    """(g - sum(g p)) p along the last dimension; keeps g and p."""

    def forward(self, grad: Array, result: Array) -> Array:
        """Return the gradient of the logits."""
        self.save(grad=grad, result=result)
        out = memory.empty(grad.shape, grad.dtype)
        kernels.softmax_backward(memory.contiguous(grad), memory.contiguous(result), out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Differentiate the formula."""
        inputs = (self.saved("grad"), self.saved("result"))
        return differentiate(
            lambda g, p: (g - (g * p).sum(-1, keepdim=True)) * p,
            inputs,
            (grad,),
            self.needs_input_grad,
        )


class LogSoftmax(Op):
    """x - log sum e^x along the last dimension; keeps the result."""

    def forward(self, x: Array) -> Array:
        """Return the log-probabilities."""
        out = memory.empty(x.shape, x.dtype)
        kernels.log_softmax(memory.contiguous(x), out)
        self.save(result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """g - e^result sum(g), in one kernel."""
        return LogSoftmaxBackward.apply(grad, self.saved("result"))


class LogSoftmaxBackward(Op):
    """g - e^result sum(g) along the last dimension; keeps g and the result."""

    def forward(self, grad: Array, result: Array) -> Array:
        """Return the gradient of the logits."""
        self.save(grad=grad, result=result)
        out = memory.empty(grad.shape, grad.dtype)
        kernels.log_softmax_backward(memory.contiguous(grad), memory.contiguous(result), out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Differentiate the formula."""
        inputs = (self.saved("grad"), self.saved("result"))
        return differentiate(
            lambda g, logp: g - exp(logp) * g.sum(-1, keepdim=True),
            inputs,
            (grad,),
            self.needs_input_grad,
        )


def _along(op: type[Op], input: "Tensor", dim: int, dtype: Any, where: str) -> "Tensor":
    x = floating(input, where) if dtype is None else cast(input, dtype)
    axis = normalize_dim(dim, x._array.ndim, where)
    if axis >= x._array.ndim - 1:
        return op.apply(x)
    return op.apply(x.transpose(axis, -1)).transpose(axis, -1)


def softmax(input: "Tensor", dim: int, *, dtype: Any = None) -> "Tensor":
    """Return ``exp(input)`` over its sum along `dim`, computed without overflow."""
    return _along(Softmax, input, dim, dtype, "softmax")


def log_softmax(input: "Tensor", dim: int, *, dtype: Any = None) -> "Tensor":
    """Return the logarithm of `softmax` along `dim`, precisely."""
    return _along(LogSoftmax, input, dim, dtype, "log_softmax")
