"""The least memory limit within which one of several policies trains, found in few trials."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from offgrad.cli.compare.config import Config
from offgrad.cli.compare.dataset import Bytes
from offgrad.cli.compare.progress import SilentDisplay
from offgrad.cli.compare.results import FINISHED, Run
from offgrad.cli.compare.runner import run_workers
from offgrad.memory import format_nbytes

_PRECISION = 1.1
_MIB = 1 << 20
_MIN_SECONDS, _PATIENCE = 20.0, 3
_STEPS = 2
"""The first makes the optimizer's state, so the second needs most."""


@dataclass(frozen=True)
class Least:
    """A limit that works, and the policy that trains within it."""

    nbytes: int
    policy: str


def least_limit(
    config: Config,
    policies: dict[str, str],
    text: Bytes,
    model_nbytes: int,
    report: Callable[[str], None],
) -> Least | None:
    """Return the least limit, to within a tenth; None if no policy trains at all.

    Args:
        config: what is trained.
        policies: by the names of their rows.
        text: for the built-in GPT.
        model_nbytes: a bound from below.
        report: gets a line about each trial.
    """
    config = replace(config, steps=_STEPS, hard_limit=False)

    def trained(limit: int | None, max_seconds: float | None = None) -> list[Run]:
        runs = [Run(name, each, limit is not None) for name, each in policies.items()]
        trial = replace(config, memory_limit=limit)
        run_workers(runs, trial, text, SilentDisplay(), max_seconds=max_seconds)
        finished = [run for run in runs if run.status == FINISHED]
        if limit is not None:
            report(f"within {format_nbytes(limit)}: {_names(finished)}")
        return finished

    began = time.monotonic()
    fitting = trained(None)
    # Steps that wait for memory all the time do not count.
    most = _MIN_SECONDS + _PATIENCE * (time.monotonic() - began)
    if not fitting:
        return None
    best = min(fitting, key=lambda run: run.peak_nbytes or 0)
    fits, fails = -(-(best.peak_nbytes or 1) // _MIB), model_nbytes // _MIB
    while fits > fails + 1 and fits > fails * _PRECISION:
        middle = (fits + fails) // 2
        if fitting := trained(middle * _MIB, most):
            fits, best = middle, fitting[0]
        else:
            fails = middle
    return Least(fits * _MIB, best.name)


def _names(runs: list[Run]) -> str:
    return f"{', '.join(run.name for run in runs)} trained" if runs else "none trained"
