"""``torch.multiprocessing``: Python's multiprocessing, and `spawn`.

Tensors in queues and pipes are copied. Forked processes share the memory of a tensor after its
``share_memory_()``.
"""

import multiprocessing as _multiprocessing
from multiprocessing import *  # noqa: F403

from offgrad._missing import missing as _missing
from offgrad.multiprocessing._spawn import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnContext,
    spawn,
    start_processes,
)

_STRATEGIES = {"file_descriptor", "file_system"}
_strategy = "file_descriptor"


def get_all_sharing_strategies() -> set[str]:
    """Return the names that `set_sharing_strategy` takes."""
    return set(_STRATEGIES)


def get_sharing_strategy() -> str:
    """Return what `set_sharing_strategy` has set."""
    return _strategy


def set_sharing_strategy(new_strategy: str) -> None:
    """Accept a strategy: batches of workers need neither files nor names.

    Raises:
        AssertionError: for an unknown one.
    """
    global _strategy
    if new_strategy not in _STRATEGIES:
        raise AssertionError(f"the strategies are {sorted(_STRATEGIES)}, got {new_strategy!r}")
    _strategy = new_strategy


__all__ = [
    "ProcessContext",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "set_sharing_strategy",
    "spawn",
    "start_processes",
]
__all__ += _multiprocessing.__all__

__getattr__ = _missing("offgrad.multiprocessing")
