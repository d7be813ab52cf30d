"""Plan: a policy that was chosen for a recorded step, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from offgrad.memory import format_nbytes
from offgrad.policies import Placement, Policy, SaveContext, parse_policy
from offgrad.policies.base import Wrapper
from offgrad.prediction.simulation import Replay

NO_CHOICES = (
    "One policy for all tensors: no choices for single operations and modules take less time, as "
    "far as the search went."
)
"""The reason for a plan without choices."""


@dataclass(frozen=True)
class Choice:
    """What a plan does with one class of saved tensors.

    Attributes:
        op, slot: that save.
        module: the name of their modules, with ``*`` for numbers.
        action: ``"keep"``, ``"recompute"``, ``"store"`` or ``"encode"``.
        tensors: of the class; where nothing is chosen for it, those that save their memory first.
        nbytes: of the chosen ones.
        chosen: how many of the tensors that is done with.
        reason: in words.
    """

    op: str
    slot: str
    module: str
    action: str
    tensors: int
    nbytes: int
    chosen: int
    reason: str

    @property
    def count(self) -> str:
        """How many tensors, as text: ``"2 of 5"``."""
        part = f"{self.chosen} of " if self.chosen != self.tensors else ""
        return f"{part}{self.tensors}"

    @property
    def where(self) -> str:
        """Op, slot and modules, as text."""
        return f"{self.op}.{self.slot}" + (f" in {self.module}" if self.module else "")

    def __str__(self) -> str:
        return (
            f"{self.action:>9}  {self.count:>9}  {format_nbytes(self.nbytes):>9}  {self.where}: "
            f"{self.reason}"
        )


class Plan(Wrapper):
    """A policy for the classes of tensors that a step saves.

    ``str(plan)`` is text that `parse_policy` makes into an equal policy.

    Attributes:
        text: of the policy.
        then: the policy.
        nbytes: the bound of the memory held for backward.
        predicted: what a step takes with it.
        others: what it takes under policies that were compared with it.
        choices: for each class, the largest first.
    """

    def __init__(
        self,
        text: str,
        nbytes: int,
        predicted: Replay,
        others: Sequence[Replay] = (),
        choices: Sequence[Choice] = (),
    ) -> None:
        self.text, self.nbytes, self.predicted = text, nbytes, predicted
        self.then: Policy = parse_policy(text)
        self.others, self.choices = tuple(others), tuple(choices)

    def place(self, context: SaveContext) -> Placement | None:
        return self.then.place(context)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Plan {self.text!r}>"

    def explain(self) -> str:
        """Return what was chosen, and why, as lines of text."""
        lines = [
            f"Held for backward: at most {format_nbytes(self.nbytes)}. Predicted for a step: "
            f"{self.predicted.seconds:.3f} s, a peak of {format_nbytes(self.predicted.peak_nbytes)}"
        ]
        for other in self.others:
            lines.append(
                f"  instead of {other.seconds:.3f} s, {format_nbytes(other.peak_nbytes)}: "
                f"{other.policy}"
            )
        lines += map(str, self.choices) if self.choices else [NO_CHOICES]
        lines.append(f"As text: {self.text}")
        return "\n".join(lines)
