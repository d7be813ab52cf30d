"""The results of a comparison: tables for the terminal, and figures for JSON."""

import os
import time
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import offgrad
from offgrad._display import Name
from offgrad.cli.compare.comparison import Comparison
from offgrad.cli.compare.results import CRASHED, OUT_OF_MEMORY, Quartiles, Run
from offgrad.cli.machine import describe_machine
from offgrad.cli.terminal import print_table
from offgrad.memory import format_nbytes

NOT_AVAILABLE = "-"

Groups = Sequence[list[Run]]
"""Runs by batch size and limit; the first of each group is the reference of the others."""


def print_tables(console: Console, groups: Groups) -> None:
    """Print tables of training, time and memory, each within 80 columns; then warnings and
    failures.
    """
    for table in (_training(groups), _time(groups), _memory(groups)):
        console.print()
        print_table(console, table)
    runs = [run for group in groups for run in group]
    for line in warning_lines([(run.name, run.warnings) for run in runs]):
        console.print(f"{line}\n", markup=False, highlight=False)
    for run in runs:
        if run.status == OUT_OF_MEMORY:
            text = f"{run.name}: {run.error} in step {(run.failed_step or 0) + 1}: {run.message}"
            console.print(text + "\n", markup=False, highlight=False)
        elif run.status == CRASHED:
            text = f"{run.name}: the worker crashed ({run.error}):\n{run.message}\n"
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def warning_lines(warnings: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield a line for each warning of the runs, by their names; what all warn of comes once."""
    common = set.intersection(*(set(texts) for _, texts in warnings)) if len(warnings) > 1 else ()
    for name, texts in warnings:
        for text in texts:
            if text not in common:
                yield f"{name}: warning: {text}"
    for text in sorted(common):
        yield f"every policy: warning: {text}"


def rows(groups: Groups) -> Iterator[tuple[Run, Run]]:
    """Yield each run with its reference."""
    for group in groups:
        for run in group:
            yield run, group[0]


def _table(title: str, *headings: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("\npolicy")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _training(groups: Groups) -> Table:
    table = _table("Training", "\nresult", "final\nloss", "gradients\nvs keep")
    for run, reference in rows(groups):
        table.add_row(
            Name(run.name), run.status, number(run.final_loss, "{:.5f}"), equality(run, reference)
        )
    return table


def _time(groups: Groups) -> Table:
    torch = {id(group[0]): each for group in groups for each in group if each.library == "torch"}
    headings = "seconds\nper step", "times\nkeep", "difference\nfrom keep", "stall\nper step"
    title = "Time: medians, and in brackets quartiles"
    table = _table(title, *headings, *(["times\ntorch"] if torch else []))
    for run, reference in rows(groups):
        is_reference = run is reference
        cells: list[Any] = [
            Name(run.name),
            seconds(run.seconds),
            "1" if is_reference else spread(run.times(reference), 2),
            "reference" if is_reference else run.difference(reference) or NOT_AVAILABLE,
            number(run.per_step("stall_seconds"), "{:.3f} s"),
        ]
        if torch:
            other = torch.get(id(reference))
            times = None if other is None else run.times(other)
            cells.append(number(None if times is None else times.median, "{:.2f}"))
        table.add_row(*cells)
    return table


def _memory(groups: Groups) -> Table:
    table = _table(
        "Memory",
        "peak\ntensors",
        "peak vs\nkeep",
        "peak\nRSS",
        "saved\nper step",
        "stored\nper step",
        "to disk\nper step",
    )
    for run, reference in rows(groups):
        table.add_row(
            Name(run.name),
            nbytes(run.peak_nbytes),
            number(peak_ratio(run, reference), "{:.3f}"),
            nbytes(run.peak_rss_nbytes),
            nbytes(run.per_step("logical_nbytes")),
            nbytes(run.per_step("stored_nbytes")),
            nbytes(run.per_step("written_nbytes")),
        )
    return table


def peak_ratio(run: Run, reference: Run) -> float | None:
    """Return the peak of tensors over the reference's; None unless both trained."""
    # After an OutOfMemoryError the peak is lower than the memory that the run needs.
    return ratio(run.peak_nbytes if run.is_timed else None, reference.peak_nbytes)


def equality(run: Run, reference: Run) -> str:
    """Return how the gradients compare with the reference's, as text."""
    if run is reference:
        return "reference"
    if run.library != "offgrad":
        return "other library"
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


def as_json(
    comparison: Comparison, directory: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Return all figures, with a description of the machine. Names of sizes end in ``nbytes``.

    `compare.schema.json` describes them. `directory` is where stores wrote, None for the default.
    """
    plan = comparison.plan
    first = comparison.groups[0][0] if comparison.groups else None
    return {
        "version": 2,
        "offgrad": offgrad.__version__,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "complete": comparison.is_complete,
        "machine": describe_machine(directory),
        "config": next(plan.configs()).as_dict(),
        "policies": plan.policies,
        "batches": [config.batch for config in plan.configs()][:: len(plan.limits)],
        "memory_limits": list(plan.limits),
        "repeats": plan.repeats,
        "text": comparison.source,
        "reference": None if first is None else first.name,
        "runs": [_run(run, reference) for run, reference in rows(comparison.groups)],
    }


def _finite(value: float | None) -> float | None:
    # JSON has no NaN.
    return value if value is not None and isfinite(value) else None


def _run(run: Run, reference: Run) -> dict[str, Any]:
    times = run.times(reference)
    return {
        "name": run.name,
        "policy": run.policy,
        "library": run.library,
        "reference": reference.name,
        "batch": run.batch,
        "memory_limit": run.memory_limit,
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
        "peak_tensor_ratio": peak_ratio(run, reference),
        "peak_rss_nbytes": run.peak_rss_nbytes,
        "peak_over_base_nbytes": run.peak_over_base_nbytes,
        "address_space_nbytes": run.address_space_nbytes,
        "parameter_nbytes": run.parameter_nbytes,
        "model_nbytes": run.model_nbytes,
        "step_seconds": None if run.seconds is None else run.seconds._asdict(),
        "step_ratio": None if times is None else times._asdict(),
        "step_difference": run.difference(reference),
        "saved_nbytes_per_step": run.per_step("logical_nbytes"),
        "stored_nbytes_per_step": run.per_step("stored_nbytes"),
        "written_nbytes_per_step": run.per_step("written_nbytes"),
        "stall_seconds_per_step": run.per_step("stall_seconds"),
        "ledger": run.ledger,
        "repeats": run.repeats,
        "steps": [{**step, "loss": _finite(step["loss"])} for step in run.steps],
        "profile_step": run.shown_step,
        "profile": run.profile,
    }
