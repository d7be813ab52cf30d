"""Where tensors saved for backward are: policies decide, a session does."""

from offgrad.policies.by_module import ByModule
from offgrad.policies.ledger import Ledger
from offgrad.policies.policy import POLICIES, Keep, Offload, Placement, Policy, SaveContext, Store
from offgrad.policies.session import OffloadSession

offload = OffloadSession

__all__ = [
    "POLICIES",
    "ByModule",
    "Keep",
    "Ledger",
    "Offload",
    "OffloadSession",
    "Placement",
    "Policy",
    "SaveContext",
    "Store",
    "offload",
]
