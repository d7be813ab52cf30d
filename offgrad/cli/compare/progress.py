"""The progress of workers: a live display on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from offgrad.cli.compare.results import FINISHED, OUT_OF_MEMORY, Run
from offgrad.memory import format_nbytes


class Display(Protocol):
    """Shows the progress of runs; a context manager around all of them."""

    def __enter__(self) -> "Display": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def begin(self, run: Run) -> None:
        """Show that `run` starts."""

    def update(self, run: Run) -> None:
        """Show its latest step."""

    def end(self, run: Run) -> None:
        """Show how it ended."""


class Remaining:
    """Estimates the time to the end from the time of the steps so far.

    Args:
        groups: the number of groups, all taken to be as long as those so far.
    """

    def __init__(self, groups: int) -> None:
        self._groups_left = groups
        self._group_seconds: list[float] = []
        self._began: float | None = None
        self._first: tuple[float, float] | None = None

    def begin_group(self) -> None:
        """Begin a group."""
        self._began, self._first = time.monotonic(), None

    def end_group(self) -> None:
        """End a group, or skip one."""
        if self._began is not None:
            self._group_seconds.append(time.monotonic() - self._began)
        self._began = None
        self._groups_left -= 1

    def seconds(self, fraction: float) -> float | None:
        """Return the seconds left after this fraction of a group; None if it is too early."""
        if self._began is None or fraction <= 0:
            return None
        now = time.monotonic()
        if self._first is None:  # what comes before is not as fast as the rest
            self._first = now, fraction
        seconds, progress = now - self._first[0], fraction - self._first[1]
        if progress <= 0:
            return None
        left = (1 - fraction) * seconds / progress
        group = [*self._group_seconds, now - self._began + left]
        return left + sum(group) / len(group) * (self._groups_left - 1)

    def text(self, fraction: float) -> str:
        """Return the time left as text; empty below two seconds, or if it is too early."""
        seconds = self.seconds(fraction)
        if seconds is None or seconds < 2:
            return ""
        whole = round(seconds)
        hours, minutes = divmod(whole // 60, 60)
        clock = f"{hours}:{minutes:02}" if hours else f"{minutes}"
        return f"{clock}:{whole % 60:02} left"


def progress_display(
    console: Console, names: list[str], steps: int, remaining: Remaining
) -> Display:
    """Return the display that suits `console`, for runs with these names, each of `steps` steps."""
    is_live = console.is_terminal and not console.is_dumb_terminal
    remaining.begin_group()
    return (LiveDisplay if is_live else LineDisplay)(console, names, steps, remaining)


class _Fraction:
    """The part of a group that is done: runs that ended early count as done."""

    def __init__(self, names: list[str], steps: int) -> None:
        self._total = len(names) * steps
        self._steps = steps
        self._done = dict.fromkeys(names, 0)

    def update(self, run: Run) -> None:
        self._done[run.name] = len(run.steps)

    def end(self, run: Run) -> None:
        self._done[run.name] = self._steps

    @property
    def value(self) -> float:
        """From 0 to 1; 0 before all first steps, which are longer."""
        if any(each == 0 for each in self._done.values()):
            return 0.0
        return sum(self._done.values()) / self._total


class SilentDisplay:
    """Shows nothing."""

    def __enter__(self) -> "SilentDisplay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def begin(self, run: Run) -> None:
        pass

    def update(self, run: Run) -> None:
        pass

    def end(self, run: Run) -> None:
        pass


class LiveDisplay:
    """A line with a progress bar for each run, updated in place."""

    def __init__(
        self, console: Console, names: list[str], steps: int, remaining: Remaining
    ) -> None:
        self._steps = steps
        self._fraction, self._remaining = _Fraction(names, steps), remaining
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:>3.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[figures]}", markup=False),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=steps, start=False, figures="waiting")
            for name in names
        }

    def __enter__(self) -> "LiveDisplay":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, run: Run) -> None:
        self._progress.start_task(self._tasks[run.name])
        self._progress.update(self._tasks[run.name], figures="starting")

    def update(self, run: Run) -> None:
        if run.steps:
            task = self._tasks[run.name]
            self._fraction.update(run)
            left = self._remaining.text(self._fraction.value)
            self._progress.update(
                task, completed=len(run.steps), figures=f"{figures(run)}  {left}".rstrip()
            )

    def end(self, run: Run) -> None:
        self._fraction.end(run)
        self._progress.update(self._tasks[run.name], figures=outcome(run))
        self._progress.stop_task(self._tasks[run.name])


class LineDisplay:
    """Prints a line for the start, each step and the end of a run."""

    def __init__(
        self, console: Console, names: list[str], steps: int, remaining: Remaining
    ) -> None:
        self._console, self._steps = console, steps
        self._fraction, self._remaining = _Fraction(names, steps), remaining
        self._steps_shown: dict[str, int] = {}

    def __enter__(self) -> "LineDisplay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def begin(self, run: Run) -> None:
        self._print(f"{run.name}: starting")

    def update(self, run: Run) -> None:
        if len(run.steps) > self._steps_shown.get(run.name, 0):
            self._steps_shown[run.name] = len(run.steps)
            self._fraction.update(run)
            left = self._remaining.text(self._fraction.value)
            line = f"{run.name}: step {len(run.steps)}/{self._steps}  {figures(run)}  {left}"
            self._print(line.rstrip())

    def end(self, run: Run) -> None:
        self._fraction.end(run)
        self._print(f"{run.name}: {outcome(run)}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()


def figures(run: Run) -> str:
    """Return loss, time and peak memory of the latest step, as text."""
    if not run.steps:
        return ""
    step = run.steps[-1]
    peak = format_nbytes(step["peak_nbytes"]) if step["peak_nbytes"] else ""
    loss = "" if step["loss"] is None else f"loss {step['loss']:.4f}  "
    return f"{loss}{step['seconds']:6.2f} s  {peak:>9}"


def outcome(run: Run) -> str:
    """Return the outcome of `run`, as text."""
    if run.status == FINISHED:
        return f"{figures(run)}  done"
    if run.status == OUT_OF_MEMORY:
        return f"{run.error} in step {(run.failed_step or 0) + 1}"
    return f"crashed ({run.error})"
