"""The results of each run: its steps, their spread, and how they compare with the reference's."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

FINISHED, OUT_OF_MEMORY, CRASHED = "finished", "out of memory", "crashed"
STOPPED = "stopped"
"""Ctrl-C came before its last step."""

MIN_KEPT_ROUNDS = 2
"""Of one round alone no time counts."""

MIN_ROUNDS = 4
"""Quartiles of fewer values say nothing about the spread."""

FASTER, SLOWER, WITHIN_SPREAD, UNKNOWN = "faster", "slower", "within spread", "too few steps"


class Quartiles(NamedTuple):
    """The middle of some values, and the bounds of the middle half of them."""

    low: float
    median: float
    high: float


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles of at least one value."""
    return Quartiles(*np.quantile(values, (0.25, 0.5, 0.75)).tolist())


@dataclass
class Run:
    """One row of the comparison: a policy, with or without the limit, and its results.

    Attributes:
        name: of the row.
        policy: as text, for `offgrad.offload`.
        limited: whether it runs under the memory limit.
        lossless: whether loss and gradients must equal the reference's bit for bit.
        is_extra: whether it only serves as the reference, and nobody asked for its row.
        library: ``"offgrad"`` or ``"torch"``.
        batch: samples per step; None if it is not known.
        memory_limit: bytes; None if it runs without the limit.
        status: `FINISHED`, `OUT_OF_MEMORY`, `CRASHED` or `STOPPED`.
        steps: for each finished step its loss, seconds, peak bytes and digest of gradients; of all
            repeats, one after the other.
        repeats: where the steps of each repeat begin.
        ledger: the session's figures over `ledger_steps` steps.
        ledger_steps: all but those of workers that a signal stopped; 0 for all.
        peak_rss_nbytes: of the worker; None if it crashed before its last report.
        base_rss_nbytes: before it made the model, with all libraries loaded.
        failed_step: the step that ran out of memory, counted from 0.
        failed_peak_nbytes: the peak of that step.
        error: the exception's name, or the exit status or signal of the worker.
        message: the exception's text, or the worker's standard error.
        parameter_nbytes: bytes of the model's parameters.
        model_nbytes: bytes of parameters, gradients and the optimizer's state.
        address_space_nbytes: allowed by the hard limit; None without one.
        is_comparable: whether the program itself makes the same steps in each run.
        equal: whether loss and gradients of all steps equal the reference's bit for bit; None if
            one of the two did not finish, or is not comparable.
        warnings: of the worker.
    """

    name: str
    policy: str
    limited: bool
    lossless: bool = True
    is_extra: bool = False
    library: str = "offgrad"
    batch: int | None = None
    memory_limit: int | None = None
    status: str = CRASHED
    steps: list[dict[str, Any]] = field(default_factory=list)
    repeats: list[int] = field(default_factory=lambda: [0])
    ledger: dict[str, Any] = field(default_factory=dict)
    ledger_steps: int = 0
    peak_rss_nbytes: int | None = None
    base_rss_nbytes: int | None = None
    failed_step: int | None = None
    failed_peak_nbytes: int = 0
    error: str = ""
    message: str = ""
    parameter_nbytes: int = 0
    model_nbytes: int = 0
    address_space_nbytes: int | None = None
    is_comparable: bool = True
    equal: bool | None = None
    warnings: list[str] = field(default_factory=list)
    # By step: memory over time as JSON, compressed, since a comparison may have many steps.
    _profiles: dict[int, bytes] = field(default_factory=dict)

    def add_profile(self, step: int, profile: dict[str, Any]) -> None:
        """Note the memory over time within a step, a failed one included."""
        self._profiles[step] = zlib.compress(json.dumps(profile).encode(), 1)

    @property
    def final_loss(self) -> float | None:
        """The loss of the last step; None if the training did not finish."""
        return self.steps[-1]["loss"] if self.status == FINISHED else None

    @property
    def peak_nbytes(self) -> int | None:
        """Maximum bytes of tensors; None if no step began."""
        peaks = [step["peak_nbytes"] for step in self.steps] + [self.failed_peak_nbytes]
        return max(peaks) or None

    @property
    def has_begun(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.steps) or (self.status in (OUT_OF_MEMORY, CRASHED) and bool(self.error))

    @property
    def is_timed(self) -> bool:
        """Whether its times mean something: it finished, or would have."""
        return self.status in (FINISHED, STOPPED) and bool(self.steps)

    @property
    def timed_steps(self) -> list[int]:
        """The steps whose times count: all but the first of each repeat, which warms up."""
        warm = [each for each in range(len(self.steps)) if each not in self.repeats]
        return warm or list(range(len(self.steps)))

    @property
    def seconds(self) -> Quartiles | None:
        """The time of a step; None if the training failed."""
        if not self.is_timed:
            return None
        return quartiles([self.steps[each]["seconds"] for each in self.timed_steps])

    @property
    def peak_over_base_nbytes(self) -> int | None:
        """Peak of resident memory above that with all libraries loaded."""
        if self.peak_rss_nbytes is None or self.base_rss_nbytes is None:
            return None
        return self.peak_rss_nbytes - self.base_rss_nbytes

    @property
    def shown_step(self) -> int | None:
        """The step to show: the failed one, else one of median time; None without a profile."""
        if self.failed_step is not None:
            return self.failed_step if self.failed_step in self._profiles else None
        known = [each for each in self.timed_steps if each in self._profiles]
        if not known:
            return None
        times = {each: self.steps[each]["seconds"] for each in known}
        median = quartiles([self.steps[each]["seconds"] for each in self.timed_steps]).median
        return min(known, key=lambda each: (abs(times[each] - median), times[each]))

    @property
    def profile(self) -> dict[str, Any] | None:
        """Memory over time within `shown_step`."""
        if self.shown_step is None:
            return None
        profile: dict[str, Any] = json.loads(zlib.decompress(self._profiles[self.shown_step]))
        return profile

    def per_step(self, figure: str) -> float | None:
        """Return a figure of the ledger per step; None if the training did not finish."""
        if self.status != FINISHED or figure not in self.ledger:
            return None
        value: float = self.ledger[figure] / (self.ledger_steps or len(self.steps))
        return value

    @property
    def differs(self) -> bool:
        """Whether its bits differ from the reference's although it is lossless."""
        return self.equal is False and self.lossless

    @property
    def _has_comparable_steps(self) -> bool:
        return self.is_timed and self.is_comparable

    def compare(self, reference: "Run") -> None:
        """Set `equal` by comparing losses and gradients of all steps with the reference's.

        If one was stopped, of the steps that both did.
        """
        if not self._has_comparable_steps or not reference._has_comparable_steps:
            self.equal = None
        else:
            pairs = zip(self.steps, reference.steps, strict=False)
            self.equal = all(_comparable(own) == _comparable(its) for own, its in pairs)

    def times(self, reference: "Run") -> Quartiles | None:
        """Return the time of a step over that of the reference's step in the same round.

        Both ran one after the other, so other load on the machine slowed both alike. None if one of
        the two failed.
        """
        if not self.is_timed or not reference.is_timed:
            return None
        common = [each for each in self.timed_steps if each < len(reference.steps)]
        if not common:
            return None
        return quartiles(
            [self.steps[each]["seconds"] / reference.steps[each]["seconds"] for each in common]
        )

    def difference(self, reference: "Run") -> str | None:
        """Return whether it is faster or slower than the reference, or the spread hides that.

        None if one of the two failed.
        """
        times = self.times(reference)
        if times is None:
            return None
        if len(self.timed_steps) < MIN_ROUNDS:
            return UNKNOWN
        if times.low <= 1 <= times.high:
            return WITHIN_SPREAD
        return SLOWER if times.median > 1 else FASTER

    @classmethod
    def of_repeats(cls, runs: "Sequence[Run]") -> "Run":
        """Return one run with the steps of all repeats of it; of the first that failed, if any."""
        failed = [run for run in runs if run.status not in (FINISHED, STOPPED)]
        if failed or len(runs) == 1:
            return (failed or runs)[0]
        reported = [run for run in runs if run.ledger] or runs
        repeats = np.cumsum([0] + [len(run.steps) for run in runs[:-1]]).tolist()
        merged = replace(
            reported[0],
            status=runs[-1].status,
            steps=[step for run in runs for step in run.steps],
            repeats=repeats,
            ledger={
                key: sum(run.ledger.get(key, 0) for run in reported)
                for key, value in reported[0].ledger.items()
                if isinstance(value, (int, float))
            },
            ledger_steps=sum(len(run.steps) for run in reported),
            peak_rss_nbytes=max(run.peak_rss_nbytes or 0 for run in runs) or None,
            is_comparable=all(run.is_comparable for run in runs),
            warnings=list(dict.fromkeys(text for run in runs for text in run.warnings)),
        )
        merged._profiles = {
            begin + step: profile
            for begin, run in zip(repeats, runs, strict=True)
            for step, profile in run._profiles.items()
        }
        return merged

    def end_after(self, rounds: int) -> None:
        """Drop the steps that not all workers have made, unless it failed."""
        if self.status in (FINISHED, STOPPED):
            self.status, self.ledger = STOPPED, {}
            del self.steps[rounds:]

    def as_kept(self) -> dict[str, Any]:
        """Return all that `from_kept` needs, ready for JSON; of the profiles the one shown."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["_profiles"]
        return {**values, "shown_step": self.shown_step, "profile": self.profile}

    @classmethod
    def from_kept(cls, values: dict[str, Any]) -> "Run":
        """Return the run from its `as_kept`."""
        shown, profile = values.pop("shown_step"), values.pop("profile")
        run = cls(**values)
        if shown is not None:
            run.add_profile(shown, profile)
        return run


def finished_rounds(runs: Sequence[Run]) -> int:
    """Return how many steps all runs have made that did not fail."""
    return min((len(run.steps) for run in runs if run.status in (FINISHED, STOPPED)), default=0)


def _comparable(step: dict[str, Any]) -> tuple[str, str]:
    # As text, NaN equals NaN.
    return repr(step["loss"]), step["gradients"]
