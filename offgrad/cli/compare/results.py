"""The results of each run: its steps, their spread, and how they compare with the reference's."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

FINISHED, OUT_OF_MEMORY, CRASHED = "finished", "out of memory", "crashed"

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
        status: `FINISHED`, `OUT_OF_MEMORY` or `CRASHED`.
        steps: for each finished step its loss, seconds, peak bytes and digest of gradients.
        ledger: the session's figures over all steps.
        peak_rss_nbytes: of the worker; None if it crashed before its last report.
        failed_step: the step that ran out of memory, counted from 0.
        failed_peak_nbytes: the peak of that step.
        error: the exception's name, or the exit status or signal of the worker.
        message: the exception's text, or the worker's standard error.
        parameter_nbytes: bytes of the model's parameters.
        address_space_nbytes: allowed by the hard limit; None without one.
        equal: whether loss and gradients of all steps equal the reference's bit for bit; None if
            one of the two did not finish.
        warnings: of the worker.
    """

    name: str
    policy: str
    limited: bool
    lossless: bool = True
    is_extra: bool = False
    status: str = CRASHED
    steps: list[dict[str, Any]] = field(default_factory=list)
    ledger: dict[str, Any] = field(default_factory=dict)
    peak_rss_nbytes: int | None = None
    failed_step: int | None = None
    failed_peak_nbytes: int = 0
    error: str = ""
    message: str = ""
    parameter_nbytes: int = 0
    address_space_nbytes: int | None = None
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
    def timed_steps(self) -> range:
        """The steps whose times count: all but the first, which warms up."""
        return range(min(1, len(self.steps) - 1), len(self.steps))

    @property
    def seconds(self) -> Quartiles | None:
        """The time of a step; None if the training did not finish."""
        if self.status != FINISHED:
            return None
        return quartiles([self.steps[each]["seconds"] for each in self.timed_steps])

    @property
    def shown_step(self) -> int | None:
        """The step to show: the failed one, else one of median time; None without a profile."""
        if self.failed_step is not None:
            shown = self.failed_step
        elif self.steps:
            by_time = sorted(self.timed_steps, key=lambda each: self.steps[each]["seconds"])
            shown = by_time[(len(by_time) - 1) // 2]
        else:
            return None
        return shown if shown in self._profiles else None

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
        value: float = self.ledger[figure] / len(self.steps)
        return value

    @property
    def differs(self) -> bool:
        """Whether its bits differ from the reference's although it is lossless."""
        return self.equal is False and self.lossless

    def compare(self, reference: "Run") -> None:
        """Set `equal` by comparing losses and gradients of all steps with the reference's."""
        if self.status != FINISHED or reference.status != FINISHED:
            self.equal = None
        else:
            self.equal = [_comparable(step) for step in self.steps] == [
                _comparable(step) for step in reference.steps
            ]

    def times(self, reference: "Run") -> Quartiles | None:
        """Return the time of a step over that of the reference's step in the same round.

        Both ran one after the other, so other load on the machine slowed both alike. None if one of
        the two did not finish.
        """
        if self.status != FINISHED or reference.status != FINISHED:
            return None
        return quartiles(
            [
                self.steps[each]["seconds"] / reference.steps[each]["seconds"]
                for each in self.timed_steps
            ]
        )

    def difference(self, reference: "Run") -> str | None:
        """Return whether it is faster or slower than the reference, or the spread hides that.

        None if one of the two did not finish.
        """
        times = self.times(reference)
        if times is None:
            return None
        if len(self.timed_steps) < MIN_ROUNDS:
            return UNKNOWN
        if times.low <= 1 <= times.high:
            return WITHIN_SPREAD
        return SLOWER if times.median > 1 else FASTER


def _comparable(step: dict[str, Any]) -> tuple[str, str]:
    # As text, NaN equals NaN.
    return repr(step["loss"]), step["gradients"]
