"""How fast are vmap, per-sample gradients, Jacobians and Hessians, compared with torch?

    python -m benchmarks.bench_func [--only "Jacobian"] [--threads 2] [--rounds 25] [--json FILE]

The same programs run on both libraries, with the same parameters and data, in turns; a pause before
each turn lets the other's threads fall asleep. Results are compared first. Printed are medians of
the rounds' ratios with quartiles, and the ratio of the fastest rounds ("best"). "Loop" is the time
of offgrad's program with a Python loop over the samples instead of `vmap`, times torch. No time is
asserted.
"""

import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import offgrad
from benchmarks._lib.options import checked
from benchmarks._lib.training_turns import quartiles

Figures = dict[str, Any]
Program = Callable[[], Any]

_PAUSE = 0.012  # OpenMP's threads spin for about 10 ms after their last work
_TOLERANCE = 1e-3


class Programs:
    """The programs of one library.

    Args:
        lib: the library.
        func: its module of function transforms.
    """

    def __init__(self, lib: Any, func: Any) -> None:
        self.lib, self.func = lib, func

    def tensor(self, *shape: int, seed: int = 0) -> Any:
        """Return normally distributed float32 numbers."""
        values = np.random.default_rng(seed).standard_normal(shape) * 0.3
        return self.lib.tensor(values.astype(np.float32))

    def filled(self, model: Any) -> tuple[Any, dict[str, Any]]:
        """Return a model and new parameters for it."""
        shapes = [(name, tuple(each.shape)) for name, each in model.named_parameters()]
        return model, {
            name: self.tensor(*shape, seed=number) for number, (name, shape) in enumerate(shapes)
        }

    def mlp(self) -> tuple[Any, dict[str, Any]]:
        """Return an MLP 64-128-10."""
        nn = self.lib.nn
        return self.filled(nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)))

    def cnn(self) -> tuple[Any, dict[str, Any]]:
        """Return two convolutions with a group norm, for images of 3x16x16."""
        nn = self.lib.nn
        layers = [nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10)]
        return self.filled(nn.Sequential(*layers))

    def labels(self, count: int) -> Any:
        """Return classes from 0 to 9."""
        return self.lib.tensor(np.arange(count) % 10)

    def per_sample_gradients(self, network: Any, data: Any, is_loop: bool) -> Program:
        """The gradient of each sample's loss by the parameters."""
        model, state = network
        labels = self.labels(len(data))

        def loss(state: Any, x: Any, label: Any) -> Any:
            out = self.func.functional_call(model, state, (x.unsqueeze(0),))
            return self.lib.nn.functional.cross_entropy(out, label.unsqueeze(0))

        gradient = self.func.grad(loss)
        if is_loop:
            return lambda: [
                gradient(state, x, label) for x, label in zip(data, labels, strict=True)
            ]
        return lambda: self.func.vmap(gradient, in_dims=(None, 0, 0))(state, data, labels)

    def ensemble(self, is_loop: bool) -> Program:
        """Twenty models of one architecture, on the same data."""
        networks = [self.mlp() for _ in range(20)]
        model = networks[0][0]
        stacked = {
            name: self.lib.stack([state[name] for _, state in networks]) for name in networks[0][1]
        }
        data = self.tensor(256, 64)
        call = self.func.functional_call
        if is_loop:
            return lambda: [call(model, state, (data,)) for _, state in networks]
        run = self.func.vmap(lambda state: call(model, state, (data,)))
        return lambda: run(stacked)

    def layer(self) -> Callable[[Any], Any]:
        """Return a function of 30 numbers with as many results."""
        weight = self.tensor(30, 30)
        return lambda x: self.lib.tanh(weight @ x).sin()

    def transformed(self, transform: str, count: int, is_loop: bool) -> Program:
        """A Jacobian or Hessian at one point, or at several."""
        layer = self.layer()
        function = (lambda x: (layer(x) ** 3).sum()) if transform == "hessian" else layer
        derivative = getattr(self.func, transform)(function)
        if not count:
            point = self.tensor(30)
            return lambda: derivative(point)
        points = self.tensor(count, 30)
        if is_loop:
            return lambda: [derivative(each) for each in points]
        return lambda: self.func.vmap(derivative)(points)

    def tangents(self, is_loop: bool) -> Program:
        """Products of a Jacobian with a vector, at 64 points."""
        layer, points = self.layer(), self.tensor(64, 30)

        def tangent(x: Any) -> Any:
            return self.func.jvp(layer, (x,), (x,))[1]

        if is_loop:
            return lambda: [tangent(each) for each in points]
        return lambda: self.func.vmap(tangent)(points)

    def all(self, is_loop: bool) -> dict[str, Program]:
        """Return the programs by name."""
        return {
            "per-sample gradients, MLP, 256 samples": self.per_sample_gradients(
                self.mlp(), self.tensor(256, 64), is_loop
            ),
            "per-sample gradients, CNN, 32 images": self.per_sample_gradients(
                self.cnn(), self.tensor(32, 3, 16, 16), is_loop
            ),
            "ensemble of 20 MLPs": self.ensemble(is_loop),
            "Jacobian 30x30 by rows": self.transformed("jacrev", 0, is_loop),
            "Jacobian 30x30 by columns": self.transformed("jacfwd", 0, is_loop),
            "Hessian of 30 numbers": self.transformed("hessian", 0, is_loop),
            "64 Jacobians by rows": self.transformed("jacrev", 64, is_loop),
            "16 Hessians": self.transformed("hessian", 16, is_loop),
            "64 products of a Jacobian and a vector": self.tangents(is_loop),
        }


def _leaves(result: Any) -> list[Any]:
    if isinstance(result, dict):
        return [leaf for key in sorted(result) for leaf in _leaves(result[key])]
    return [result]


def _check(name: str, mine: Any, theirs: Any) -> None:
    for a, b in zip(_leaves(mine), _leaves(theirs), strict=True):
        have, want = a.detach().numpy(), b.detach().numpy()
        size = float(np.abs(want).max())
        if have.shape != want.shape or float(np.abs(have - want).max()) > _TOLERANCE * size:
            raise click.ClickException(f"{name}: the results of the two libraries differ")


def _seconds(program: Program) -> float:
    time.sleep(_PAUSE)
    began = time.perf_counter()
    program()
    return time.perf_counter() - began


def _measure(name: str, mine: Program, theirs: Program, loop: Program, rounds: int) -> Figures:
    _check(name, mine(), theirs())
    times: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:
            times.append((_seconds(mine), _seconds(theirs)))
        else:
            other = _seconds(theirs)
            times.append((_seconds(mine), other))
    loop()
    loops = [_seconds(loop) for _ in range(3)]
    best = min(each for _, each in times)
    return {
        "name": name,
        "ratio": quartiles([a / b for a, b in times]),
        "best": min(each for each, _ in times) / best,
        "loop": min(loops) / best,
        "torch_ms": 1e3 * statistics.median(each for _, each in times),
    }


@click.command()
@click.option("--only", type=checked(re.compile), default="", help="A regular expression.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=25, show_default=True)
@click.option("--json", "file", type=click.Path(path_type=Path), help="A file for all figures.")
def main(only: re.Pattern[str], threads: int, rounds: int, file: Path | None) -> None:
    """Compare function transforms with torch's."""
    import torch
    import torch.func

    torch.set_num_threads(threads)
    offgrad.set_num_threads(threads)
    mine = Programs(offgrad, offgrad.func)
    batches, loops = mine.all(False), mine.all(True)
    theirs = Programs(torch, torch.func).all(False)
    rows = [
        _measure(name, batches[name], theirs[name], loops[name], rounds)
        for name in batches
        if only.search(name)
    ]
    table = Table(title="Times torch")
    for column in ("program", "median", "quartiles", "best", "loop", "torch ms"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for row in rows:
        low, median, high = row["ratio"]
        table.add_row(
            row["name"],
            f"{median:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{row['best']:.2f}",
            f"{row['loop']:.1f}",
            f"{row['torch_ms']:.2f}",
        )
    Console(width=120).print(table)
    if file is not None:
        file.write_text(json.dumps({"threads": threads, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
