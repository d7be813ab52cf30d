"""Where tensors saved for backward are: policies decide, a session does."""

from offgrad.policies.budget import Budget, Last
from offgrad.policies.by_module import ByModule
from offgrad.policies.cast import Cast
from offgrad.policies.first import First
from offgrad.policies.ledger import Ledger, LedgerRow
from offgrad.policies.parse import parse_policy
from offgrad.policies.policy import (
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
from offgrad.policies.session import OffloadSession
from offgrad.policies.when import When

offload = OffloadSession

__all__ = [
    "POLICIES",
    "Budget",
    "ByModule",
    "Cast",
    "First",
    "Keep",
    "Last",
    "Ledger",
    "LedgerRow",
    "Offload",
    "OffloadSession",
    "Placement",
    "Policy",
    "Recompute",
    "SaveContext",
    "Spill",
    "Store",
    "When",
    "as_policy",
    "offload",
    "parse_policy",
]
