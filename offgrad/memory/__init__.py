"""Tensor memory: its allocator, its counters and its limit.

Internal are the modules below: import the names in `__all__` from this package.
"""

from offgrad.memory.allocator import (
    POOL_THRESHOLD,
    OutOfMemoryError,
    allocated,
    contiguous,
    copy,
    empty,
    fits,
    limit,
    max_allocated,
    observe,
    pool,
    register_reclaimable,
    reset_peak,
    zeros,
)
from offgrad.memory.storage import Storage, memory_by_holder, saved_by_module, track_saver
from offgrad.memory.units import format_nbytes, parse_nbytes

__all__ = [
    "OutOfMemoryError",
    "POOL_THRESHOLD",
    "Storage",
    "allocated",
    "contiguous",
    "copy",
    "empty",
    "fits",
    "format_nbytes",
    "limit",
    "max_allocated",
    "memory_by_holder",
    "observe",
    "parse_nbytes",
    "pool",
    "register_reclaimable",
    "reset_peak",
    "saved_by_module",
    "track_saver",
    "zeros",
]
