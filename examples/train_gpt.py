"""Train a small GPT with its saved tensors in memory, then on disk: the same losses."""

import numpy as np

import offgrad
from offgrad import memory
from offgrad.cli.compare.dataset import batch, load_text
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.optim import AdamW

STEPS = 4

text = load_text(None)  # the bundled text


def train(policy: str) -> list[float]:
    """Return the losses of a training under `policy`; print its memory use."""
    offgrad.manual_seed(0)
    model = GPT(GPTConfig(layers=8, width=128, heads=4, context=256, dropout=0.1))
    optimizer = AdamW(model.parameters(), lr=3e-3)
    session = offgrad.offload(policy)
    memory.reset_peak()
    losses = []
    for step in range(STEPS):
        tokens, targets = map(offgrad.from_numpy, batch(text, step, 8, 256, seed=0))
        with session:
            loss = model.loss(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    peak = memory.format_nbytes(memory.max_allocated())
    print(f"{policy}: loss {losses[0]:.3f} to {losses[-1]:.3f}, peak {peak}")
    print(session.ledger)
    return losses


if __name__ == "__main__":
    kept, on_disk = train("keep"), train("disk")
    # Bit for bit, not only within a tolerance.
    np.testing.assert_array_equal(kept, on_disk)
