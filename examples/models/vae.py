"""Compress handwritten digits to two numbers with a variational autoencoder, and draw new ones.

python examples/models/vae.py --offload zarr
"""

from typing import Any

import numpy as np
from common import F, arguments, batches, digits, initialise, nn, offload, report, torch

LATENT = 2


class VAE(nn.Module):
    """An encoder to mean and log variance, and a decoder: [B, 64] to [B, 64] (Kingma, 2014)."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.mean, self.log_variance = nn.Linear(hidden, LATENT), nn.Linear(hidden, LATENT)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, hidden), nn.LeakyReLU(0.1), nn.Linear(hidden, 64)
        )

    def forward(self, x: Any, noise: Any) -> tuple[Any, Any, Any]:
        hidden = F.relu(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        sample = mean + noise * torch.exp(0.5 * log_variance)
        return self.decoder(sample), mean, log_variance


def main() -> None:
    """Train, then print a digit of the decoder's imagination."""
    args = arguments(__doc__, steps=300, batch=128)
    images = digits()[0].reshape(-1, 64)
    model = initialise(VAE())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    random = np.random.default_rng(1)
    for step, (x,) in enumerate(batches(images, steps=args.steps, batch=args.batch)):
        noise = torch.from_numpy(random.standard_normal((args.batch, LATENT)).astype(np.float32))
        with offload(args.offload):
            logits, mean, log_variance = model(x, noise)
            reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
            divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
            loss = (reconstruction + divergence) / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step, loss=loss, divergence=divergence / len(x))
    with torch.no_grad():
        drawn = torch.sigmoid(model.decoder(torch.zeros(1, LATENT))).view(8, 8)
    for row in drawn.tolist():
        print("".join(" .:+#"[min(int(value * 5), 4)] * 2 for value in row))


if __name__ == "__main__":
    main()
