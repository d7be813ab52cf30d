"""Train a GPT whose parameters, gradients and AdamW state do not fit in the memory it may use.

    python examples/train_larger_than_memory.py [--limit 192MiB] [--layers 12] [--check]

``--check`` trains the same model in memory afterwards: the losses are the same, bit for bit.
"""

import argparse
import sys
from typing import Any

import offgrad
from offgrad import memory
from offgrad.cli.compare.dataset import batch, load_text
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.optim import AdamW

SAMPLES, CONTEXT = 4, 256

text = load_text(None)  # the source of Python's standard library


def train(config: GPTConfig, steps: int, paged: bool) -> list[float]:
    """Return the losses; print each step with the memory used so far."""
    offgrad.manual_seed(0)
    if paged:
        # Each parameter goes to disk as soon as a module has it, and comes when it is used.
        with offgrad.offload_model("disk", window="96MiB") as offload:
            model = GPT(config)
    else:
        model = GPT(config)
    optimizer = AdamW(model.parameters(), lr=1e-3)  # its state follows the parameters
    needed = 4 * sum(each.nbytes for each in model.parameters())
    print(f"parameters, gradients and AdamW's state: {memory.format_nbytes(needed)}")
    losses = []
    for step in range(steps):
        tokens, targets = map(offgrad.from_numpy, batch(text, step, SAMPLES, CONTEXT, seed=0))
        with offgrad.offload("disk" if paged else "keep"):  # tensors saved for backward
            loss = model.loss(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        peak = memory.format_nbytes(memory.max_allocated())
        print(f"step {step}: loss {losses[-1]:.4f}, peak of all tensors so far {peak}", flush=True)
    if paged:
        print(offload.ledger)
    return losses


def main(arguments: Any) -> int:
    """Train under a limit; return the exit status."""
    config = GPTConfig(arguments.layers, arguments.width, arguments.width // 64, CONTEXT)
    print(f"limit of tensor memory: {arguments.limit}")
    with memory.limit(arguments.limit):
        losses = train(config, arguments.steps, paged=True)
    if not arguments.check:
        return 0
    print("\nthe same in memory:")
    memory.reset_peak()
    expected = train(config, arguments.steps, paged=False)
    print("the same losses" if losses == expected else "other losses")
    return int(losses != expected)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--limit", default="192MiB", help="of tensor memory (%(default)s)")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="train in memory as well, and compare")
    sys.exit(main(parser.parse_args()))
