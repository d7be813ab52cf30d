"""ByModule: policies by the name of the module that saves."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from offgrad.policies.policy import Keep, Placement, Policy, SaveContext, as_policy


@dataclass(frozen=True)
class ByModule(Policy):
    """Decides as the policy of the innermost module that a pattern matches.

    A pattern is a qualified name, such as ``"blocks.3.attn"``, in which ``*`` stands for anything
    but a dot, and ``**`` for any number of names; ``""`` is the model itself. It speaks for the
    module and all below, unless a pattern matches further in. Of several that match the same
    module the first one counts.

    Attributes:
        rules: policies by pattern, given as a mapping; whatever `as_policy` takes.
        otherwise: the policy of what no pattern speaks for.
    """

    rules: Any
    otherwise: Policy = field(default_factory=Keep)
    _found: dict[str, Policy | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        pairs = self.rules.items() if isinstance(self.rules, Mapping) else self.rules
        rules = tuple((_checked(pattern), as_policy(policy)) for pattern, policy in pairs)
        object.__setattr__(self, "rules", rules)

    def place(self, context: SaveContext) -> Placement:
        """Return what the policy found for the module returns."""
        policy = self.find(context.module)
        return (self.otherwise if policy is None else policy).place(context)

    def find(self, name: str) -> Policy | None:
        """Return the policy for what is saved in the module `name`; None if no pattern speaks."""
        if name not in self._found:
            policies = (self._at(each) for each in _enclosing(name))
            self._found[name] = next((each for each in policies if each is not None), None)
        return self._found[name]

    def speaks_of(self, name: str) -> bool:
        """Return whether a pattern matches the module `name` itself."""
        return self._at(name) is not None

    def check(self, names: Iterable[str], model: str) -> None:
        """Raise unless each pattern matches one of the names of the modules of `model`.

        Raises:
            ValueError: listing names that are near.
        """
        names = list(names)
        for pattern, _ in self.rules:
            if any(_matches(pattern, name) for name in names):
                continue
            near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.5)
            listed = [each for each in near or names if each][:5]
            raise ValueError(
                f"each pattern must match a module of the model, but {pattern!r} matches none of "
                f"{model}; {'did you mean' if near else 'there are'} "
                f"{', '.join(map(repr, listed)) or 'no modules below it'}?"
            )

    def _at(self, name: str) -> Policy | None:
        return next((policy for pattern, policy in self.rules if _matches(pattern, name)), None)

    def __str__(self) -> str:
        rules = "; ".join(f"{pattern or 'the model'}: {policy}" for pattern, policy in self.rules)
        return f"by module ({rules}; otherwise {self.otherwise})"


def _checked(pattern: Any) -> str:
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern of module names is text, got {type(pattern).__name__}")
    return pattern


def _enclosing(name: str) -> Iterable[str]:
    """Return the name and those of the modules around it, innermost first."""
    yield name
    while name:
        name = name.rpartition(".")[0]
        yield name


def _matches(pattern: str, name: str) -> bool:
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    expression = "".join(
        {"**.": r"(?:[^.]+\.)*", "**": ".*", "*": "[^.]*", "?": "[^.]"}.get(part, re.escape(part))
        for part in re.split(r"(\*\*\.|\*\*|\*|\?)", pattern)
    )
    return re.compile(expression)
