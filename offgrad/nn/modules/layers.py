"""Layers with parameters: linear, embedding, normalisation."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn import init
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter


class Linear(Module):
    """``x @ weight.T + bias``: [..., in_features] to [..., out_features]."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(ops.empty(out_features, in_features, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(ops.empty(out_features, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly within 1/sqrt(in_features)."""
        init.kaiming_uniform_(self.weight, a=sqrt(5))
        if self.bias is not None:
            bound = 1 / sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """Return the affine map of `input`."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Embedding(Module):
    """Rows of a table of `num_embeddings` vectors: integers [...] to [..., embedding_dim]."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx must be a row of {num_embeddings}, got {padding_idx}")
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(ops.empty(num_embeddings, embedding_dim, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from the standard normal distribution; padding is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.detach()[self.padding_idx] = 0

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows at `input`."""
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """Return the sizes."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last dimensions, times a weight, plus a bias."""

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
        """Return the normalised `input`."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the options."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )
