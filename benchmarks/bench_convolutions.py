"""How fast is each convolution, and its two gradients, compared with torch?

    python -m benchmarks.bench_convolutions [--only "ResNet|depthwise"] [--threads 2] [--json FILE]

Layers of well-known networks, on float32 images. Both libraries take turns in one process; a pause
before each turn lets the other's threads fall asleep. Printed are the algorithm, and for the result
(y), the gradient of the input (dx) and that of the weight (dw) the ratio of offgrad's time to
torch's: the median of the rounds with quartiles, and that of the fastest rounds ("best"), which
other load on the machine disturbs least. The error is the root mean square of the difference from
float64, in units of that of torch. No time is asserted.
"""

import json
import re
import statistics
import time
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks._lib.options import checked
from benchmarks._lib.training_turns import quartiles
from offgrad import kernels
from offgrad.kernels import _conv

_PAUSE = 0.012  # OpenMP's threads spin for about 10 ms after their last work


class Layer(NamedTuple):
    """A square convolution."""

    name: str
    batch: int
    channels: int
    outputs: int
    side: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1


LAYERS = [
    Layer("ResNet-18, first", 64, 3, 64, 32),
    Layer("ResNet-18, stage 1", 64, 64, 64, 32),
    Layer("ResNet-18, stage 2, first", 64, 64, 128, 32, stride=2),
    Layer("ResNet-18, stage 2", 64, 128, 128, 16),
    Layer("ResNet-18, stage 3, first", 64, 128, 256, 16, stride=2),
    Layer("ResNet-18, stage 3", 64, 256, 256, 8),
    Layer("ResNet-18, stage 4, first", 64, 256, 512, 8, stride=2),
    Layer("ResNet-18, stage 4", 64, 512, 512, 4),
    Layer("ResNet-18, shortcut", 64, 64, 128, 32, 1, 2),
    Layer("ResNet-50, first", 8, 3, 64, 224, 7, 2),
    Layer("ResNet-50, pointwise", 16, 64, 256, 28, 1),
    Layer("U-Net, full size", 2, 32, 32, 128),
    Layer("U-Net, halved", 2, 128, 64, 64),
    Layer("5x5", 16, 32, 64, 32, 5),
    Layer("depthwise 3x3", 16, 64, 64, 56, groups=64),
    Layer("depthwise 3x3, stride 2", 16, 64, 64, 56, stride=2, groups=64),
    Layer("depthwise 3x3, small", 16, 256, 256, 14, groups=256),
    Layer("depthwise 7x7", 16, 96, 96, 28, 7, groups=96),
    Layer("ResNeXt, groups of 4", 16, 128, 128, 28, groups=32),
]


class Work:
    """The three computations of a layer, in both libraries."""

    def __init__(self, layer: Layer, torch: Any) -> None:
        rng = np.random.default_rng(0)
        self.layer, self.torch = layer, torch
        stride, padding = layer.stride, layer.kernel // 2
        self.steps = kernels.Steps((stride,) * 2, (padding,) * 2, (1, 1), layer.groups)
        size = (layer.side - 1) // stride + 1
        kernel = (layer.channels // layer.groups, layer.kernel, layer.kernel)
        scale = 1 / sqrt(np.prod(kernel))
        self.x = rng.normal(size=(layer.batch, layer.channels, layer.side, layer.side))
        self.weight = rng.normal(size=(layer.outputs, *kernel)) * scale
        self.grad = rng.normal(size=(layer.batch, layer.outputs, size, size))
        self.arrays = [each.astype(np.float32) for each in (self.x, self.weight, self.grad)]
        x, weight, grad = self.arrays
        self.results = [np.empty_like(each) for each in (grad, x, weight)]
        self.tensors = [torch.from_numpy(each) for each in self.arrays]

    def algorithm(self) -> str:
        """Return the name of the algorithm."""
        x, weight, grad = self.arrays
        way = _conv._way(grad, x, weight.shape[2:], self.steps)
        return "NumPy" if way is None else str(way.__name__).rpartition("_")[2]

    def mine(self) -> list[Callable[[], Any]]:
        """Return the calls of offgrad's kernels."""
        (x, weight, grad), (y, dx, dw), steps = self.arrays, self.results, self.steps
        return [
            lambda: kernels.convolve(x, weight, y, steps),
            lambda: kernels.convolve_transposed(grad, weight, dx, steps),
            lambda: kernels.convolve_weight(grad, x, dw, steps),
        ]

    def theirs(self, *tensors: Any) -> list[Callable[[], Any]]:
        """Return the calls of torch."""
        x, weight, grad = tensors or self.tensors
        stride, padding, dilation, groups = self.steps

        def gradient(number: int) -> Any:
            mask = [number == 0, number == 1, False]
            return self.torch.ops.aten.convolution_backward(
                grad, x, weight, None, stride, padding, dilation, False, (0, 0), groups, mask
            )[number]

        return [
            lambda: self.torch.conv2d(x, weight, None, stride, padding, dilation, groups),
            lambda: gradient(0),
            lambda: gradient(1),
        ]

    def errors(self) -> list[float]:
        """Return each result's error, in units of torch's."""
        wide = [self.torch.from_numpy(each) for each in (self.x, self.weight, self.grad)]
        errors = []
        for mine, own, call, exact in zip(
            self.mine(), self.results, self.theirs(), self.theirs(*wide), strict=True
        ):
            mine()
            expected = exact().numpy()
            theirs = call().numpy()
            errors.append(sqrt(((own - expected) ** 2).mean() / ((theirs - expected) ** 2).mean()))
        return errors


def measure(layer: Layer, torch: Any, rounds: int) -> dict[str, Any]:
    """Return a layer's figures."""
    work = Work(layer, torch)
    figures: dict[str, Any] = {**layer._asdict(), "algorithm": work.algorithm()}
    errors = work.errors()
    for name, mine, theirs, error in zip(
        ("y", "dx", "dw"), work.mine(), work.theirs(), errors, strict=True
    ):
        seconds: list[list[float]] = [[], []]
        for _ in range(rounds):
            for call, taken in zip((mine, theirs), seconds, strict=True):
                time.sleep(_PAUSE)
                began = time.perf_counter()
                call()
                taken.append(time.perf_counter() - began)
        ratios = [a / b for a, b in zip(*seconds, strict=True)]
        figures[name] = {
            "ratio": statistics.median(ratios),
            "quartiles": quartiles(ratios),
            "best": min(seconds[0]) / min(seconds[1]),
            "milliseconds": 1e3 * min(seconds[0]),
            "error": error,
        }
    return figures


def _row(figures: dict[str, Any]) -> list[str]:
    row = [figures["name"], figures["algorithm"]]
    for name in ("y", "dx", "dw"):
        each = figures[name]
        low, *_, high = each["quartiles"]
        row.append(f"{each['best']:.2f}  {each['ratio']:.2f} ({low:.2f}-{high:.2f})")
        row.append(f"{each['error']:.1f}")
    return row


@click.command()
@click.option("--only", type=checked(re.compile), default="", help="A regular expression.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=15, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures there.")
def main(only: re.Pattern[str], threads: int, rounds: int, path: Path | None) -> None:
    """Compare convolutions with torch's."""
    import torch

    torch.set_num_threads(threads)
    kernels.set_num_threads(threads)
    table = Table("layer", "algorithm", "y: best, median", "error", "dx", "error", "dw", "error")
    results = []
    for layer in LAYERS:
        if only.search(layer.name):
            results.append(measure(layer, torch, rounds))
            table.add_row(*_row(results[-1]))
    Console(width=140).print(table)
    if path is not None:
        path.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
