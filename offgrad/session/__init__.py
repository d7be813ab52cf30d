"""Sessions: the mechanics behind a policy."""

from offgrad.session.ledger import Ledger, LedgerRow
from offgrad.session.session import OffloadSession

offload = OffloadSession

__all__ = ["Ledger", "LedgerRow", "OffloadSession", "offload"]
