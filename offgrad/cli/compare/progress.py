"""The progress of workers: a live display on a terminal, plain lines elsewhere."""

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


def progress_display(console: Console, names: list[str], steps: int) -> Display:
    """Return the display that suits `console`, for runs with these names, each of `steps` steps."""
    is_live = console.is_terminal and not console.is_dumb_terminal
    return (LiveDisplay if is_live else LineDisplay)(console, names, steps)


class LiveDisplay:
    """A line with a progress bar for each run, updated in place."""

    def __init__(self, console: Console, names: list[str], steps: int) -> None:
        self._steps = steps
        self._progress = Progress(
            TextColumn("{task.description}"),
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
            self._progress.update(task, completed=len(run.steps), figures=figures(run))

    def end(self, run: Run) -> None:
        self._progress.update(self._tasks[run.name], figures=outcome(run))
        self._progress.stop_task(self._tasks[run.name])


class LineDisplay:
    """Prints a line for the start, each step and the end of a run."""

    def __init__(self, console: Console, names: list[str], steps: int) -> None:
        self._console, self._steps = console, steps
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
            self._print(f"{run.name}: step {len(run.steps)}/{self._steps}  {figures(run)}")

    def end(self, run: Run) -> None:
        self._print(f"{run.name}: {outcome(run)}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()


def figures(run: Run) -> str:
    """Return loss, time and peak memory of the latest step, as text."""
    step = run.steps[-1]
    peak = format_nbytes(step["peak_nbytes"])
    return f"loss {step['loss']:.4f}  {step['seconds']:6.2f} s  {peak:>9}"


def outcome(run: Run) -> str:
    """Return the outcome of `run`, as text."""
    if run.status == FINISHED:
        return f"{figures(run)}  done"
    if run.status == OUT_OF_MEMORY:
        return f"{run.error} in step {(run.failed_step or 0) + 1}"
    return f"crashed ({run.error})"
