"""A ResNet-18 for images of CIFAR's size, in code that also runs with ``import torch``.

The architecture is that of He et al. (2015), with the first layer adapted to small images: a 3 x 3
convolution of stride 1, and no pooling. The caller passes the namespace of the convolution layers,
``nn`` itself where it has them.
"""

from typing import Any

import offgrad as torch
from offgrad import nn
from offgrad.nn import functional as F

CLASSES = 10


class Block(nn.Module):
    """Two convolutions added to their input: [B, C, H, W] to [B, O, H / stride, W / stride]."""

    def __init__(self, layers: Any, channels: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolution_1 = layers.Conv2d(channels, outputs, 3, stride, 1, bias=False)
        self.norm_1 = layers.BatchNorm2d(outputs)
        self.convolution_2 = layers.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_2 = layers.BatchNorm2d(outputs)
        projected = stride != 1 or channels != outputs
        self.shortcut = (
            nn.Sequential(
                layers.Conv2d(channels, outputs, 1, stride, 0, bias=False),
                layers.BatchNorm2d(outputs),
            )
            if projected
            else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        """Return the block's output."""
        inner = F.relu(self.norm_1(self.convolution_1(x)))
        inner = self.norm_2(self.convolution_2(inner))
        return F.relu(inner + self.shortcut(x))


class ResNet18(nn.Module):
    """Images [B, 3, H, W] to logits [B, 10].

    Args:
        layers: the namespace of Conv2d and BatchNorm2d.
        width: channels of the first of four stages; each stage doubles them.
    """

    def __init__(self, layers: Any, width: int = 64) -> None:
        super().__init__()
        self.convolution = layers.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = layers.BatchNorm2d(width)
        blocks: list[Any] = []
        channels = width
        for stage in range(4):
            outputs = width << stage
            blocks.append(Block(layers, channels, outputs, 1 if stage == 0 else 2))
            blocks.append(Block(layers, outputs, outputs, 1))
            channels = outputs
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Any) -> Any:
        """Return the logits."""
        x = F.relu(self.norm(self.convolution(images)))
        for block in self.blocks:
            x = block(x)
        return self.head(torch.mean(x, (2, 3)))

    def loss(self, images: Any, labels: Any) -> Any:
        """Return the mean cross-entropy of the logits with `labels` [B]."""
        return F.cross_entropy(self(images), labels)
