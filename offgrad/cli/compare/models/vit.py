"""A vision transformer (Dosovitskiy et al., 2021) on patches of 4 x 4 pixels.

It also runs with ``import torch`` instead.
"""

from typing import Any

import numpy as np

import offgrad as torch
from offgrad import nn
from offgrad.nn import functional as F

CLASSES, PATCH = 10, 4


class ViT(nn.Module):
    """Images [B, 3, H, W] to logits [B, 10]."""

    def __init__(self, image: int, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (image // PATCH) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.encoder(x)[:, 0]))

    def loss(self, images: Any, labels: Any) -> Any:
        """Return the mean cross-entropy of the logits with `labels` [B]."""
        return F.cross_entropy(self(images), labels)


def build(sizes: dict[str, Any]) -> ViT:
    """Return the model of these sizes."""
    names = "image", "width", "heads", "layers", "dropout"
    return ViT(*(sizes[name] for name in names))


def batch(random: np.random.Generator, sizes: dict[str, Any]) -> tuple[Any, Any]:
    """Return images [B, 3, H, W] and labels [B]."""
    shape = sizes["batch"], 3, sizes["image"], sizes["image"]
    images = random.standard_normal(shape, np.float32)
    return images, random.integers(0, CLASSES, sizes["batch"])
