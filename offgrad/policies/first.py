"""First: a list of policies, of which the first that has an answer counts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from offgrad.policies.base import Placement, Policy, SaveContext, as_policy
from offgrad.policies.combined import lossless, part, recomputes


@dataclass(frozen=True)
class First(Policy):
    """Answers as the first of its policies that has an answer; has none if none of them does.

    So the order is from the particular to the general. `Keep` has an answer for everything.

    Attributes:
        policies: whatever `as_policy` takes but mappings. Those of a `First` among them are taken
            in its place.

    Raises:
        ValueError: if there is none.
        TypeError: if one is no policy, or one by module.
    """

    policies: Any

    def __post_init__(self) -> None:
        if isinstance(self.policies, str | Mapping) or not isinstance(self.policies, Iterable):
            raise TypeError(
                f"First takes a list of policies, got {type(self.policies).__name__}; a mapping "
                "of patterns of module names stands by itself"
            )
        policies: list[Policy] = []
        for each in map(part, self.policies):
            policies += each.policies if isinstance(each, First) else [each]
        if not policies:
            raise ValueError("a list of policies needs one at least, got none")
        object.__setattr__(self, "policies", tuple(policies))

    def place(self, context: SaveContext) -> Placement | None:
        """Return the first answer."""
        for policy in self.policies:
            placement: Placement | None = policy.place(context)
            if placement is not None:
                return placement
        return None

    @property
    def lossless(self) -> bool:
        """Whether all are."""
        return lossless(*self.policies)

    @property
    def recomputes(self) -> bool:
        """Whether one does."""
        return recomputes(*self.policies)

    def __str__(self) -> str:
        return f"first of ({'; '.join(map(str, self.policies))})"


as_policy.register(list, First)
