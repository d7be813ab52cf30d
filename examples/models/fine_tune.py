"""Train on the digits 0 to 4, save safetensors, then teach a frozen network the digits 5 to 9.

python examples/models/fine_tune.py --offload disk
"""

import tempfile
from pathlib import Path
from typing import Any

from common import (
    ON_TORCH,
    F,
    arguments,
    batches,
    digits,
    initialise,
    nn,
    offload,
    report,
    torch,
)

if ON_TORCH:
    from safetensors.torch import load_file, save_file
else:
    from offgrad.utils.safetensors import load_file, save_file


def network(classes: int) -> Any:
    """Return a body of convolutions, and a head."""
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.SiLU(),
        nn.Flatten(),
    )
    return nn.Sequential(body, nn.Linear(32 * 16, classes))


def train(model: Any, optimizer: Any, data: Any, args: Any, name: str) -> None:
    """Run `args.steps` steps; report the loss as `name`."""
    for step, (x, y) in enumerate(batches(*data, steps=args.steps, batch=args.batch)):
        with offload(args.offload):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step, **{name: loss})


def main() -> None:
    """Train both tasks; the second reads the file of the first."""
    args = arguments(__doc__, steps=40, batch=64)
    images, labels = digits()
    low = labels < 5
    first = initialise(network(5))
    sgd = torch.optim.SGD(first.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    train(first, sgd, (images[low], labels[low]), args, "pretraining")
    second = initialise(network(5), seed=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "first.safetensors")
        save_file(first[0].state_dict(), path)
        second[0].load_state_dict(load_file(path))
    second[0].requires_grad_(False)
    head = [each for each in second.parameters() if each.requires_grad]
    before = second[0][0].weight.clone()
    adamw = torch.optim.AdamW(head, lr=3e-3)
    train(second, adamw, (images[~low], labels[~low] - 5), args, "fine-tuning")
    assert torch.equal(before, second[0][0].weight), "a frozen weight changed"


if __name__ == "__main__":
    main()
