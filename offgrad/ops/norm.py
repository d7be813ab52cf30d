"""Normalisation."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops.convert import floating
from offgrad.ops.higher_order import differentiate

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


class LayerNorm(Op):
    """(x - mean) / sqrt(var + eps) * weight + bias over rows (Ba, Kiros and Hinton, 2016).

    Keeps x, the weight, and each row's mean and 1/sqrt(var + eps).
    """

    def name(self) -> str:
        """Return PyTorch's name."""
        return "NativeLayerNormBackward0"

    def forward(self, x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
        """Return the normalised rows of x [rows, columns]."""
        out = memory.empty(x.shape, x.dtype)
        mean = memory.empty(x.shape[0], x.dtype)
        rstd = memory.empty(x.shape[0], x.dtype)
        kernels.layer_norm(memory.contiguous(x), weight, bias, eps, out, mean, rstd)
        self.eps = eps
        self.save(input=x, weight=weight, mean=mean, rstd=rstd)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """All three gradients, in one kernel."""
        return LayerNormBackward.apply_all(
            grad,
            self.saved("input"),
            self.saved("weight") if "weight" in self._saved else None,
            mean=self.saved("mean")._array,
            rstd=self.saved("rstd")._array,
            eps=self.eps,
            needs=self.needs_input_grad,
        )


class LayerNormBackward(Op):
    """The gradients of x, weight and bias; keeps the incoming gradient, x and the weight."""

    def forward(
        self,
        grad: Array,
        x: Array,
        weight: Array | None,
        mean: Array,
        rstd: Array,
        eps: float,
        needs: tuple[bool, ...],
    ) -> tuple[Array | None, ...]:
        """Return those that are needed."""
        self.eps, self.needs = eps, needs
        self.save(grad=grad, input=x, weight=weight)
        columns = x.shape[1:]
        dx = memory.empty(x.shape, x.dtype) if needs[0] else None
        dweight = memory.empty(columns, x.dtype) if needs[1] else None
        dbias = memory.empty(columns, x.dtype) if needs[2] else None
        kernels.layer_norm_backward(
            memory.contiguous(grad), memory.contiguous(x), weight, mean, rstd, dx, dweight, dbias
        )
        return dx, dweight, dbias

    def backward(self, *grads: "Tensor | None") -> Any:
        """Differentiate the formula, the row statistics included."""
        has_weight = "weight" in self._saved
        inputs = [self.saved("grad"), self.saved("input")]
        if has_weight:
            inputs.append(self.saved("weight"))

        def reference(g: "Tensor", x: "Tensor", weight: "Tensor | None" = None) -> Any:
            centred = x - x.mean(-1, keepdim=True)
            rstd = ((centred * centred).mean(-1, keepdim=True) + self.eps).rsqrt()
            normal = centred * rstd
            scaled = g if weight is None else g * weight
            along = (scaled * normal).mean(-1, keepdim=True)
            dx = (scaled - scaled.mean(-1, keepdim=True) - normal * along) * rstd
            results = dx, (g * normal).sum(0), g.sum(0)
            return tuple(
                each if needed else None for each, needed in zip(results, self.needs, strict=True)
            )

        needs = self.needs_input_grad if has_weight else self.needs_input_grad[:2]
        found = differentiate(reference, inputs, grads, needs)
        return found if has_weight else (*found, None)


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
    """
    x = floating(input, "layer_norm")
    shape = tuple(normalized_shape)
    if not shape or x._array.shape[-len(shape) :] != shape:
        raise RuntimeError(
            f"layer_norm: normalized_shape must be the last sizes of the input, got {list(shape)} "
            f"for a {describe(x)}"
        )
    for each in (weight, bias):
        if each is not None and (each._array.shape != shape or each._array.dtype != x._array.dtype):
            raise RuntimeError(
                f"layer_norm: weight and bias must be {x._array.dtype.name} of shape "
                f"{list(shape)}, got a {describe(each)}"
            )
    columns = prod(shape)
    rows = x.reshape(
        x._array.size // columns if columns else prod(x._array.shape[: -len(shape)]), columns
    )
    result: Tensor = LayerNorm.apply(
        rows,
        None if weight is None else weight.reshape(columns),
        None if bias is None else bias.reshape(columns),
        eps=eps,
    )
    return result.reshape(x.shape)
