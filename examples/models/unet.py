"""Find the strokes of noisy digits, pixel by pixel, with a U-Net (Ronneberger, 2015).

python examples/models/unet.py --offload budget:8MiB
"""

from typing import Any

import numpy as np
from common import F, arguments, batches, digits, initialise, nn, offload, report, torch


def double(channels: int, outputs: int) -> Any:
    """Return two 3 x 3 convolutions with normalisation."""
    return nn.Sequential(
        nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Down by pooling, up by transposed convolution and by interpolation: [B, 1, H, W] each."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.down1, self.down2 = double(1, width), double(width, 2 * width)
        self.middle = double(2 * width, 4 * width)
        self.rise2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up2 = double(4 * width, 2 * width)
        self.rise1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.up1 = double(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Any) -> Any:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.middle(self.pool(second))
        x = self.up2(torch.cat([second, self.rise2(x)], dim=1))
        x = self.up1(torch.cat([first, self.rise1(x)], dim=1))
        return self.out(x)


def dice(logits: Any, target: Any) -> Any:
    """Return 1 - the overlap of the predicted and the true pixels."""
    predicted = logits.sigmoid()
    overlap = (predicted * target).sum((1, 2, 3))
    return 1 - ((2 * overlap + 1) / (predicted.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)).mean()


def main() -> None:
    """Train on images twice as large, with noise."""
    args = arguments(__doc__, steps=40, batch=32)
    images = digits()[0].repeat(2, axis=2).repeat(2, axis=3)
    masks = (images > 0.5).astype(np.float32)
    noise = np.random.default_rng(3).standard_normal(images.shape).astype(np.float32)
    model = initialise(UNet())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
    rows = batches(images + noise / 2, masks, steps=args.steps, batch=args.batch)
    for step, (x, target) in enumerate(rows):
        with offload(args.offload):
            logits = model(x)
            loss = F.binary_cross_entropy_with_logits(logits, target) + dice(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step, loss=loss)


if __name__ == "__main__":
    main()
