"""First: a list of policies, of which the first with an answer decides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from offgrad.policies.base import (
    Placement,
    Policy,
    SaveContext,
    are_lossless,
    convert,
    may_recompute,
    nested_policy,
)
from offgrad.policies.shown import answers_of


@dataclass(frozen=True, repr=False)
class First(Policy):
    """Answers as the first of its policies that has an answer; has none if none of them does.

    The order is from the particular to the general. `Keep` has an answer for every tensor.

    Attributes:
        policies: in any form of `as_policy` but a mapping. The policies of a nested `First` take
            its place.

    Raises:
        ValueError: if there is none.
        TypeError: if one is no policy, or one by module.
    """

    policies: Any

    def __post_init__(self) -> None:
        if isinstance(self.policies, (str, Mapping)) or not isinstance(self.policies, Iterable):
            raise TypeError(
                f"First takes a list of policies, got {type(self.policies).__name__}; a mapping "
                "of patterns of module names stands by itself"
            )
        policies: list[Policy] = []
        for each in map(nested_policy, self.policies):
            policies += each.policies if isinstance(each, First) else [each]
        if not policies:
            raise ValueError("a list of policies must not be empty; give at least one policy")
        object.__setattr__(self, "policies", tuple(policies))

    def place(self, context: SaveContext) -> Placement | None:
        for policy in self.policies:
            placement: Placement | None = policy.place(context)
            if placement is not None:
                return placement
        return None

    @property
    def lossless(self) -> bool:
        return are_lossless(*self.policies)

    @property
    def recomputes(self) -> bool:
        return may_recompute(*self.policies)

    def answers(self) -> list[tuple[str, str]]:
        return [pair for policy in self.policies for pair in answers_of(policy)]

    def __str__(self) -> str:
        return f"first of ({'; '.join(map(str, self.policies))})"


convert.register(list, First)
