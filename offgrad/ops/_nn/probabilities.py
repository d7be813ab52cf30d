"""Softmax and its logarithm, by kernels over the last dimension."""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dims import (
    normalize_dim,
)
from offgrad.ops._core.dtypes import cast, real_floating
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._elementwise.exponential import exp

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["log_softmax", "softmax", "softmin"]


def _along(
    kernel: Callable[..., Any], of_planes: Callable[..., Any], dim: int, *arrays: Array
) -> Array:
    """Run a kernel over the last dimension along `dim`; one of planes if these are long."""
    first = arrays[0]
    axis = dim % max(first.ndim, 1)
    if axis >= first.ndim - 1:
        out = memory.empty(first.shape, first.dtype)
        kernel(*(memory.contiguous(each) for each in arrays), out)
        return out
    length = prod(first.shape[axis + 1 :])
    if length >= kernels.MIN_LENGTH:
        shape = prod(first.shape[:axis]), first.shape[axis], length
        out = memory.empty(first.shape, first.dtype)
        planes = [memory.contiguous(each).reshape(shape) for each in arrays]
        is_log = kernel in (kernels.log_softmax, kernels.log_softmax_backward)
        of_planes(*planes, out.reshape(shape), is_log=is_log)
        return out
    transposed = [memory.copy(np.moveaxis(each, dim, -1)) for each in arrays]
    result = memory.empty(transposed[0].shape, first.dtype)
    kernel(*transposed, result)
    return memory.contiguous(np.moveaxis(result, -1, dim))


class Softmax(Op):
    """e^x over its sum along a dimension; keeps the result."""

    backward_takes_arrays = True

    def forward(self, x: Array, dim: int) -> Array:
        self.dim = dim
        out = _along(kernels.softmax, kernels.softmax_planes, dim, x)
        self.save(result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """(g - sum(g p)) p, in one kernel."""
        return SoftmaxBackward.compute(grad, self.saved("result"), dim=self.dim)


class SoftmaxBackward(Op):
    """(g - sum(g p)) p along a dimension; keeps g and p."""

    torch_name = "SoftmaxBackwardDataBackward0"

    @classmethod
    def with_samples(cls, size: int, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters for inputs with a further first dimension."""
        dim = parameters["dim"]
        return {**parameters, "dim": dim if dim < 0 else dim + 1}

    def forward(self, grad: Array, result: Array, dim: int) -> Array:
        """Return the gradient of the logits."""
        self.dim = dim
        self.save(grad_output=grad, output=result)
        of_planes = kernels.softmax_planes_backward
        return _along(kernels.softmax_backward, of_planes, dim, grad, result)

    def backward(self, grad: "Tensor") -> Any:
        inputs = (self.saved("grad_output"), self.saved("output"))
        return differentiate(
            lambda g, p: (g - (g * p).sum(self.dim, keepdim=True)) * p,
            inputs,
            (grad,),
            self.needs_input_grad,
        )


class LogSoftmax(Op):
    """x - log sum e^x along a dimension; keeps the result."""

    backward_takes_arrays = True

    def forward(self, x: Array, dim: int) -> Array:
        self.dim = dim
        out = _along(kernels.log_softmax, kernels.softmax_planes, dim, x)
        self.save(result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """g - e^result sum(g), in one kernel."""
        return LogSoftmaxBackward.compute(grad, self.saved("result"), dim=self.dim)


class LogSoftmaxBackward(Op):
    """g - e^result sum(g) along a dimension; keeps g and the result."""

    torch_name = "LogSoftmaxBackwardDataBackward0"

    @classmethod
    def with_samples(cls, size: int, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters for inputs with a further first dimension."""
        dim = parameters["dim"]
        return {**parameters, "dim": dim if dim < 0 else dim + 1}

    def forward(self, grad: Array, result: Array, dim: int) -> Array:
        """Return the gradient of the logits."""
        self.dim = dim
        self.save(grad_output=grad, output=result)
        of_planes = kernels.softmax_planes_backward
        return _along(kernels.log_softmax_backward, of_planes, dim, grad, result)

    def backward(self, grad: "Tensor") -> Any:
        inputs = (self.saved("grad_output"), self.saved("output"))
        return differentiate(
            lambda g, logp: g - exp(logp) * g.sum(self.dim, keepdim=True),
            inputs,
            (grad,),
            self.needs_input_grad,
        )


def _prepared(input: "Tensor", dim: int, dtype: Any, where: str) -> "Tensor":
    x = real_floating(input if dtype is None else cast(input, dtype), where)
    normalize_dim(dim, x._array.ndim, where)
    return x


@with_numpy_names
def softmax(input: "Tensor", dim: int, *, dtype: Any = None) -> "Tensor":
    """Return ``exp(input)`` over its sum along `dim`, computed without overflow."""
    return Softmax.apply(_prepared(input, dim, dtype, "softmax"), dim=dim)


def softmin(input: "Tensor", dim: int, *, dtype: Any = None) -> "Tensor":
    """Return the `softmax` of ``-input`` along `dim`."""
    return softmax(-input, dim, dtype=dtype)


@with_numpy_names
def log_softmax(input: "Tensor", dim: int, *, dtype: Any = None) -> "Tensor":
    """Return the logarithm of `softmax` along `dim`, without overflow."""
    return LogSoftmax.apply(_prepared(input, dim, dtype, "log_softmax"), dim=dim)
