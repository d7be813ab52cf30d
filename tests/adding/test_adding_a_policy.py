"""A new policy with a name takes edits of at most three source files.

The test adds a policy to a copy of the package, as CONTRIBUTING describes, and uses it by name.
"""

from pathlib import Path

from tests.adding.copies import Edits, run_in_copy

POLICY = '''"""Alternate: every second tensor keeps its place in memory."""

from dataclasses import dataclass
from typing import Any

from offgrad.policies.base import Keep, Placement, SaveContext, Wrapper, nested_policy


@dataclass(frozen=True)
class Alternate(Wrapper):
    """Keeps tensors whose storage has an even number; another policy places the others.

    Attributes:
        then: the other policy; in any form of `as_policy` but a mapping.
    """

    then: Any = "disk"

    def __post_init__(self) -> None:
        object.__setattr__(self, "then", nested_policy(self.then))

    def place(self, context: SaveContext) -> Placement | None:
        return self.then.place(context) if context.storage % 2 else Keep()

    def __str__(self) -> str:
        return f"every second: {self.then}"
'''

PARSE = """def _alternate(name: str, argument: str | None, options: Options) -> Policy:
    return Alternate(parse_policy(options.get("then", "disk")))


"""

EDITS: Edits = {
    "offgrad/policies/alternate.py": [("", POLICY)],
    "offgrad/policies/__init__.py": [
        (
            "from offgrad.policies.when import When",
            "from offgrad.policies.alternate import Alternate\n",
        ),
        ('    "POLICIES",', '    "Alternate",\n'),
    ],
    "offgrad/policies/parse.py": [
        (
            "from offgrad.policies.when import When",
            "from offgrad.policies.alternate import Alternate\n",
        ),
        (
            '    return Last(int(count), parse_policy(options.get("then", "disk") + min_option))',
            "\n\n" + PARSE.rstrip() + "\n",
        ),
        ('    "keep": (_keep, ()),', '    "alternate": (_alternate, ("then",)),\n'),
    ],
}

PROGRAM = """
import offgrad
from offgrad.policies import Alternate, parse_policy

assert parse_policy("alternate") == Alternate("disk")
assert parse_policy("alternate,then=disk:lz4").lossless
assert not parse_policy("alternate,then=cast:float16").lossless
assert not Alternate("disk").recomputes


def gradient(policy):
    offgrad.manual_seed(0)
    x = offgrad.randn(256, 256, requires_grad=True)
    with offgrad.offload(policy) as session:
        y = x
        for _ in range(6):
            y = y.sin()
        loss = y.sum()
    loss.backward()
    return x.grad, session.ledger


expected, _ = gradient("keep")
found, ledger = gradient("alternate")
assert (found == expected).all()
assert 0 < ledger.writes < 5, ledger
print("done")
"""


def test_a_new_policy_takes_three_files(tmp_path: Path) -> None:
    assert len(EDITS) <= 3
    run_in_copy(tmp_path, EDITS, PROGRAM)
