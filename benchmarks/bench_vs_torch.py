"""How fast is offgrad, compared with PyTorch on the same CPU?

    python -m benchmarks.bench_vs_torch [--rounds 15] [--only "GPT 6x512"] [--threads 1,2]
                                        [--json FILE]

Measured are training steps of GPTs and an MLP; the cost of small operations, of module calls and of
a long chain of nodes; and peak memory. torch eager runs its fused AdamW; torch.compile compiles the
loss. Each contender runs in its own process. First, gradients are compared with torch's, from the
same weights and data, and the command fails if they differ by more than rounding. Then the
processes take turns, in random order, so that other load slows all of them alike. Ratios are those
of a round. Peak memory is measured in fresh processes, each alone, beyond memory with the libraries
loaded.

Targets stand beside the figures. The command asserts no time. With ``--policy disk`` training steps
also run under policies, and torch under the disk hooks of its documentation.
"""

import json
import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks._lib.versus_measure import Measurement, contenders
from benchmarks._lib.versus_rows import ROWS


@click.command()
@click.option("--rounds", default=15, show_default=True, help="Rounds that count.")
@click.option("--only", multiple=True, metavar="ROW", help="Rows whose names contain ROW.")
@click.option("--threads", default="", metavar="LIST", help="Numbers of threads, such as 1,2.")
@click.option("--policy", multiple=True, help="Also steps under this policy, such as disk.")
@click.option("--compile/--no-compile", "compiles", default=True, help="Measure torch.compile.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for all figures.")
def main(
    rounds: int,
    only: tuple[str, ...],
    threads: str,
    policy: tuple[str, ...],
    compiles: bool,
    path: Path | None,
) -> None:
    """Measure, and print tables of time and memory."""
    rows = [row for row in ROWS if not only or any(_names(each, row.name) for each in only)]
    if not rows or rounds < 1:
        names = ", ".join(repr(row.name) for row in ROWS)
        raise click.UsageError(f"--rounds must be at least 1, and --only name one of {names}")
    counts = [int(each) for each in threads.split(",") if each] or _usual_threads()
    # Before offgrad is imported, which sets a variable for OpenBLAS.
    environment = dict(os.environ)
    from benchmarks._lib.versus_report import describe, print_report

    machine = describe(environment)
    messages = Console(stderr=True)
    measured: list[dict[str, Any]] = []
    for count in counts:
        for row in rows:
            if count != counts[0] and not row.uses_threads:
                continue
            title = f"{row.name}, {count} threads"

            def say(line: str, title: str = title) -> None:
                messages.print(f"{title}: {line}", markup=False, highlight=False, soft_wrap=True)

            taking_turns = contenders(row, compiles, policy)
            measured.append(Measurement(row, count, rounds, taking_turns, environment, say).run())
            if path is not None:
                figures = {"machine": machine, "rounds": rounds, "rows": measured}
                path.write_text(json.dumps(figures, indent=1) + "\n")
    print_report(Console(width=None if os.isatty(1) else 160), machine, measured, rounds)


def _names(text: str, name: str) -> bool:
    """Return whether `text` is the name of the row, or a part of it and no row's name."""
    return text == name or (text in name and all(text != row.name for row in ROWS))


def _usual_threads() -> list[int]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return sorted({1, min(2, usable or 1)})


if __name__ == "__main__":
    main()
