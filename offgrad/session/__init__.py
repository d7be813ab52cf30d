"""Sessions: the machinery behind a policy.

Internal are the modules below: import the names in `__all__` from this package.
"""

import typing as _typing

from offgrad_storage._imports import lazy as _lazy

# Sets the hooks for what is saved outside all sessions.
from offgrad.session import default  # noqa: F401

if _typing.TYPE_CHECKING or not _lazy(__name__):
    from offgrad.session.ledger import Ledger, LedgerRow
    from offgrad.session.paging import ModelOffload, offload_model
    from offgrad.session.session import OffloadSession
    from offgrad.session.session import OffloadSession as offload

__all__ = ["Ledger", "LedgerRow", "ModelOffload", "OffloadSession", "offload", "offload_model"]
