"""A comparison from its plan to its results, with what an earlier, stopped one has finished."""

from dataclasses import dataclass, field

from rich.console import Console

from offgrad.cli.compare.config import Config
from offgrad.cli.compare.dataset import Bytes
from offgrad.cli.compare.groups import Plan
from offgrad.cli.compare.kept import Kept
from offgrad.cli.compare.progress import Remaining, progress_display
from offgrad.cli.compare.results import Run
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

    def run(self, console: Console, text: Bytes, kept: Kept) -> None:
        """Run all groups that are not kept; what a signal leaves is in `groups`, too."""
        plan = self.plan
        jobs = [(config, repeat) for repeat in range(plan.repeats) for config in plan.configs()]
        remaining = Remaining(len(jobs))
        done: dict[Config, list[list[Run]]] = {}
        try:
            for number, (config, repeat) in enumerate(jobs):
                title = plan.title(config, repeat)
                runs = kept.load(number)
                if title:
                    note = ": kept from before" if runs else ""
                    console.print(f"\n{title}{note}", highlight=False, markup=False)
                if runs is None:
                    runs = plan.runs(config)
                    done.setdefault(config, []).append(runs)
                    self._run_group(console, runs, config, text, remaining)
                    if len(jobs) > 1:
                        kept.save(number, runs)
                else:
                    done.setdefault(config, []).append(runs)
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
