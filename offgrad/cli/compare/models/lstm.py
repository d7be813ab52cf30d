"""Layers of LSTM (Hochreiter and Schmidhuber, 1997); they also run with ``import torch``."""

from typing import Any

import numpy as np

from offgrad import nn
from offgrad.nn import functional as F


class LSTMModel(nn.Module):
    """Vectors [B, T, width] through layers of LSTM, and a linear layer: [B, T, width]."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0])

    def loss(self, x: Any, target: Any) -> Any:
        """Return the mean squared error of the prediction of each step."""
        return F.mse_loss(self(x), target)


def build(sizes: dict[str, Any]) -> LSTMModel:
    """Return the model of these sizes."""
    return LSTMModel(sizes["width"], sizes["layers"])


def batch(random: np.random.Generator, sizes: dict[str, Any]) -> tuple[Any, Any]:
    """Return vectors [B, T, width], and the sums of all up to each step, scaled."""
    shape = sizes["batch"], sizes["context"], sizes["width"]
    vectors = random.standard_normal(shape, np.float32)
    sums = np.cumsum(vectors, axis=1, dtype=np.float32)
    return vectors, sums / np.sqrt(np.arange(1, shape[1] + 1, dtype=np.float32))[:, None]
