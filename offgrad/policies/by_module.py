"""ByModule: policies by the name of the module that saves."""

import difflib
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offgrad.policies.base import (
    Keep,
    Placement,
    Policy,
    SaveContext,
    are_lossless,
    as_policy,
    convert,
)
from offgrad.policies.patterns import enclosing, matches


class Rule(NamedTuple):
    """The policy for a module, and how many names further out its pattern matched."""

    depth: int
    policy: Policy


@dataclass(frozen=True, repr=False)
class ByModule(Policy):
    """Decides as the policy of the innermost module that a pattern matches.

    A pattern is a qualified name, such as ``"blocks.3.attn"``. In it ``*`` stands for any name or
    part of one, ``?`` for one character, and ``**``, between dots, for any number of names; ``""``
    is the model itself. It includes the modules below, unless a pattern matches further in. If
    several match the same module, the first one decides.

    `When` with ``module=`` is a rule that needs no model to be checked against.

    Attributes:
        rules: policies by pattern, given as a mapping; in any form of `as_policy` but a mapping.
        otherwise: the policy for modules that no pattern matches. By default the session has no
            effect there.

    Raises:
        ValueError: if there is no pattern.
        TypeError: if a pattern is no text, or its policy none, or one by module itself.
    """

    is_by_module = True

    rules: Any
    otherwise: Policy | None = None
    _found: dict[str, Rule | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        pairs = self.rules.items() if isinstance(self.rules, Mapping) else self.rules
        if not isinstance(pairs, Iterable):
            raise TypeError(
                "policies by module are a mapping of patterns of names to policies, got "
                f"{type(pairs).__name__}"
            )
        rules = tuple((_checked(pattern), _policy(policy, pattern)) for pattern, policy in pairs)
        if not rules:
            raise ValueError("policies by module need at least one pattern, got none")
        object.__setattr__(self, "rules", rules)
        if self.otherwise is not None:
            object.__setattr__(self, "otherwise", _policy(self.otherwise, "otherwise"))

    def place(self, context: SaveContext) -> Placement | None:
        rule = self.find(context.module)
        policy = self.otherwise if rule is None else rule.policy
        return Keep() if policy is None else policy.place(context)

    @property
    def lossless(self) -> bool:
        return are_lossless(*(policy for _, policy in self.rules), self.otherwise)

    def find(self, name: str) -> Rule | None:
        """Return the rule for the module `name`; None if no pattern matches it."""
        if name not in self._found:
            policies = ((depth, self._at(each)) for depth, each in enumerate(enclosing(name)))
            self._found[name] = next(
                (Rule(depth, policy) for depth, policy in policies if policy is not None), None
            )
        return self._found[name]

    def check(self, names: Iterable[str], model: str) -> None:
        """Raise unless each pattern matches one of the names of the modules of `model`.

        Raises:
            ValueError: listing similar names.
        """
        names = list(names)
        for pattern, _ in self.rules:
            if any(matches(pattern, name) for name in names):
                continue
            near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.5)
            listed = ", ".join(repr(each) for each in (near or names) if each)
            if near:
                hint = f"did you mean {listed}?"
            elif listed:
                hint = f"it has {textwrap.shorten(listed, 200, placeholder=' ...')}"
            else:
                hint = "it has no modules below it"
            raise ValueError(
                f"each pattern must match a module of the model, but {pattern!r} matches none of "
                f"{model}; {hint}"
            )

    def _at(self, name: str) -> Policy | None:
        return next((policy for pattern, policy in self.rules if matches(pattern, name)), None)

    def answers(self) -> list[tuple[str, str]]:
        rules = [(pattern or "the model", str(policy)) for pattern, policy in self.rules]
        outside = "not under this policy" if self.otherwise is None else str(self.otherwise)
        return [*rules, ("others", outside)]

    def __str__(self) -> str:
        rules = [f"{pattern or 'the model'}: {policy}" for pattern, policy in self.rules]
        if self.otherwise is not None:
            rules.append(f"otherwise {self.otherwise}")
        return f"by module ({'; '.join(rules)})"


def _checked(pattern: Any) -> str:
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern of module names is text, got {type(pattern).__name__}")
    return pattern


def _policy(policy: Any, pattern: str) -> Policy:
    if isinstance(policy, (Mapping, ByModule)):
        raise TypeError(
            f"the policy of a pattern must not be by module itself, but that of {pattern!r} is; "
            f"use patterns such as '{pattern}.name' side by side"
        )
    return as_policy(policy)


convert.register(Mapping, ByModule)
