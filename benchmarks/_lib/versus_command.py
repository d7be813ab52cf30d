"""The command line of benchmarks that compare rows with PyTorch."""

import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks._lib.options import numbers
from benchmarks._lib.versus_measure import Measurement, contenders
from benchmarks._lib.versus_rows import Row


def command(rows: Sequence[Row]) -> click.Command:
    """Return the command that measures `rows`."""

    @click.command()
    @click.option("--rounds", "count", default=15, show_default=True, help="Rounds that count.")
    @click.option("--only", multiple=True, metavar="ROW", help="Rows whose names contain ROW.")
    @click.option("--threads", type=numbers(int), default="", help="Numbers of threads, as 1,2.")
    @click.option("--policy", multiple=True, help="Also steps under this policy, such as disk.")
    @click.option("--compile/--no-compile", "compiles", default=True, help="Measure torch.compile.")
    @click.option("--json", "path", type=click.Path(path_type=Path), help="File for all figures.")
    def main(
        count: int,
        only: tuple[str, ...],
        threads: list[int],
        policy: tuple[str, ...],
        compiles: bool,
        path: Path | None,
    ) -> None:
        """Measure, and print tables of time and memory."""
        chosen = [
            row for row in rows if not only or any(_names(each, row.name, rows) for each in only)
        ]
        if not chosen or count < 1:
            names = ", ".join(repr(row.name) for row in rows)
            raise click.UsageError(f"--rounds must be at least 1, and --only name one of {names}")
        counts = threads or _usual_threads()
        _measure(chosen, count, counts, policy, compiles, path)

    return main


def _measure(
    rows: Sequence[Row],
    rounds: int,
    counts: Sequence[int],
    policies: Sequence[str],
    compiles: bool,
    path: Path | None,
) -> None:
    if find_spec("torch") is None:
        raise click.UsageError("PyTorch is not installed: pip install torch==2.13.0")
    # Before offgrad is imported, which sets a variable for OpenBLAS.
    environment = dict(os.environ)
    from benchmarks._lib.versus_report import describe, print_report

    machine = describe(environment)
    messages = Console(stderr=True)
    measured: list[dict[str, Any]] = []
    parts = [(count, row) for count in counts for row in rows]
    try:
        for count, row in parts:
            if count != counts[0] and not row.uses_threads:
                continue
            title = f"{row.name}, {count} threads"

            def say(line: str, title: str = title) -> None:
                messages.print(f"{title}: {line}", markup=False, highlight=False, soft_wrap=True)

            taking_turns = contenders(row, compiles, policies)
            measured.append(Measurement(row, count, rounds, taking_turns, environment, say).run())
            if path is not None:
                figures = {"machine": machine, "rounds": rounds, "rows": measured}
                path.write_text(json.dumps(figures, indent=1) + "\n")
    finally:  # also of what was measured before an interrupt
        if measured:
            print_report(Console(width=None if os.isatty(1) else 160), machine, measured, rounds)


def _names(text: str, name: str, rows: Sequence[Row]) -> bool:
    """Return whether `text` is the name of the row, or a part of it and no row's name."""
    return text == name or (text in name and all(text != row.name for row in rows))


def _usual_threads() -> list[int]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return sorted({1, min(2, usable or 1)})
