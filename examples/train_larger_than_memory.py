"""Train a GPT whose parameters, gradients and AdamW state do not fit in the memory it may use.

    python examples/train_larger_than_memory.py [--limit 192MiB] [--layers 12] [--check]

First it shows that the model does not train under the limit without paging. ``--check`` trains it
without the limit afterwards, in memory: the losses are the same, bit for bit.
"""

import argparse
import sys
from typing import Any

import offgrad
from offgrad import memory
from offgrad.cli.compare.dataset import batch, load_text
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.cli.compare.process_memory import peak_rss
from offgrad.optim import AdamW

SAMPLES, CONTEXT = 4, 256

text = load_text(None)  # the bundled text


def train(config: GPTConfig, steps: int, paged: bool) -> list[float]:
    """Return the losses; print each step with the memory used so far."""
    offgrad.manual_seed(0)
    if paged:
        # Each parameter goes to disk as soon as a module has it, and comes when it is used.
        with offgrad.offload_model("disk", window="96MiB") as offload:
            model = GPT(config)
    else:
        model = GPT(config)
    optimizer = AdamW(model.parameters(), lr=2e-5)  # its state follows the parameters
    needed = 4 * sum(each.nbytes for each in model.parameters())
    print(f"parameters, gradients and AdamW's state: {memory.format_nbytes(needed)}")
    losses = []
    # One batch again and again, so that a few steps show the loss fall.
    tokens, targets = map(offgrad.from_numpy, batch(text, 0, SAMPLES, CONTEXT, seed=0))
    for step in range(steps):
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


def size(value: str) -> str:
    """Check a size of memory."""
    try:
        memory.parse_nbytes(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def positive(value: str) -> int:
    """Return a number of at least 1."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, got {value}")
    return int(value)


def width(value: str) -> int:
    """Return a width of whole heads."""
    if positive(value) % 64:
        raise argparse.ArgumentTypeError(f"must be a multiple of 64, a head's width, got {value}")
    return int(value)


def main(arguments: Any) -> int:
    """Train under a limit; return the exit status."""
    config = GPTConfig(arguments.layers, arguments.width, arguments.width // 64, CONTEXT)
    print(f"limit of tensor memory: {arguments.limit}")
    with memory.limit(arguments.limit):
        print("\nwithout paging:")
        try:
            train(config, arguments.steps, paged=False)
        except memory.OutOfMemoryError as error:
            print(f"OutOfMemoryError: {error}")
        memory.reset_peak()
        print("\nwith paging:")
        try:
            losses = train(config, arguments.steps, paged=True)
        except memory.OutOfMemoryError as error:
            print(f"--limit {arguments.limit} is too low for paging, too: {error}", file=sys.stderr)
            return 2
    resident = memory.format_nbytes(peak_rss())
    print(f"peak of resident memory, by the operating system, libraries included: {resident}")
    if not arguments.check:
        return 0
    print("\nin memory, without the limit:")
    memory.reset_peak()
    expected = train(config, arguments.steps, paged=False)
    print("the same losses" if losses == expected else "other losses")
    return int(losses != expected)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--limit", type=size, default="192MiB", help="of tensor memory (%(default)s)"
    )
    parser.add_argument("--layers", type=positive, default=12)
    parser.add_argument("--width", type=width, default=512, help="a multiple of 64 (%(default)s)")
    parser.add_argument("--steps", type=positive, default=3)
    parser.add_argument("--check", action="store_true", help="train in memory as well, and compare")
    sys.exit(main(parser.parse_args()))
