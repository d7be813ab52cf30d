"""What policies made of other policies share."""

from collections.abc import Mapping
from typing import Any

from offgrad.policies.base import Policy, as_policy
from offgrad.policies.by_module import ByModule


def part(policy: Any) -> Policy:
    """Return the policy meant, as a part of another.

    Raises:
        TypeError: if it is none, or one by module: that one knows which modules it is for.
    """
    if isinstance(policy, Mapping | ByModule):
        raise TypeError(
            "policies by module are no part of other policies: put those into the mapping, or use "
            "When(policy, module=pattern)"
        )
    return as_policy(policy)


def lossless(*policies: Any) -> bool:
    """Return whether all are lossless so far as known; a policy may lack that attribute."""
    return all(getattr(each, "lossless", True) for each in policies)


def recomputes(*policies: Any) -> bool:
    """Return whether one may recompute; a policy may lack that attribute."""
    return any(getattr(each, "recomputes", True) for each in policies)
