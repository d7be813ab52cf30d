"""Generate handwritten digits with two convolutional networks that compete (Radford, 2015).

python examples/models/dcgan.py --offload disk
"""

from typing import Any

import numpy as np
from common import arguments, batches, digits, initialise, nn, offload, report, torch

NOISE, WIDTH = 16, 16

generator = nn.Sequential(
    nn.ConvTranspose2d(NOISE, 2 * WIDTH, 2, 1, 0, bias=False),
    nn.BatchNorm2d(2 * WIDTH),
    nn.ReLU(True),
    nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, 2, 1, bias=False),
    nn.BatchNorm2d(WIDTH),
    nn.ReLU(True),
    nn.ConvTranspose2d(WIDTH, 1, 4, 2, 1, bias=False),
    nn.Tanh(),
)
discriminator = nn.Sequential(
    nn.Conv2d(1, WIDTH, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2, 1, bias=False),
    nn.BatchNorm2d(2 * WIDTH),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(2 * WIDTH, 1, 2, 1, 0, bias=False),
    nn.Flatten(0),
)


def main() -> None:
    """Train both in turns."""
    args = arguments(__doc__, steps=60, batch=64)
    images = digits()[0] * 2 - 1
    initialise(generator, 0)
    initialise(discriminator, 1)
    criterion = nn.BCEWithLogitsLoss()
    options: dict[str, Any] = {"lr": 2e-4, "betas": (0.5, 0.999)}
    step_d = torch.optim.Adam(discriminator.parameters(), **options)
    step_g = torch.optim.Adam(generator.parameters(), **options)
    random = np.random.default_rng(2)
    real_label, fake_label = torch.ones(args.batch), torch.zeros(args.batch)
    for step, (real,) in enumerate(batches(images, steps=args.steps, batch=args.batch)):
        noise = random.standard_normal((args.batch, NOISE, 1, 1)).astype(np.float32)
        discriminator.zero_grad()
        with offload(args.offload):
            fake = generator(torch.from_numpy(noise))
            loss_real = criterion(discriminator(real), real_label)
            loss_fake = criterion(discriminator(fake.detach()), fake_label)
        loss_real.backward()
        loss_fake.backward()
        step_d.step()
        generator.zero_grad()
        with offload(args.offload):
            loss_g = criterion(discriminator(fake), real_label)
        loss_g.backward()
        step_g.step()
        report(step, discriminator=loss_real + loss_fake, generator=loss_g)


if __name__ == "__main__":
    main()
