"""The results of a comparison: tables for the terminal, and figures for JSON."""

import time
from math import isfinite
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import offgrad
from offgrad.cli.compare.config import Config
from offgrad.cli.compare.environment import describe_machine
from offgrad.cli.compare.results import (
    CRASHED,
    FINISHED,
    OUT_OF_MEMORY,
    Quartiles,
    Run,
)
from offgrad.memory import format_nbytes

NOT_AVAILABLE = "-"


def print_tables(console: Console, runs: list[Run], reference: Run) -> None:
    """Print tables of training, time and memory, each within 80 columns; then warnings and
    failures.
    """
    tables = _training(runs, reference), _time(runs, reference), _memory(runs, reference)
    for table in tables:
        console.print()
        console.print(table, highlight=False)
    for run in runs:
        for warning in run.warnings:
            console.print(f"{run.name}: warning: {warning}\n", markup=False, highlight=False)
        if run.status == OUT_OF_MEMORY:
            text = f"{run.name}: {run.error} in step {(run.failed_step or 0) + 1}: {run.message}"
            console.print(text + "\n", markup=False, highlight=False)
        elif run.status == CRASHED:
            text = f"{run.name}: the worker crashed ({run.error}):\n{run.message}\n"
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(title: str, *headings: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("\npolicy", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _training(runs: list[Run], reference: Run) -> Table:
    table = _table("Training", "\nresult", "final\nloss", "gradients\nvs keep")
    for run in runs:
        table.add_row(
            Text(run.name),
            run.status,
            number(run.final_loss, "{:.5f}"),
            _equal(run, reference),
        )
    return table


def _time(runs: list[Run], reference: Run) -> Table:
    table = _table(
        "Time: medians, and in brackets quartiles",
        "seconds\nper step",
        "times\nkeep",
        "difference\nfrom keep",
        "stall\nper step",
    )
    for run in runs:
        is_reference = run is reference
        table.add_row(
            Text(run.name),
            seconds(run.seconds),
            "1" if is_reference else spread(run.times(reference), 2),
            "reference" if is_reference else run.difference(reference) or NOT_AVAILABLE,
            number(run.per_step("stall_seconds"), "{:.3f} s"),
        )
    return table


def _memory(runs: list[Run], reference: Run) -> Table:
    table = _table(
        "Memory",
        "peak\ntensors",
        "peak vs\nkeep",
        "peak\nRSS",
        "saved\nper step",
        "stored\nper step",
        "to disk\nper step",
    )
    for run in runs:
        # After an OutOfMemoryError the peak is lower than the memory that the run needs.
        comparable = run.peak_nbytes if run.status == FINISHED else None
        table.add_row(
            Text(run.name),
            nbytes(run.peak_nbytes),
            number(ratio(comparable, reference.peak_nbytes), "{:.3f}"),
            nbytes(run.peak_rss_nbytes),
            nbytes(run.per_step("logical_nbytes")),
            nbytes(run.per_step("stored_nbytes")),
            nbytes(run.per_step("written_nbytes")),
        )
    return table


def _equal(run: Run, reference: Run) -> str:
    if run is reference:
        return "reference"
    other = "DIFFER" if run.lossless else "rounded"
    return {None: "n.a.", True: "identical", False: other}[run.equal]


def ratio(value: float | None, reference: float | None) -> float | None:
    """Return ``value / reference``; None if one of them is missing or `reference` is 0."""
    return None if value is None or not reference else value / reference


def spread(values: Quartiles | None, decimals: int) -> str:
    """Return a median with its quartiles as text; ``"-"`` for None."""
    if values is None:
        return NOT_AVAILABLE
    low, median, high = (f"{each:.{decimals}f}" for each in values)
    return f"{median} ({low}-{high})"


def seconds(values: Quartiles | None) -> str:
    """Return times as text, from milliseconds to whole seconds as their size asks."""
    high = 0.0 if values is None else values.high
    return spread(values, 3 if high < 10 else 1 if high < 100 else 0)


def number(value: float | None, pattern: str) -> str:
    """Return `value` formatted by `pattern`; ``"-"`` for None."""
    return NOT_AVAILABLE if value is None else pattern.format(value)


def nbytes(value: float | None) -> str:
    """Return a number of bytes as text with a unit; ``"-"`` for None."""
    return NOT_AVAILABLE if value is None else format_nbytes(value)


def as_json(config: Config, source: str, runs: list[Run], reference: Run) -> dict[str, Any]:
    """Return all figures, with a description of the machine. Names of sizes end in ``nbytes``."""
    return {
        "offgrad": offgrad.__version__,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_machine(),
        "config": config.as_dict(),
        "text": source,
        "reference": reference.name,
        "runs": [_run(run, reference) for run in runs],
    }


def _finite(value: float | None) -> float | None:
    # JSON has no NaN.
    return value if value is not None and isfinite(value) else None


def _run(run: Run, reference: Run) -> dict[str, Any]:
    comparable = run.peak_nbytes if run.status == FINISHED else None
    times = run.times(reference)
    return {
        "name": run.name,
        "policy": run.policy,
        "limited": run.limited,
        "lossless": run.lossless,
        "status": run.status,
        "error": run.error,
        "message": run.message,
        "warnings": run.warnings,
        "failed_step": run.failed_step,
        "final_loss": _finite(run.final_loss),
        "identical_to_reference": run.equal,
        "peak_tensor_nbytes": run.peak_nbytes,
        "peak_tensor_ratio": ratio(comparable, reference.peak_nbytes),
        "peak_rss_nbytes": run.peak_rss_nbytes,
        "address_space_nbytes": run.address_space_nbytes,
        "parameter_nbytes": run.parameter_nbytes,
        "step_seconds": None if run.seconds is None else run.seconds._asdict(),
        "step_ratio": None if times is None else times._asdict(),
        "step_difference": run.difference(reference),
        "saved_nbytes_per_step": run.per_step("logical_nbytes"),
        "stored_nbytes_per_step": run.per_step("stored_nbytes"),
        "written_nbytes_per_step": run.per_step("written_nbytes"),
        "stall_seconds_per_step": run.per_step("stall_seconds"),
        "ledger": run.ledger,
        "steps": [{**step, "loss": _finite(step["loss"])} for step in run.steps],
        "profile_step": run.shown_step,
        "profile": run.profile,
    }
