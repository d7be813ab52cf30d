"""Normalisation."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.broadcasting import wide, wide_dtype
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import real_floating
from offgrad.ops._reduction.sums import sum_to_size

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["layer_norm", "native_layer_norm"]


class LayerNorm(Op):
    """(x - mean) / sqrt(var + eps) * weight + bias over rows (Ba, Kiros and Hinton, 2016).

    Keeps x, the weight, and each row's mean and 1/sqrt(var + eps).
    """

    is_recomputable = True

    torch_name = "NativeLayerNormBackward0"

    def forward(
        self,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        normalized_shape: tuple[int, ...],
        eps: float,
    ) -> Array:
        """Return x [..., *normalized_shape] with normalised rows."""
        self.normalized_shape, self.eps = normalized_shape, eps
        ndim = len(normalized_shape)
        row_shape = (*x.shape[:-ndim], *(1,) * ndim)
        out = memory.empty(x.shape, x.dtype)
        mean, rstd = (memory.empty(row_shape, wide_dtype(x.dtype)) for _ in range(2))
        rows = prod(row_shape), prod(normalized_shape)
        kernels.layer_norm(
            memory.contiguous(x).reshape(rows),
            None if weight is None else weight.reshape(-1),
            None if bias is None else bias.reshape(-1),
            eps,
            out.reshape(rows),
            mean.reshape(-1),
            rstd.reshape(-1),
        )
        self.save(input=x, weight=weight, result1=mean, result2=rstd)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Return all three gradients, in one kernel."""
        return LayerNormBackward.apply_all(
            grad,
            self.saved("input"),
            self.saved("weight") if "weight" in self._saved else None,
            mean=self.saved("result1")._array,
            rstd=self.saved("result2")._array,
            normalized_shape=self.normalized_shape,
            eps=self.eps,
            needs=self.needs_input_grad,
        )


class LayerNormBackward(Op):
    """The gradients of x, weight and bias; keeps the incoming gradient, x and the weight."""

    torch_name = "NativeLayerNormBackwardBackward0"

    def forward(
        self,
        grad: Array,
        x: Array,
        weight: Array | None,
        mean: Array,
        rstd: Array,
        normalized_shape: tuple[int, ...],
        eps: float,
        needs: tuple[bool, ...],
    ) -> tuple[Array | None, ...]:
        """Return the gradients that `needs` asks for."""
        self.normalized_shape, self.eps, self.needs = normalized_shape, eps, needs
        self.save(grad_out=grad, input=x, weight=weight)
        rows = mean.size, prod(normalized_shape)
        dx = memory.empty(x.shape, x.dtype) if needs[0] else None
        dtype = x.dtype if weight is None else weight.dtype
        dweight = memory.empty(normalized_shape, dtype) if needs[1] else None
        dbias = memory.empty(normalized_shape, dtype) if needs[2] else None
        kernels.layer_norm_backward(
            memory.contiguous(grad).reshape(rows),
            memory.contiguous(x).reshape(rows),
            None if weight is None else weight.reshape(-1),
            mean.reshape(-1),
            rstd.reshape(-1),
            None if dx is None else dx.reshape(rows),
            None if dweight is None else dweight.reshape(-1),
            None if dbias is None else dbias.reshape(-1),
        )
        return dx, dweight, dbias

    def backward(self, *grads: "Tensor | None") -> Any:
        """Differentiate the formula, the row statistics included."""
        has_weight = "weight" in self._saved
        inputs = [self.saved("grad_out"), self.saved("input")]
        if has_weight:
            inputs.append(self.saved("weight"))
        shape = self.normalized_shape
        dims = tuple(range(-len(shape), 0))

        def reference(g: "Tensor", x: "Tensor", weight: "Tensor | None" = None) -> Any:
            centred = x - x.mean(dims, keepdim=True)
            rstd = ((centred * centred).mean(dims, keepdim=True) + self.eps).rsqrt()
            normal = centred * rstd
            scaled = g if weight is None else g * weight
            projection = (scaled * normal).mean(dims, keepdim=True)
            dx = (scaled - scaled.mean(dims, keepdim=True) - normal * projection) * rstd
            results = dx, sum_to_size(g * normal, shape), sum_to_size(g, shape)
            return tuple(
                each if needed else None for each, needed in zip(results, self.needs, strict=True)
            )

        needs = self.needs_input_grad if has_weight else self.needs_input_grad[:2]
        computed = differentiate(reference, inputs, grads, needs)
        return computed if has_weight else (*computed, None)


def layer_norm(
    input: "Tensor",
    normalized_shape: Sequence[int],
    weight: "Tensor | None" = None,
    bias: "Tensor | None" = None,
    eps: float = 1e-5,
) -> "Tensor":
    """Return `input` with mean 0 and variance 1 over its last dimensions, times weight, plus bias.

    Args:
        input: shape [..., *normalized_shape].
        normalized_shape: the last sizes.
        weight: of that shape, or None for 1.
        bias: of that shape, or None for 0.
        eps: added to the variance.

    Raises:
        RuntimeError: if shapes or dtypes do not fit.
        NotImplementedError: if `input` does not hold real floating point numbers.
    """
    x = real_floating(input, "layer_norm")
    shape = tuple(normalized_shape)
    if not shape or x._array.shape[-len(shape) :] != shape:
        raise RuntimeError(
            f"layer_norm: Given normalized_shape={list(shape)}, expected input with shape "
            f"[{', '.join(map(str, ('*', *shape)))}], got a {describe(x)}"
        )
    dtypes = [x._array.dtype]
    if x._array.dtype.itemsize == 2:
        dtypes.append(np.dtype(np.float32))
    for each in (weight, bias):
        if each is not None and (each._array.shape != shape or each._array.dtype not in dtypes):
            raise RuntimeError(
                f"layer_norm: weight and bias must be {x._array.dtype.name} of shape "
                f"{list(shape)}, got a {describe(each)}"
            )
    return LayerNorm.apply(x, weight, bias, normalized_shape=shape, eps=eps)


def native_layer_norm(
    input: "Tensor",
    normalized_shape: Sequence[int],
    weight: "Tensor | None",
    bias: "Tensor | None",
    eps: float,
) -> "tuple[Tensor, Tensor, Tensor]":
    """Return `layer_norm`, and each row's mean and 1/sqrt(var + eps).

    Gradients flow through the first alone.
    """
    out = layer_norm(input, normalized_shape, weight, bias, eps)
    array = input._array
    axes = tuple(range(-len(normalized_shape), 0))
    if not array.size:
        empty = np.zeros((*array.shape[: -len(axes)], *(1,) * len(axes)), array.dtype)
        return out, wrap(empty), wrap(empty.copy())
    numbers = wide(array)
    rstd = 1 / np.sqrt(numbers.var(axes, keepdims=True) + numbers.dtype.type(eps))
    mean = numbers.mean(axes, keepdims=True)
    return out, wrap(mean.astype(array.dtype)), wrap(rstd.astype(array.dtype))
