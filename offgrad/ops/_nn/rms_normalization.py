"""Normalisation by the root of the mean square."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.broadcasting import wide_dtype
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import real_floating
from offgrad.ops._reduction.sums import sum_to_size

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["rms_norm"]


class RmsNorm(Op):
    """x / sqrt(mean square + eps) * weight over rows (Zhang and Sennrich, 2019).

    Keeps x, the weight, and each row's 1/sqrt(mean square + eps).
    """

    is_recomputable = True
    torch_name = "FusedRmsNormBackward0"

    def forward(
        self, x: Array, weight: Array | None, normalized_shape: tuple[int, ...], eps: float
    ) -> Array:
        """Return x [..., *normalized_shape] with normalised rows."""
        self.normalized_shape, self.eps = normalized_shape, eps
        ndim = len(normalized_shape)
        out = memory.empty(x.shape, x.dtype)
        dtype = wide_dtype(x.dtype)
        rstd = memory.empty((*x.shape[:-ndim], *(1,) * ndim), dtype)
        rows = rstd.size, prod(normalized_shape)
        kernels.rms_norm(
            memory.contiguous(x).reshape(rows),
            None if weight is None else weight.reshape(-1),
            eps,
            out.reshape(rows),
            rstd.reshape(-1),
        )
        self.save(input=x, weight=weight, result1=rstd)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Return both gradients, in one kernel."""
        return RmsNormBackward.apply_all(
            grad,
            self.saved("input"),
            self.saved("weight") if "weight" in self._saved else None,
            rstd=self.saved("result1")._array,
            normalized_shape=self.normalized_shape,
            eps=self.eps,
            needs=self.needs_input_grad,
        )


class RmsNormBackward(Op):
    """The gradients of x and weight; keeps the incoming gradient, x and the weight."""

    torch_name = "FusedRmsNormBackwardBackward0"

    def forward(
        self,
        grad: Array,
        x: Array,
        weight: Array | None,
        rstd: Array,
        normalized_shape: tuple[int, ...],
        eps: float,
        needs: tuple[bool, ...],
    ) -> tuple[Array | None, ...]:
        """Return the gradients that `needs` asks for."""
        self.normalized_shape, self.eps, self.needs = normalized_shape, eps, needs
        self.save(grad_out=grad, input=x, weight=weight)
        rows = rstd.size, prod(normalized_shape)
        dx = memory.empty(x.shape, x.dtype) if needs[0] else None
        dweight = None
        if needs[1] and weight is not None:
            dweight = memory.empty(normalized_shape, weight.dtype)
        kernels.rms_norm_backward(
            memory.contiguous(grad).reshape(rows),
            memory.contiguous(x).reshape(rows),
            None if weight is None else weight.reshape(-1),
            rstd.reshape(-1),
            None if dx is None else dx.reshape(rows),
            None if dweight is None else dweight.reshape(-1),
        )
        return dx, dweight

    def backward(self, *grads: "Tensor | None") -> Any:
        """Differentiate the formula."""
        has_weight = "weight" in self._saved
        inputs = [self.saved("grad_out"), self.saved("input")]
        if has_weight:
            inputs.append(self.saved("weight"))
        shape = self.normalized_shape
        dims = tuple(range(-len(shape), 0))

        def reference(g: "Tensor", x: "Tensor", weight: "Tensor | None" = None) -> Any:
            rstd = ((x * x).mean(dims, keepdim=True) + self.eps).rsqrt()
            normal = x * rstd
            scaled = g if weight is None else g * weight
            dx = (scaled - normal * (scaled * normal).mean(dims, keepdim=True)) * rstd
            results = dx, sum_to_size(g * normal, shape)
            return tuple(
                each if needed else None for each, needed in zip(results, self.needs, strict=True)
            )

        needs = self.needs_input_grad if has_weight else self.needs_input_grad[:2]
        computed = differentiate(reference, inputs, grads, needs)
        return computed if has_weight else (*computed, None)


def rms_norm(
    input: "Tensor",
    normalized_shape: Sequence[int],
    weight: "Tensor | None" = None,
    eps: float | None = None,
) -> "Tensor":
    """Return `input` over the root of its mean square over its last dimensions, times weight.

    Args:
        input: shape [..., *normalized_shape].
        normalized_shape: the last sizes.
        weight: of that shape, or None for 1.
        eps: added to the mean square; the dtype's resolution if None (float32's for 16-bit
            floats).

    Raises:
        RuntimeError: if the shapes do not fit.
        NotImplementedError: if `input` does not hold real floating point numbers.
    """
    x = real_floating(input, "rms_norm")
    shape = tuple(normalized_shape)
    if not shape or x._array.shape[-len(shape) :] != shape:
        raise RuntimeError(
            f"rms_norm: normalized_shape must be the last sizes of the input, got {list(shape)} "
            f"for a {describe(x)}"
        )
    if weight is not None and weight._array.shape != shape:
        raise RuntimeError(
            f"rms_norm: the weight must have the shape normalized_shape, {list(shape)}, got a "
            f"{describe(weight)}"
        )
    wide = np.float64 if x._array.dtype == np.float64 else np.float32
    small = float(np.finfo(wide).eps) if eps is None else eps
    return RmsNorm.apply(x, weight, normalized_shape=shape, eps=small)
