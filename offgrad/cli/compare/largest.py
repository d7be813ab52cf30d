"""``offgrad compare --largest-batch``: the largest batch that trains within a memory limit.

Each trial is a process that trains two steps: the first makes the optimizer's state.
"""

import csv
import io
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich import box
from rich.console import Console
from rich.table import Table

import offgrad
from offgrad._display import Name
from offgrad.cli.compare.config import REFERENCE, Config
from offgrad.cli.compare.dataset import Bytes
from offgrad.cli.compare.groups import Plan
from offgrad.cli.compare.kept import Kept
from offgrad.cli.compare.output import names_of, write_output
from offgrad.cli.compare.progress import SilentDisplay
from offgrad.cli.compare.results import CRASHED, FINISHED, Run
from offgrad.cli.compare.runner import run_workers
from offgrad.cli.machine import describe_machine
from offgrad.cli.terminal import print_table
from offgrad.memory import format_nbytes

LARGEST = "largest.json", "largest.csv"
"""The files of results."""

_MAX_BATCH = 1 << 20
"""Upper end of the search, assumed not to fit."""
_STEPS = 2
_MIN_SECONDS, _PATIENCE = 30.0, 5


class Largest(NamedTuple):
    """The largest batch known to train (0 if none does), and a larger one that does not fit."""

    trains: int
    fails: int


def compare_largest(console: Console, plan: Plan, text: Bytes, output: Path, kept: Kept) -> int:
    """Search the largest batch of each policy and limit, print and write them.

    Trials that an earlier command made before a signal are not made again.

    Raises:
        Refused: the target cannot be trained, or not be told its batch.
        LimitTooLow: the model itself needs more than the lowest limit.
    """
    trials = _Trials(console, plan, text, kept)
    trials.check_limit()
    rows: list[dict[str, Any]] = []
    for limit in plan.limits:
        assert limit is not None
        for name, policy in plan.policies.items():
            found = search(trials.peaks_of(name, policy, limit), limit)
            row = {"name": name, "policy": policy, "memory_limit": limit}
            rows.append({**row, "largest_batch": found.trains, "fails": found.fails})
    print_table(console, _table(rows))
    figures = {
        "version": 2,
        "offgrad": offgrad.__version__,
        "machine": describe_machine(),
        "config": plan.config.as_dict(),
        "largest": rows,
    }
    writers: dict[str, Callable[[Path], object]] = {
        LARGEST[0]: lambda path: path.write_text(json.dumps(figures, indent=1) + "\n"),
        LARGEST[1]: lambda path: path.write_text(_csv(rows)),
    }
    try:
        files = write_output(output, writers)
    except OSError as error:
        raise click.ClickException(f"the results could not be written: {error}") from error
    kept.clear()
    console.print(f"Written to {names_of(files)}", highlight=False, markup=False, soft_wrap=True)
    return 0


class _Trials:
    """Trains with one policy, limit and batch at a time."""

    def __init__(self, console: Console, plan: Plan, text: Bytes, kept: Kept) -> None:
        self._console, self._plan, self._text, self._kept = console, plan, text, kept
        self._count = 0  # of trials, whose outcomes decide which one is next
        self._seconds = 0.0  # that one sample without a limit takes

    def check_limit(self) -> None:
        """Train one sample without a limit.

        Raises:
            LimitTooLow: the model itself needs more than the lowest limit.
            ClickException: it cannot be trained.
        """
        run = Run(REFERENCE, REFERENCE, limited=False)
        config = replace(self._config(1), memory_limit=None, hard_limit=False)
        began = time.monotonic()
        run_workers([run], config, self._text, SilentDisplay(), self._plan.lowest_limit)
        self._seconds = time.monotonic() - began
        if run.status != FINISHED:
            raise click.ClickException(f"a batch of 1 does not train: {run.error}: {run.message}")

    def peaks_of(
        self, name: str, policy: str, limit: int
    ) -> Callable[[int], tuple[int, int] | None]:
        """Return the function that `search` asks."""
        peaks: dict[int, int | None] = {}

        def peak(batch: int) -> int | None:
            if batch not in peaks:
                peaks[batch] = self._peak(name, policy, limit, batch)
            return peaks[batch]

        def both(batch: int) -> tuple[int, int] | None:
            one, whole = peak(1), peak(batch)
            return None if one is None or whole is None else (one, whole)

        return both

    def _peak(self, name: str, policy: str, limit: int, batch: int) -> int | None:
        config = replace(self._config(batch), memory_limit=limit, hard_limit=self._plan.hard_limit)
        parts = self._kept.load(self._count)
        run = parts[0][0] if parts else Run(policy, policy, limited=True)
        if not parts:
            # A step that waits for memory all the time does not fit either.
            most = _MIN_SECONDS + self._seconds * (_PATIENCE + batch)
            run_workers([run], config, self._text, SilentDisplay(), max_seconds=most)
            with suppress(OSError):
                self._kept.save(self._count, [[run]])
        self._count += 1
        trains = run.status == FINISHED
        outcome = "trains" if trains else "does not fit"
        if run.status == CRASHED:
            outcome = f"does not train ({run.error})"
        within = f" within {format_nbytes(limit)}"
        line = f"{name}: batch {batch} {outcome}{within}" + (", kept from before" if parts else "")
        self._console.print(line, markup=False, highlight=False)
        return (run.peak_nbytes or 0) if trains else None

    def _config(self, batch: int) -> Config:
        return replace(self._plan.config, batch=batch, steps=_STEPS)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("policy")
    for heading in ("limit", "largest batch", "does not fit"):
        table.add_column(heading, justify="right")
    for row in rows:
        numbers = str(row["largest_batch"]), str(row["fails"])
        table.add_row(Name(row["name"]), format_nbytes(row["memory_limit"]), *numbers)
    return table


def _csv(rows: list[dict[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def search(peaks: Callable[[int], tuple[int, int] | None], max_nbytes: int) -> Largest:
    """Return the largest batch that fits.

    The first guesses lie on the line through two memory peaks. They are mostly too low, because
    caches shrink near the limit. The steps from there are large, because failing trials end early
    and are cheap. Between a batch that trains and one that fails the search is a bisection.

    Args:
        peaks: returns the memory peaks of one sample and of the given batch, None if the batch
            does not fit.
        max_nbytes: upper bound of the peaks.
    """
    fitting: list[tuple[int, int]] = []
    trains, fails = 0, _MAX_BATCH
    while fails - trains > max(1, trains // 10):
        if fails == _MAX_BATCH:
            guess = max(_guess(fitting, max_nbytes), trains + max(1, trains // 2))
        else:
            guess = (trains + fails) // 2
        found = peaks(guess)
        if found is None:
            fails = guess
        else:
            fitting = [fitting[-1] if fitting else (1, found[0]), (guess, found[1])]
            trains = guess
    return Largest(trains, fails)


def _guess(fitting: list[tuple[int, int]], max_nbytes: int) -> int:
    if not fitting:
        return 4
    (batch_1, peak_1), (batch_2, peak_2) = fitting
    if peak_2 <= peak_1:
        return 4 * batch_2
    more = (max_nbytes - peak_2) * (batch_2 - batch_1) // (peak_2 - peak_1)
    return min(batch_2 + more, 8 * batch_2)
