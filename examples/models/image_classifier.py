"""Classify handwritten digits with a small ResNet, then measure its accuracy.

python examples/models/image_classifier.py --offload disk
"""

from typing import Any

from common import F, arguments, batches, digits, initialise, nn, offload, report, torch


class Block(nn.Module):
    """Two 3 x 3 convolutions, added to their input: [B, C, H, W] to [B, O, H / s, W / s]."""

    def __init__(self, channels: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or channels != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Any) -> Any:
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + identity)


class ResNet(nn.Module):
    """Three stages of blocks, then the mean over each channel: [B, 1, 8, 8] to [B, 10]."""

    def __init__(self, width: int = 16, blocks: int = 1) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        stages: list[Any] = []
        channels = width
        for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
            for block in range(blocks):
                stages.append(Block(channels, outputs, stride if block == 0 else 1))
                channels = outputs
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, 10)

    def forward(self, x: Any) -> Any:
        x = self.stages(self.stem(x))
        return self.fc(torch.flatten(self.pool(x), 1))


def main() -> None:
    """Train, then classify the images that training did not see."""
    args = arguments(__doc__, steps=60, batch=64)
    images, labels = digits()
    model = initialise(ResNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    model.train()
    rows = batches(images[:1500], labels[:1500], steps=args.steps, batch=args.batch)
    for step, (x, y) in enumerate(rows):
        with offload(args.offload):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        report(step, loss=loss)
    model.eval()
    with torch.no_grad():
        guesses = model(torch.from_numpy(images[1500:])).argmax(dim=1)
        right = (guesses == torch.from_numpy(labels[1500:])).float().mean().item()
    print(f"accuracy {right:.2%}")


if __name__ == "__main__":
    main()
