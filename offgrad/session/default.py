"""The default session: what is saved outside all sessions and hooks.

The output of a GELU or LayerNorm, which the next layer saves, follows from the input, which they
save themselves: keeping both would take two fifths of a transformer's saved memory.
"""

from functools import cache
from typing import TYPE_CHECKING

from offgrad.autograd import saved_tensor

if TYPE_CHECKING:
    from offgrad.session.scope import SessionHooks

MAX_OPS = 2
"""The most operations that compute a saved tensor again: an activation and its dropout."""


@cache
def default_hooks() -> "SessionHooks":
    """Return hooks that recompute large outputs of cheap operations, and keep all else."""
    # Imported here: `import offgrad` is quicker without.
    from offgrad.policies import Recompute
    from offgrad.session.scope import SessionHooks
    from offgrad.session.session import OffloadSession

    policy = Recompute(MAX_OPS, saved_tensor.DEFAULT_MIN_NBYTES)
    return SessionHooks(OffloadSession(policy), policy)


saved_tensor.default_hooks = default_hooks
