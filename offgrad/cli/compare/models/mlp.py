"""Linear layers with GELU and dropout between them: they also run with ``import torch`` instead."""

from typing import Any

import numpy as np

from offgrad import nn
from offgrad.nn import functional as F


class MLP(nn.Module):
    """Vectors [B, width] to vectors [B, width]."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        *inner, last = self.layers
        for layer in inner:
            x = self.dropout(F.gelu(layer(x)))
        return last(x)

    def loss(self, x: Any, target: Any) -> Any:
        """Return the mean squared error."""
        return F.mse_loss(self(x), target)


def build(sizes: dict[str, Any]) -> MLP:
    """Return the model of these sizes."""
    return MLP(sizes["width"], sizes["layers"], sizes["dropout"])


def batch(random: np.random.Generator, sizes: dict[str, Any]) -> tuple[Any, Any]:
    """Return vectors [B, width], and each vector in the opposite order."""
    vectors = random.standard_normal((sizes["batch"], sizes["width"]), np.float32)
    return vectors, np.ascontiguousarray(vectors[:, ::-1])
