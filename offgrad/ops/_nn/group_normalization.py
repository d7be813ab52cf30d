"""Normalisation of groups of channels, and by neighbouring channels."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, metadata
from offgrad.ops._core.broadcasting import wide_dtype
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import real_floating
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["group_norm", "local_response_norm", "native_group_norm"]


class GroupNorm(Op):
    """(x - mean) / sqrt(var + eps) * weight + bias by groups of channels (Wu and He, 2018).

    Keeps x, the weight, and each group's mean and 1/sqrt(var + eps).
    """

    is_recomputable = True
    torch_name = "NativeGroupNormBackward0"

    def forward(
        self, x: Array, weight: Array | None, bias: Array | None, group: int, eps: float
    ) -> Array:
        """Return x [N, C, ...] normalised."""
        self.N, self.C, self.HxW = x.shape[0], x.shape[1], prod(x.shape[2:])
        self.group, self.eps = group, eps
        out = memory.empty(x.shape, x.dtype)
        dtype = wide_dtype(x.dtype)
        mean, rstd = (memory.zeros((self.N, group), dtype) for _ in range(2))
        shape = _shape(x, group)
        rows = memory.contiguous(x).reshape(shape)
        kernels.group_norm(rows, weight, bias, eps, out.reshape(shape), mean, rstd)
        self.save(input=x, weight=weight, result1=mean, result2=rstd)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Return all three gradients, in one kernel."""
        return GroupNormBackward.apply_all(
            grad,
            self.saved("input"),
            self.saved("weight") if "weight" in self._saved else None,
            mean=self.saved("result1")._array,
            rstd=self.saved("result2")._array,
            group=self.group,
            eps=self.eps,
            needs=self.needs_input_grad,
        )


class GroupNormBackward(Op):
    """The gradients of x, weight and bias; keeps the incoming gradient, x and the weight."""

    torch_name = "NativeGroupNormBackwardBackward0"

    def forward(
        self,
        grad: Array,
        x: Array,
        weight: Array | None,
        mean: Array,
        rstd: Array,
        group: int,
        eps: float,
        needs: tuple[bool, ...],
    ) -> tuple[Array | None, ...]:
        """Return the gradients that `needs` asks for."""
        self.group, self.eps, self.needs = group, eps, needs
        self.save(grad_out=grad, input=x, weight=weight)
        dx = memory.empty(x.shape, x.dtype) if needs[0] else None
        dtype = mean.dtype if weight is None else weight.dtype
        dweight = memory.empty(x.shape[1], dtype) if needs[1] else None
        dbias = memory.empty(x.shape[1], dtype) if needs[2] else None
        shape = _shape(x, group)
        kernels.group_norm_backward(
            memory.contiguous(grad).reshape(shape),
            memory.contiguous(x).reshape(shape),
            weight,
            mean,
            rstd,
            None if dx is None else dx.reshape(shape),
            dweight,
            dbias,
        )
        return dx, dweight, dbias

    def backward(self, *grads: "Tensor | None") -> Any:
        """Differentiate the formula, the statistics included."""
        has_weight = "weight" in self._saved
        inputs = [self.saved("grad_out"), self.saved("input")]
        if has_weight:
            inputs.append(self.saved("weight"))
        original = inputs[1].shape
        shape = _shape(inputs[1]._array, self.group)

        def reference(g: "Tensor", x: "Tensor", weight: "Tensor | None" = None) -> Any:
            g, x = g.reshape(shape), x.reshape(shape)
            centred = x - x.mean((2, 3), keepdim=True)
            rstd = ((centred * centred).mean((2, 3), keepdim=True) + self.eps).rsqrt()
            normal = centred * rstd
            scaled = g if weight is None else g * weight.reshape(*shape[1:3], 1)
            projection = (scaled * normal).mean((2, 3), keepdim=True)
            dx = (scaled - scaled.mean((2, 3), keepdim=True) - normal * projection) * rstd
            sums = (g * normal).sum((0, 3)).reshape(-1), g.sum((0, 3)).reshape(-1)
            results = (dx.reshape(original), *sums)
            return tuple(
                each if needed else None for each, needed in zip(results, self.needs, strict=True)
            )

        needs = self.needs_input_grad if has_weight else self.needs_input_grad[:2]
        computed = differentiate(reference, inputs, grads, needs)
        return computed if has_weight else (*computed, None)


def _shape(x: Array, group: int) -> tuple[int, ...]:
    """Return the shape [N, groups, channels of a group, L]."""
    return x.shape[0], group, x.shape[1] // group, prod(x.shape[2:])


def group_norm(
    input: "Tensor",
    num_groups: int,
    weight: "Tensor | None" = None,
    bias: "Tensor | None" = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> "Tensor":
    """Return `input` with mean 0 and variance 1 in each group of channels of each sample.

    Args:
        input: shape [N, C, ...].
        num_groups: a divisor of C.
        weight: shape [C], a factor of the result, or None for 1.
        bias: shape [C], added, or None for 0.
        eps: added to variances.
        cudnn_enabled: ignored.

    Raises:
        RuntimeError: if shapes or dtypes do not fit.
        NotImplementedError: if `input` does not hold real floating point numbers.
    """
    x = real_floating(input, "group_norm")
    array = x._array
    if array.ndim < 2:
        raise RuntimeError(
            f"group_norm: the input must have at least 2 dimensions, got a {describe(x)}"
        )
    channels = array.shape[1]
    if num_groups <= 0:
        raise RuntimeError(f"group_norm: the number of groups must be positive, got {num_groups}")
    if channels % num_groups:
        raise RuntimeError(
            "group_norm: Expected number of channels in input to be divisible by num_groups, got a "
            f"{describe(x)} and num_groups={num_groups}"
        )
    for each in (weight, bias):
        if each is None:
            continue
        dtype = each._array.dtype
        mixed = array.dtype.itemsize == 2 and dtype == np.float32
        if each._array.shape != (channels,) or not (dtype == array.dtype or mixed):
            raise RuntimeError(
                f"group_norm: weight and bias must be vectors of {channels} elements, one a "
                f"channel, and of the input's dtype, got a {describe(each)} for a {describe(x)}"
            )
    return GroupNorm.apply(x, weight, bias, group=num_groups, eps=eps)


def native_group_norm(
    input: "Tensor",
    weight: "Tensor | None",
    bias: "Tensor | None",
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> "tuple[Tensor, Tensor, Tensor]":
    """Return `group_norm`, and each group's mean and 1/sqrt(var + eps) [N, group].

    Raises:
        RuntimeError: if the sizes are not those of `input`.
    """
    x = real_floating(input, "native_group_norm")
    if N * C * HxW != x._array.size:
        raise RuntimeError(
            f"native_group_norm: N, C and HxW must be those of the input, got {N}, {C} and {HxW} "
            f"for a {describe(x)}"
        )
    out = group_norm(x.reshape(N, C, HxW), group, weight, bias, eps).reshape(x.shape)
    if not x._array.size:
        return out, x.new_zeros((N, group)), x.new_zeros((N, group))
    rows = x.reshape(N, group, -1)
    return out, rows.mean(2), (rows.var(2, correction=0) + eps).rsqrt()


def local_response_norm(
    input: "Tensor", size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> "Tensor":
    """Return `input` over ``(k + alpha * average) ** beta``, the average of squares over `size`
    neighbouring channels (Krizhevsky et al., 2012); channels beyond the ends count as 0.

    Args:
        input: shape [N, C, d1, ...].
        size: the number of channels in an average.
        alpha: the factor of averages.
        beta: the exponent.
        k: added to averages.

    Raises:
        ValueError: for fewer than 3 dimensions.
    """
    x = real_floating(input, "local_response_norm")
    shape = metadata(x).shape
    if len(shape) < 3:
        raise ValueError(
            f"local_response_norm: the input must have at least 3 dimensions, got {len(shape)}"
        )
    windows = sums_over_channels(x * x, size // 2, (size - 1) // 2)
    return x / (windows * (alpha / size) + k) ** beta


def sums_over_channels(x: "Tensor", before: int, after: int) -> "Tensor":
    """Return the sums of each channel, as many before it and as many after it."""
    shape = metadata(x).shape
    zeros = x.new_zeros((shape[0], max(before, after), *shape[2:]))
    padded = cat([zeros[:, :before], x, zeros[:, :after]], 1)
    total = padded.narrow(1, 0, shape[1])
    for offset in range(1, before + after + 1):
        total = total + padded.narrow(1, offset, shape[1])
    return total
