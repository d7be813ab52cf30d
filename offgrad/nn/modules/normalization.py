"""Normalisation."""

from collections.abc import Sequence
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter


class LayerNorm(Module):
    """Normalise the last dimensions, of shape `normalized_shape`, to mean 0 and variance 1.

    The result is multiplied by a weight and added to a bias, both of that shape.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        self.normalized_shape, self.eps = shape, eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter(
            "weight", Parameter(ops.ones(shape, dtype=dtype)) if elementwise_affine else None
        )
        self.register_parameter(
            "bias",
            Parameter(ops.zeros(shape, dtype=dtype)) if elementwise_affine and bias else None,
        )

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )
