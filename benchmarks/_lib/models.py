"""Models of `benchmarks.bench_models`, in code that also runs with ``import torch``.

Each is a module; `MODELS` gives it, its loss, and NumPy data for a batch. ResNet and LSTM are those
of `offgrad compare`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import offgrad as torch
from offgrad import nn
from offgrad.nn import functional as F

CLASSES = 10


class ViT(nn.Module):
    """ViT-tiny (Dosovitskiy et al., 2021; Touvron et al., 2021) on patches of 4 x 4 pixels."""

    def __init__(self, image: int, width: int = 192, heads: int = 3, layers: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (image // 4) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        """Return logits [B, 10] of images [B, 3, H, W]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.encoder(x)[:, 0]))


class _Double(nn.Sequential):
    """Two 3 x 3 convolutions with batch norm and ReLU."""

    def __init__(self, channels: int, outputs: int) -> None:
        parts: list[Any] = []
        for inputs in (channels, outputs):
            parts += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)]
            parts += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        super().__init__(*parts)


class UNet(nn.Module):
    """Four levels with max pooling and transposed convolutions (Ronneberger et al., 2015)."""

    def __init__(self, width: int, levels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(
            _Double(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in widths[-2::-1])
        self.up = nn.ModuleList(_Double(2 * a, a) for a in widths[-2::-1])
        self.pool = nn.MaxPool2d(2)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Any) -> Any:
        """Return logits [B, 1, H, W] of images [B, 3, H, W]."""
        kept: list[Any] = []
        for level, layer in enumerate(self.down):
            x = layer(self.pool(x) if level else x)
            kept.append(x)
        for rise, up, beside in zip(self.rise, self.up, kept[-2::-1], strict=True):
            x = up(torch.cat([beside, rise(x)], 1))
        return self.out(x)


def _images(sizes: dict[str, Any]) -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    shape = sizes["batch"], 3, sizes["image"], sizes["image"]
    return random.standard_normal(shape, np.float32), random.integers(0, CLASSES, sizes["batch"])


def _masks(sizes: dict[str, Any]) -> tuple[Any, Any]:
    images, _ = _images(sizes)
    return images, (images.mean(1, keepdims=True) > 0).astype(np.float32)


def _sequences(sizes: dict[str, Any]) -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    shape = 2, sizes["batch"], sizes["steps"], sizes["width"]
    return tuple(random.standard_normal(shape, np.float32))


Load = Callable[[str], Any]
"""Imports a module of `offgrad compare` for the library."""

Data = Callable[[dict[str, Any]], Any]
MODELS: dict[str, tuple[Callable[[dict[str, Any], Load], Any], Callable[[Any, Any], Any], Data]] = {
    "resnet18": (lambda sizes, load: load("resnet").ResNet18(), F.cross_entropy, _images),
    "vit": (lambda sizes, load: ViT(sizes["image"]), F.cross_entropy, _images),
    "unet": (lambda sizes, load: UNet(sizes["width"]), F.binary_cross_entropy_with_logits, _masks),
    "lstm": (lambda sizes, load: load("lstm").build(sizes), F.mse_loss, _sequences),
}
"""For each name: the model, its loss of output and target, and inputs and targets."""
