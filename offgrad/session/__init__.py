"""Sessions: the machinery behind a policy.

Internal are the modules below: import the names in `__all__` from this package.
"""

from offgrad.session import (
    default,  # noqa: F401 (sets the hooks for what is saved outside all sessions)
    op_names,  # noqa: F401 (provides the names of operations to rules)
)
from offgrad.session.ledger import Ledger, LedgerRow
from offgrad.session.session import OffloadSession

offload = OffloadSession

__all__ = ["Ledger", "LedgerRow", "OffloadSession", "offload"]
