"""How fast is each operation at millions of elements, compared with torch?

    python -m benchmarks.bench_ops [--only "loss|sum"] [--dtype bfloat16] [--seconds 1]
                                   [--json FILE]

Every operation of the tests' table that torch has under the same name runs forward and backward on
tensors of about --elements elements, of float32 or --dtype. Both libraries take turns in one
process on --threads threads; a pause before each turn lets the other's threads fall asleep. Results
and gradients are compared first. Printed are medians of the rounds' ratios with quartiles, and the
ratio of the fastest rounds ("best"), which other load on the machine disturbs least; it orders the
table of the worst operations. No time is asserted.
"""

import json
import os
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
from benchmarks._lib.large_samples import TooSmall, names, sample_of
from benchmarks._lib.options import checked
from benchmarks._lib.training_turns import quartiles
from offgrad import kernels
from tests.ops.opspec import Array, is_floating, outputs_of
from tests.ops.test_ops import SPECS

Figures = dict[str, Any]

_PAUSE = 0.012  # OpenMP's threads spin for about 10 ms after their last work
_MIN_ROUNDS, _MAX_ROUNDS = 5, 50
_TOLERANCES = {"float32": 1e-3, "float16": 4e-3, "bfloat16": 3e-2}


class Side:
    """One library's operation on its own copies of the inputs."""

    def __init__(self, lib: Any, call: Callable[..., Any], arrays: list[Array], dtype: str) -> None:
        self.lib, self.call = lib, call
        make = offgrad.tensor if lib is offgrad else lambda each: lib.from_numpy(each.copy())
        self.inputs = [
            make(each).to(getattr(lib, dtype)) if each.dtype == np.float32 else make(each)
            for each in arrays
        ]
        self.leaves = [
            tensor.requires_grad_()
            for tensor, array in zip(self.inputs, arrays, strict=True)
            if is_floating(array)
        ]
        self.starts: list[Any] | None = None

    def run(self) -> tuple[float, float, Any, Any]:
        """Return the seconds of forward and backward, the outputs and the gradients."""
        began = time.perf_counter()
        outputs = outputs_of(self.call(self.lib, *self.inputs))
        middle = time.perf_counter()
        recorded = [each for each in outputs if each.requires_grad]
        if not recorded or not self.leaves:
            return middle - began, 0.0, outputs, ()
        if self.starts is None:
            self.starts = [self.lib.ones(tuple(each.shape), dtype=each.dtype) for each in recorded]
        middle_again = time.perf_counter()
        grads = self.lib.autograd.grad(recorded, self.leaves, self.starts, allow_unused=True)
        return middle - began, time.perf_counter() - middle_again, outputs, grads


def _array(tensor: Any) -> Array:
    tensor = tensor.detach()
    tensor = tensor.float() if tensor.element_size() < 4 and tensor.is_floating_point() else tensor
    if isinstance(tensor, offgrad.Tensor):
        return tensor.numpy()
    array: Array = tensor.numpy(force=True)  # also of torch's tensors of zeros without memory
    return array


def _differ(mine: Any, theirs: Any, tolerance: float) -> str | None:
    """Return a description of the first result that differs by more than rounding."""
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a is None or b is None:
            continue
        have, want = _array(a), _array(b)
        if have.shape != want.shape:
            return f"shape of result {number}"
        finite = np.isfinite(want)
        size = float(np.abs(want[finite]).max()) if finite.any() else 0.0
        if not np.allclose(have, want, tolerance, tolerance * size + 1e-6, equal_nan=True):
            return f"result {number}"
    return None


def measure(name: str, torch: Any, elements: int, budget: float, dtype: str) -> Figures:
    """Return an operation's figures; with "skipped", the reason why it has none."""
    specs = {spec.name: spec for spec in SPECS}
    try:
        call, arrays = sample_of(name, specs, torch, elements)
        sides = {
            key: Side(lib, call, arrays, dtype)
            for key, lib in (("torch", torch), ("offgrad", offgrad))
        }
        checked = {key: side.run() for key, side in sides.items()}
    except (TooSmall, RuntimeError, ValueError, IndexError, AssertionError) as error:
        return {"name": name, "skipped": str(error).partition("\n")[0]}
    figures: Figures = {"name": name, "shapes": [list(each.shape) for each in arrays]}
    figures["differs"] = next(
        filter(
            None,
            (
                _differ(checked["offgrad"][part], checked["torch"][part], _TOLERANCES[dtype])
                for part in (2, 3)
            ),
        ),
        None,
    )
    seconds = {key: sum(side.run()[:2]) for key, side in sides.items()}  # warm; not counted
    del checked
    times: dict[str, list[tuple[float, float]]] = {key: [] for key in sides}
    rounds = int(budget / (sum(seconds.values()) + 2 * _PAUSE))
    for number in range(min(max(rounds, _MIN_ROUNDS), _MAX_ROUNDS)):
        order = list(sides) if number % 2 else list(reversed(sides))
        for key in order:
            time.sleep(_PAUSE)
            times[key].append(sides[key].run()[:2])
    for at, phase in enumerate(("forward", "backward")):
        figures[phase] = _compared(
            [each[at] for each in times["offgrad"]], [each[at] for each in times["torch"]]
        )
    figures["both"] = _compared(*([sum(each) for each in times[key]] for key in reversed(sides)))
    return figures


def _compared(mine: list[float], theirs: list[float]) -> Figures | None:
    if not any(mine):
        return None
    return {
        "offgrad_ms": 1e3 * statistics.median(mine),
        "torch_ms": 1e3 * statistics.median(theirs),
        "ratio": quartiles([a / b for a, b in zip(mine, theirs, strict=True)]),
        "best": min(mine) / min(theirs),
        "best_torch_ms": 1e3 * min(theirs),
    }


def _table(rows: list[Figures], worst: int) -> Table:
    table = Table(title=f"The {min(worst, len(rows))} worst operations, times torch")
    for column in (
        "operation",
        "best",
        "forward",
        "backward",
        "median",
        "quartiles",
        "torch ms",
        "differs",
    ):
        table.add_column(column, justify="left" if column in ("operation", "differs") else "right")
    for row in sorted(rows, key=lambda each: -each["both"]["best"])[:worst]:
        low, median, high = row["both"]["ratio"]
        phases = [row[each] for each in ("forward", "backward")]
        table.add_row(
            row["name"],
            f"{row['both']['best']:.2f}",
            *("" if each is None else f"{each['best']:.2f}" for each in phases),
            f"{median:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{row['both']['best_torch_ms']:.1f}",
            row["differs"] or "",
        )
    return table


def _save(file: Path, threads: int, elements: int, dtype: str, rows: list[Figures]) -> None:
    found = {"threads": threads, "elements": elements, "dtype": dtype, "rows": rows}
    file.write_text(json.dumps(found, indent=1))


@click.command()
@click.option(
    "--only",
    type=checked(re.compile),
    default="",
    help="A regular expression.",
)
@click.option("--dtype", type=click.Choice([*_TOLERANCES]), default="float32", help="Of floats.")
@click.option("--elements", default=2_000_000, show_default=True)
@click.option("--seconds", default=1.0, show_default=True, help="Time to spend on an operation.")
@click.option("--threads", default=2, show_default=True)
@click.option("--worst", default=20, show_default=True, help="The length of the table.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="A file for all figures.")
def main(
    only: re.Pattern[str],
    dtype: str,
    elements: int,
    seconds: float,
    threads: int,
    worst: int,
    file: Path | None,
) -> None:
    """Compare each operation with torch's at millions of elements."""
    import torch

    torch.set_num_threads(threads)
    kernels.set_num_threads(threads)
    console = Console(width=None if os.isatty(1) else 160)
    rows: list[Figures] = []
    for name in names(SPECS):
        if only.search(name):
            rows.append(measure(name, torch, elements, seconds, dtype))
            if file is not None:
                _save(file, threads, elements, dtype, rows)
    measured = [row for row in rows if row.get("both")]
    skipped = [row["name"] for row in rows if row not in measured]
    console.print(_table(measured, worst))
    if measured:
        typical = statistics.geometric_mean(row["both"]["best"] for row in measured)
        slower = sum(row["both"]["best"] > 1.1 for row in measured)
        console.print(
            f"{len(measured)} operations: geometric mean {typical:.2f}, {slower} above 1.1; "
            f"{len(skipped)} of the table cannot be enlarged"
        )


if __name__ == "__main__":
    main()
