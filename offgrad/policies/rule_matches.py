"""RuleMatches: notes which rules of a policy never matched a saved tensor."""

import difflib
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from offgrad._warning import warn_program
from offgrad.policies.base import Policy, SaveContext, Wrapper
from offgrad.policies.by_module import ByModule
from offgrad.policies.first import First
from offgrad.policies.op_names import is_known_op, known_ops, operation, simplified
from offgrad.policies.when import CONDITIONS, When, no_such_name


def rules_of(policy: Any) -> Iterator[When]:
    """Yield the rules of a policy that have patterns of names."""
    parts: Iterable[Any] = ()
    if isinstance(policy, When) and any(getattr(policy, each) is not None for each in CONDITIONS):
        yield policy
    if isinstance(policy, Wrapper):
        parts = (policy.then,)
    elif isinstance(policy, First):
        parts = policy.policies
    elif isinstance(policy, ByModule):
        parts = (*(each for _, each in policy.rules), policy.otherwise)
    for each in parts:
        yield from rules_of(each)


def check_ops(policy: Policy) -> None:
    """Raise for names of operations that no operation has, where no user defines Functions.

    Raises:
        ValueError: with similar names.
    """
    for rule in rules_of(policy):
        for name in ("op", "made_by"):
            for pattern in getattr(rule, name) or ():
                if pattern and not is_known_op(pattern):
                    raise no_such_name(name, pattern, known_ops())


def rule_matches(policy: Policy) -> "RuleMatches | None":
    """Return the matches to count for a policy; None if it has no rules."""
    rules = list(rules_of(policy))
    return RuleMatches(rules) if rules else None


class RuleMatches:
    """Which rules matched the tensors saved so far. The decisions of the policy are its own.

    A rule whose tensors an earlier policy of a list decides on counts as matched.
    """

    def __init__(self, rules: Sequence[When]) -> None:
        self._rules = rules
        self._matched: set[int] = set()
        self._held: set[tuple[int, str]] = set()
        self._seen: dict[str, set[str]] = {name: set() for name in CONDITIONS}
        self._has_saves = self._is_done = False

    def note(self, context: SaveContext) -> None:
        """Compare the rules with a tensor that is being saved."""
        if self._is_done:
            return
        for name, seen in self._seen.items():
            seen.add(getattr(context, name))
        for index, rule in enumerate(self._rules):
            if index not in self._matched:
                held = [name for name in CONDITIONS if rule.holds(name, context)]
                self._held.update((index, name) for name in held)
                if len(held) == len(CONDITIONS):
                    self._matched.add(index)
        self._has_saves = True  # last: Ctrl-C may come before

    def warn(self) -> None:
        """After the first block in which a tensor was saved, warn of rules that matched none."""
        if not self._has_saves or self._is_done:
            return
        self._is_done = True
        lines = self.complaints()
        if lines:
            warn_program("; ".join(lines))

    def complaints(self) -> list[str]:
        """Return a line for each rule that matched none."""
        return [
            self._complaint(index, rule)
            for index, rule in enumerate(self._rules)
            if index not in self._matched
        ]

    def _complaint(self, index: int, rule: When) -> str:
        for name in CONDITIONS:
            if (index, name) not in self._held:
                patterns = "|".join(getattr(rule, name))
                return (
                    f"no tensor saved for backward in this block has {name}={patterns!r}, so the "
                    f"rule '{rule}' did nothing; {self._hint(name, getattr(rule, name))}"
                )
        together = " and ".join(
            f"{name}={'|'.join(getattr(rule, name))!r}"
            for name in CONDITIONS
            if getattr(rule, name) is not None
        )
        return (
            f"no tensor saved for backward in this block has {together} together, so the rule "
            f"'{rule}' did nothing"
        )

    def _hint(self, name: str, patterns: tuple[str, ...]) -> str:
        is_op = name in ("op", "made_by")
        names = self._seen[name].copy()  # other threads may be adding theirs
        seen = {operation(each) if is_op else each for each in names} - {""}
        candidates = {simplified(each) if is_op else each: each for each in sorted(seen)}
        if is_op:
            candidates = {simplified(each): each for each in known_ops()} | candidates
        near: list[str] = []
        for each in patterns:
            if is_op and is_known_op(each):
                continue  # what it names has saved nothing here
            wanted = simplified(each) if is_op else each
            near += difflib.get_close_matches(wanted, list(candidates), n=3, cutoff=0.6)
        exact = {simplified(each) if is_op else each for each in patterns}
        meant = [candidates[each] for each in dict.fromkeys(near) if each not in exact]
        listed = textwrap.shorten(", ".join(sorted(seen)), 200, placeholder=" ...") or "none"
        question = f"did you mean {' or '.join(meant)}? " if meant else ""
        return f"{question}there were {listed}"
