"""Groups of runs: the policies of each batch size, limit and repeat, whose processes take turns."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from offgrad.cli.compare.config import REFERENCE, Config
from offgrad.cli.compare.results import Run
from offgrad.memory import format_nbytes
from offgrad.policies import parse_policy

TORCH = "torch"


@dataclass(frozen=True)
class Plan:
    """All that a comparison does.

    Attributes:
        config: of the first group.
        policies: by the names of their rows.
        batches: samples per step; None for what the target does by itself.
        limits: bytes of tensors; None for no limit.
        repeats: how often each group runs.
        with_torch: whether PyTorch trains the built-in model, too.
        hard_limit: whether the operating system enforces the limits, too.
    """

    config: Config
    policies: dict[str, str]
    batches: tuple[int | None, ...]
    limits: tuple[int | None, ...]
    repeats: int = 1
    with_torch: bool = False
    hard_limit: bool = False

    @property
    def lowest_limit(self) -> int | None:
        """The lowest limit of any group; None if there is none."""
        return min((each for each in self.limits if each is not None), default=None)

    def configs(self) -> Iterator[Config]:
        """Yield the configuration of each group, without repeats."""
        for batch, limit in product(self.batches, self.limits):
            yield replace(
                self.config,
                batch=self.config.batch if batch is None else batch,
                memory_limit=limit,
                hard_limit=self.hard_limit and limit is not None,
            )

    def runs(self, config: Config) -> list[Run]:
        """Return the runs of a group in order; the first is the reference, without a limit."""
        limit = config.memory_limit
        if limit is None:
            others = {name: each for name, each in self.policies.items() if each != REFERENCE}
            asked = [name for name, each in self.policies.items() if each == REFERENCE]
            reference = Run(asked[0] if asked else REFERENCE, REFERENCE, False, is_extra=not asked)
        else:
            others = self.policies
            reference = Run(f"{REFERENCE}, no limit", REFERENCE, False, is_extra=True)
        runs = [reference]
        runs += [_run(name, policy, limit is not None) for name, policy in others.items()]
        if self.with_torch:
            runs.append(Run(TORCH, TORCH, False, lossless=False, is_extra=True, library=TORCH))
        for run in runs:
            run.batch = config.batch
            run.memory_limit = limit if run.limited else None
            run.name += self._suffix(config)
        return runs

    def title(self, config: Config, repeat: int) -> str:
        """Return a line about a group; empty if it is the only one."""
        parts = []
        if len(self.batches) > 1:
            parts.append(f"batch {config.batch}")
        if len(self.limits) > 1:
            parts.append(_limit(config))
        if self.repeats > 1:
            parts.append(f"repeat {repeat + 1} of {self.repeats}")
        return ", ".join(parts)

    def _suffix(self, config: Config) -> str:
        parts = []
        if len(self.batches) > 1:
            parts.append(f"batch {config.batch}")
        if len(self.limits) > 1:
            parts.append(_limit(config))
        return f" ({', '.join(parts)})" if parts else ""


def _limit(config: Config) -> str:
    if config.memory_limit is None:
        return "no limit"
    return f"limit {format_nbytes(config.memory_limit)}"


def _run(name: str, policy: str, limited: bool) -> Run:
    return Run(name, policy, limited, lossless=parse_policy(policy).lossless)
