"""Tensor memory: its allocator, its counters and its limit.

Internal are the modules below: import the names in `__all__` from this package.
"""

from offgrad.memory.allocator import (
    POOL_THRESHOLD,
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
from offgrad.memory.holders import memory_by_holder, saved_by_module
from offgrad.memory.limited_counter import OutOfMemoryError
from offgrad.memory.paged_storage import (
    PagedStorage,
    announce_uses,
    turn_paged,
    turn_resident,
)
from offgrad.memory.storage import PendingCopy, Storage, track_saver
from offgrad.memory.units import format_nbytes, parse_nbytes

__all__ = [
    "OutOfMemoryError",
    "POOL_THRESHOLD",
    "PagedStorage",
    "PendingCopy",
    "Storage",
    "allocated",
    "announce_uses",
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
    "turn_paged",
    "turn_resident",
    "zeros",
]
