"""Policies: pure decisions on where tensors saved for backward go.

Internal are the modules below: import the names in `__all__` from this package.
"""

from offgrad.policies.base import (
    POLICIES,
    Keep,
    Offload,
    Placement,
    Policy,
    Recompute,
    SaveContext,
    Spill,
    Store,
    as_policy,
)
from offgrad.policies.budget import Budget, Last
from offgrad.policies.by_module import ByModule
from offgrad.policies.cast import Cast
from offgrad.policies.first import First
from offgrad.policies.parse import parse_policy
from offgrad.policies.when import When

__all__ = [
    "POLICIES",
    "Budget",
    "ByModule",
    "Cast",
    "First",
    "Keep",
    "Last",
    "Offload",
    "Placement",
    "Policy",
    "Recompute",
    "SaveContext",
    "Spill",
    "Store",
    "When",
    "as_policy",
    "parse_policy",
]
