"""A comparison from its plan to its results, with what an earlier, stopped one has finished."""

from contextlib import suppress
from dataclasses import dataclass, field, replace

from rich.console import Console

from offgrad.cli.compare.config import Config
from offgrad.cli.compare.dataset import Bytes
from offgrad.cli.compare.groups import Plan
from offgrad.cli.compare.kept import Kept
from offgrad.cli.compare.progress import Remaining, progress_display
from offgrad.cli.compare.results import (
    FINISHED,
    MIN_KEPT_ROUNDS,
    STOPPED,
    Run,
    finished_rounds,
)
from offgrad.cli.compare.runner import run_workers


@dataclass
class Comparison:
    """A plan, and the results so far.

    Attributes:
        plan: what is compared.
        source: what it trains on, in words; None for scripts and callables.
        groups: runs by batch size and limit, all repeats in one; the first run of each is the
            reference of the others.
        is_complete: whether no signal stopped it.
    """

    plan: Plan
    source: str | None = None
    groups: list[list[Run]] = field(default_factory=list)
    is_complete: bool = False

    @property
    def runs(self) -> list[Run]:
        """The runs of all groups."""
        return [run for group in self.groups for run in group]

    @property
    def has_finished_any(self) -> bool:
        """Whether any policy that was asked for finished."""
        return any(run.status == FINISHED for run in self.runs if not run.is_extra)

    @property
    def has_figures(self) -> bool:
        """Whether any policy that was asked for has times: it finished, or came far enough."""
        return any(
            run.status == FINISHED or (run.is_timed and len(run.steps) >= MIN_KEPT_ROUNDS)
            for run in self.runs
            if not run.is_extra
        )

    def run(self, console: Console, text: Bytes, kept: Kept) -> None:
        """Run all that is not kept; what a signal leaves is in `groups`, too.

        Of a group that was stopped, the rounds that are left are trained from the first step on.
        """
        plan = self.plan
        jobs = [(config, repeat) for repeat in range(plan.repeats) for config in plan.configs()]
        remaining = Remaining(len(jobs))
        done: dict[Config, list[list[Run]]] = {}
        try:
            for number, (config, repeat) in enumerate(jobs):
                title = plan.title(config, repeat)
                parts = kept.load(number)
                done.setdefault(config, []).extend(parts)
                steps = _steps_left(parts, config.steps)
                if title or parts:
                    note = _note(config.steps - steps + 1, config.steps) if parts else ""
                    line = ": ".join(filter(None, (title, note)))
                    console.print(f"\n{line}", highlight=False, markup=False)
                if steps:
                    parts.append(plan.runs(config))
                    done[config].append(parts[-1])
                    left = replace(config, steps=steps)
                    try:
                        self._run_group(console, parts[-1], left, text, remaining)
                    except Exception:
                        raise
                    except BaseException:
                        _keep_rounds(kept, number, parts)
                        raise
                    if len(jobs) > 1:
                        kept.save(number, parts)
                remaining.end_group()
            self.is_complete = True
        finally:
            self._collect(done)

    def _run_group(
        self, console: Console, runs: list[Run], config: Config, text: Bytes, remaining: Remaining
    ) -> None:
        names = [run.name for run in runs]
        with progress_display(console, names, config.steps, remaining) as display:
            run_workers(runs, config, text, display, self.plan.lowest_limit)

    def _collect(self, done: dict[Config, list[list[Run]]]) -> None:
        for repeats in done.values():
            begun = [group for group in repeats if any(run.has_begun for run in group)]
            if not begun:
                continue
            group = [Run.of_repeats(runs) for runs in zip(*begun, strict=True)]
            for run in group:
                run.compare(group[0])
            self.groups.append(group)


def _steps_left(parts: list[list[Run]], steps: int) -> int:
    """Return how many steps a group has left: as many as were not timed, and one to warm up."""
    if not parts:
        return steps
    if all(run.status != STOPPED for run in parts[-1]):
        return 0
    return steps - sum(finished_rounds(part) - 1 for part in parts)


def _note(rounds: int, steps: int) -> str:
    if rounds > steps:
        return "kept from before"
    return f"{rounds} of {steps} rounds kept from before"


def _keep_rounds(kept: Kept, group: int, parts: list[list[Run]]) -> None:
    """Keep the rounds that all workers have finished."""
    rounds = finished_rounds(parts[-1])
    if rounds < MIN_KEPT_ROUNDS:
        return
    for run in parts[-1]:
        run.end_after(rounds)
    with suppress(OSError):
        kept.save(group, parts)
