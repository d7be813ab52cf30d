"""Classify handwritten digits with a vision transformer of PyTorch's layers.

python examples/models/vit.py --offload recompute
"""

from typing import Any

from common import F, arguments, batches, digits, initialise, nn, offload, report, torch


class ViT(nn.Module):
    """Patches of 2 x 2 pixels and a class token through encoder layers: [B, 1, 8, 8] to [B, 10]."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, images: Any) -> Any:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.size(0), -1, -1), x), dim=1) + self.positions
        return self.head(self.encoder(x)[:, 0])


def main() -> None:
    """Train with a warm-up of the learning rate."""
    args = arguments(__doc__, steps=100, batch=64)
    images, labels = digits()
    model = initialise(ViT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.steps)
    rows = batches(images[:1500], labels[:1500], steps=args.steps, batch=args.batch)
    for step, (x, y) in enumerate(rows):
        with offload(args.offload):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        report(step, loss=loss)
    model.eval()
    with torch.inference_mode():
        guesses = model(torch.from_numpy(images[1500:])).argmax(-1)
        right = (guesses == torch.from_numpy(labels[1500:])).float().mean()
    print(f"accuracy {right.item():.2%}")


if __name__ == "__main__":
    main()
