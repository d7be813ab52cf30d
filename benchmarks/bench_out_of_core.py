"""What does a model larger than memory cost, compared with the same model in memory?

    python -m benchmarks.bench_out_of_core [--rounds 20] [--only beyond] [--json FILE]

Each row trains two processes that take turns step by step: one whose parameters, gradients and
AdamW state are paged, and one that has them in memory. Losses must be the same, bit for bit.

- *beyond*: a GPT of 6.3 GiB with gradients and state, in a process that the operating system limits
  to 1 GiB (RLIMIT_DATA, and a memory cgroup where one can be made), one sequence a step: the drive
  sets the pace. Backward updates parameters.
- *after*: the same, with `optimizer.step()` after backward, so that gradients are stored as well.
- *compute*: a smaller model and more sequences: computing takes longer than the drive.
- *state*: parameters and gradients in memory, optimizer state on disk.

A row takes 22 rounds of one step of each process: 5 to 12 minutes on two cores. A line a round
says how long the row will still take, and the file of figures is written after each row.

The drive's bare rate is measured before, with direct reads and writes of 16 MB in two threads.
The least that a step must move, by hand, for parameters of P bytes and a window of W: with the step
inside backward, forward and backward read P each, the step reads 2 P of state and writes 3 P. A
parameter that stays in the window saves two reads and a write, so the least is 7 P - 3 W. With the
step after backward gradients are written and read, and parameters read once more: 10 P - 4 W. State
alone: 4 P - 2 W. No order of evictions gets there: a parameter, its gradient and its state are in
use at once, and the rest of the window is left for pages that stay. `least_nbytes` computes the
least of the step's own order of uses (`step_uses`) and its window. The table has both.
"""

import json
import statistics
from contextlib import ExitStack
from pathlib import Path
from tempfile import gettempdir
from time import perf_counter
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

import offgrad
from benchmarks._lib.json_worker import JsonWorker
from benchmarks._lib.least_traffic import Use, least_nbytes
from benchmarks._lib.memory_cgroup import MemoryCgroup
from offgrad.cli.bench_storage.bare_file import BareFile
from offgrad.cli.bench_storage.loops import MB
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.memory import POOL_THRESHOLD

_WORKER = "benchmarks._lib.out_of_core_worker"
_MIB, _GIB = 1 << 20, 1 << 30


class Row(NamedTuple):
    """One comparison; see `benchmarks._lib.out_of_core_worker.Training` for the options."""

    name: str
    sizes: list[int]
    batch: int
    window_nbytes: int
    options: dict[str, Any]
    least_by_hand: tuple[int, int]  # times the parameters, less times the window
    common: dict[str, Any] = {}


_BEYOND = [15, 1536, 24, 512]
_LARGE_WINDOW = 384 * _MIB  # about what libraries and activations leave of 1 GiB
ROWS = [
    Row(
        "beyond",
        _BEYOND,
        1,
        _LARGE_WINDOW,
        {"placement": "disk", "activations": "disk", "max_nbytes": _GIB},
        (7, 3),
        {"in_backward": True},
    ),
    Row(
        "after",
        _BEYOND,
        1,
        256 * _MIB,
        {"placement": "disk", "activations": "disk", "max_nbytes": _GIB},
        (10, 4),
    ),
    Row(
        "compute",
        [8, 1024, 16, 512],
        8,
        256 * _MIB,
        {"placement": "disk"},
        (7, 3),
        {"in_backward": True},
    ),
    Row("state", [8, 1024, 16, 512], 4, 256 * _MIB, {"state": "disk"}, (4, 2)),
]


def bare_rates(directory: Path) -> dict[str, float]:
    """Return bytes a second of direct writes and reads of 16 MB in two threads, medians of 5."""
    loops = BareFile.unnamed(directory, 512 * MB)
    try:
        rates = {}
        for name, loop in loops.variants(16 * MB, 2).items():
            times = []
            for _ in range(5):
                began = perf_counter()
                nbytes = loop()
                times.append(perf_counter() - began)
            rates[name.split()[1].rstrip(",")] = nbytes / statistics.median(times)
        return rates
    finally:
        loops.close()


def step_uses(row: Row) -> list[list[Use]]:
    """Return the pages that a step of a row uses, in order.

    Forward ends with the embedding, which is the head as well; backward of the embeddings reads no
    parameter.
    """
    with offgrad.device("meta"):
        model = GPT(GPTConfig(*row.sizes))
    sizes = {name: each.nbytes for name, each in model.named_parameters()}
    paged = [name for name in sizes if sizes[name] >= POOL_THRESHOLD]

    def gradient(name: str, **kinds: bool) -> Use:
        return Use(("gradient", name), sizes[name], **kinds)

    def state(name: str) -> list[Use]:
        return [
            Use((moment, name), sizes[name], changes=True) for moment in ("exp_avg", "exp_avg_sq")
        ]

    def update(name: str) -> list[Use]:
        return [Use(name, sizes[name], changes=True), *state(name)]

    if "placement" not in row.options:
        return [state(name) for name in paged]
    forward = [[Use(name, sizes[name])] for name in (*paged, paged[0])]
    if row.common.get("in_backward"):
        fresh = {"is_new": True, "is_last": True}
        return forward + [[*update(name), gradient(name, **fresh)] for name in reversed(paged)]
    backward = [
        [*([Use(name, sizes[name])] if name.startswith("blocks.") else []),
         gradient(name, changes=True, is_new=True)]
        for name in reversed(paged)
    ]  # fmt: skip
    return forward + backward + [[*update(name), gradient(name, is_last=True)] for name in paged]


def measure(row: Row, rounds: int, directory: Path) -> dict[str, Any]:
    """Return the figures of a row."""
    job = {"sizes": row.sizes, "batch": row.batch, "directory": str(directory), **row.common}
    paged_job = {**job, **row.options, "window": f"{row.window_nbytes}"}
    with ExitStack() as stack:
        cgroup = _cgroup(row, stack)
        paged = stack.enter_context(JsonWorker(_WORKER, paged_job, cgroup=cgroup))
        kept = stack.enter_context(JsonWorker(_WORKER, job))
        steps = []
        began = perf_counter()
        for step in range(rounds + 2):
            steps.append((paged.ask(step=step), kept.ask(step=step)))
            for reply in steps[-1]:
                if "out_of_memory" in reply:
                    raise click.ClickException(f"{row.name}: {reply['out_of_memory']}")
            each = (perf_counter() - began) / (step + 1)
            click.echo(
                f"{row.name}, round {step + 1} of {rounds + 2}: {steps[-1][0]['seconds']:.1f} s "
                f"paged, {steps[-1][1]['seconds']:.1f} s kept; "
                f"{each * (rounds + 1 - step):.0f} s left",
                err=True,
            )
        cgroup_nbytes = None if cgroup is None else cgroup.peak_nbytes
    same = all(ours["loss"] == theirs["loss"] for ours, theirs in steps)
    counted = steps[2:]  # the first learns the order, the second runs it for the first time
    ratios = [ours["seconds"] / theirs["seconds"] for ours, theirs in counted]
    moved = [ours["read_nbytes"] + ours["written_nbytes"] for ours, _ in counted]
    parameters = counted[0][0]["parameters_nbytes"]
    of_parameters, of_window = row.least_by_hand
    by_hand = of_parameters * parameters - of_window * row.window_nbytes
    last = counted[-1]
    return {
        "name": row.name,
        "rounds": rounds,
        "same_losses": same,
        "state_nbytes": 4 * parameters,
        "paged_seconds": _spread([ours["seconds"] for ours, _ in counted]),
        "kept_seconds": _spread([theirs["seconds"] for _, theirs in counted]),
        "ratio": _spread(ratios),
        "stall_seconds": _spread([ours["stall_seconds"] for ours, _ in counted]),
        "read_nbytes": statistics.median(ours["read_nbytes"] for ours, _ in counted),
        "written_nbytes": statistics.median(ours["written_nbytes"] for ours, _ in counted),
        "moved_over_least_by_hand": statistics.median(moved) / by_hand,
        "moved_over_least": statistics.median(moved)
        / least_nbytes(step_uses(row), row.window_nbytes),
        "peak_tensor_nbytes": last[0]["peak_tensor_nbytes"],
        "peak_rss_nbytes": [each["peak_rss_nbytes"] for each in last],
        "data_nbytes": last[0]["data_nbytes"],
        "cgroup_peak_nbytes": cgroup_nbytes,
    }


def _cgroup(row: Row, stack: ExitStack) -> MemoryCgroup | None:
    """Return a group that limits the row's process, where the system lets us make one."""
    max_nbytes = row.options.get("max_nbytes")
    if max_nbytes is None:
        return None
    try:
        return stack.enter_context(MemoryCgroup(max_nbytes))
    except OSError as error:
        click.echo(f"{row.name}: no memory cgroup, RLIMIT_DATA alone: {error}", err=True)
        return None


def _spread(values: list[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return values * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def against_the_drive(figures: dict[str, Any], rates: dict[str, float]) -> float:
    """Return the step's time, times that of computing or of moving at the bare rates."""
    moving = figures["read_nbytes"] / rates["read"] + figures["written_nbytes"] / rates["write"]
    return float(figures["paged_seconds"][1] / max(figures["kept_seconds"][1], moving))


@click.command()
@click.option("--rounds", default=20, show_default=True, help="Steps that count.")
@click.option("--only", multiple=True, help="Rows of these names.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where stores write.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for all figures.")
def main(rounds: int, only: tuple[str, ...], directory: Path | None, path: Path | None) -> None:
    """Measure, and print a table."""
    names = [row.name for row in ROWS]
    if rounds < 1 or not {*only} <= {*names}:
        raise click.UsageError(f"--rounds is at least 1, and --only one of {', '.join(names)}")
    folder = directory or Path(gettempdir())
    rates = bare_rates(folder)
    console = Console(width=140)
    console.print(
        f"bare drive: writes {rates['write'] / 1e9:.2f} GB/s, reads {rates['read'] / 1e9:.2f} GB/s"
    )
    table = Table("row", "state", "same", "step/kept", "/max(compute, drive)",
                  "moved/least", "by hand", "read", "written", "stall",
                  "tensors", "process", "cgroup")  # fmt: skip
    results = []
    for row in ROWS:
        if only and row.name not in only:
            continue
        figures = measure(row, rounds, folder)
        figures["over_bound"] = against_the_drive(figures, rates)
        results.append(figures)
        low, middle, high = figures["ratio"]
        in_group = figures["cgroup_peak_nbytes"]
        table.add_row(
            row.name,
            f"{figures['state_nbytes'] / _GIB:.2f} GiB",
            "yes" if figures["same_losses"] else "NO",
            f"{middle:.2f} ({low:.2f} to {high:.2f})",
            f"{figures['over_bound']:.2f}",
            f"{figures['moved_over_least']:.2f}",
            f"{figures['moved_over_least_by_hand']:.2f}",
            f"{figures['read_nbytes'] / _GIB:.2f} GiB",
            f"{figures['written_nbytes'] / _GIB:.2f} GiB",
            f"{figures['stall_seconds'][1]:.2f} s",
            f"{figures['peak_tensor_nbytes'] / _MIB:.0f} MiB",
            f"{figures['peak_rss_nbytes'][0] / _MIB:.0f} MiB",
            "" if in_group is None else f"{in_group / _MIB:.0f} MiB",
        )
        if path is not None:
            path.write_text(json.dumps({"rates": rates, "rows": results}, indent=1))
    console.print(table)


if __name__ == "__main__":
    main()
