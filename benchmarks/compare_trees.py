"""Is this checkout slower than another one? Training steps of both, side by side.

    python -m benchmarks.compare_trees OTHER_CHECKOUT [--policy disk] [--rounds 15]

Each policy trains the GPT of `offgrad compare` in one process for each checkout. The processes take
turns step by step, so that noise affects both alike. Printed are the medians of the ratios of each
round's steps, this checkout's by the other's, with quartiles.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks._lib.options import numbers
from benchmarks._lib.training_turns import quartiles

ROOT = Path(__file__).parents[1]
POLICIES = ("keep", "pool", "disk", "zarr", "recompute,then=disk", "budget:64MiB", "last:8")

WORKER = """
import json, sys, time
from importlib import import_module

import numpy as np
import offgrad

policy, folder, sizes, batch = json.loads(sys.argv[1])
try:
    gpt = import_module("offgrad.cli.compare.gpt")
except ModuleNotFoundError:
    gpt = import_module("offgrad.cli.gpt")
offgrad.manual_seed(0)
*numbers, dropout = sizes
model = gpt.GPT(gpt.GPTConfig(*map(int, numbers), dropout))
optimizer = offgrad.optim.AdamW(model.parameters(), lr=1e-3)
tokens = np.random.default_rng(0).integers(0, 256, (batch, int(numbers[-1]) + 1))
x, y = (offgrad.tensor(np.ascontiguousarray(each)) for each in (tokens[:, :-1], tokens[:, 1:]))
session = offgrad.offload(policy, directory=folder)
for _ in sys.stdin:
    began = time.perf_counter()
    optimizer.zero_grad()
    with session:
        loss = model.loss(x, y)
    loss.backward()
    optimizer.step()
    print(json.dumps([time.perf_counter() - began, loss.item()]), flush=True)
"""


class Worker:
    """A training with one policy, in the library of one checkout."""

    def __init__(self, checkout: Path, job: Sequence[Any]) -> None:
        paths = os.pathsep.join([str(checkout), str(checkout / "storage")])
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(job)],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self) -> tuple[float, float]:
        """Train for a step; return its seconds and its loss."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seconds, loss = json.loads(self._process.stdout.readline())
        return seconds, loss

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()


@click.command()
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--policy", "policies", multiple=True, default=POLICIES, show_default=True)
@click.option(
    "--sizes",
    type=numbers(float, " "),
    default="6 512 8 512 0.1",
    show_default=True,
    help="Of the GPT.",
)
@click.option("--batch", default=4, show_default=True)
@click.option("--rounds", default=15, show_default=True)
def main(other: Path, policies: Sequence[str], sizes: list[float], batch: int, rounds: int) -> None:
    """Print how many times the OTHER checkout's step a step of this one takes."""
    for policy in policies:
        with tempfile.TemporaryDirectory() as folder:
            job = (policy, folder, sizes, batch)
            workers = [Worker(checkout.resolve(), job) for checkout in (ROOT, other)]
            steps = [[worker.step() for worker in workers] for _ in range(rounds + 2)]
            for worker in workers:
                worker.stop()
        losses = [
            "identical" if mine == others else "DIFFERENT" for (_, mine), (_, others) in steps
        ]
        low, median, high = quartiles([mine / others for (mine, _), (others, _) in steps[2:]])
        click.echo(f"{policy:24s} {median:.2f} ({low:.2f} to {high:.2f}), losses {losses[-1]}")


if __name__ == "__main__":
    main()
