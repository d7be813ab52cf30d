"""ResNet-18 for small images (He et al., 2016): it also runs with ``import torch`` instead."""

from typing import Any

import numpy as np

from offgrad import nn
from offgrad.nn import functional as F

CLASSES = 10


class Block(nn.Module):
    """Two convolutions added to their input: [B, C, H, W] to [B, O, H / stride, W / stride]."""

    def __init__(self, channels: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolution_1 = nn.Conv2d(channels, outputs, 3, stride, 1, bias=False)
        self.norm_1 = nn.BatchNorm2d(outputs)
        self.convolution_2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_2 = nn.BatchNorm2d(outputs)
        projected = stride != 1 or channels != outputs
        self.shortcut = (
            nn.Sequential(
                nn.Conv2d(channels, outputs, 1, stride, 0, bias=False), nn.BatchNorm2d(outputs)
            )
            if projected
            else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        inner = F.relu(self.norm_1(self.convolution_1(x)))
        return F.relu(self.norm_2(self.convolution_2(inner)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Images [B, 3, H, W] to logits [B, 10].

    Args:
        width: channels of the first of four stages; each further stage has twice as many.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks: list[Any] = []
        channels = width
        for stage in range(4):
            outputs = width << stage
            blocks.append(Block(channels, outputs, 1 if stage == 0 else 2))
            blocks.append(Block(outputs, outputs, 1))
            channels = outputs
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Any) -> Any:
        x = F.relu(self.norm(self.convolution(images)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))

    def loss(self, images: Any, labels: Any) -> Any:
        """Return the mean cross-entropy of the logits with `labels` [B]."""
        return F.cross_entropy(self(images), labels)


def build(sizes: dict[str, Any]) -> ResNet18:
    """Return the model of these sizes."""
    return ResNet18(sizes["width"])


def batch(random: np.random.Generator, sizes: dict[str, Any]) -> tuple[Any, Any]:
    """Return images [B, 3, H, W] and labels [B]."""
    shape = sizes["batch"], 3, sizes["image"], sizes["image"]
    images = random.standard_normal(shape, np.float32)
    return images, random.integers(0, CLASSES, sizes["batch"])
