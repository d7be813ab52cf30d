"""Memory of tensors: where it comes from, how much there is, and how much there may be."""

from offgrad.memory.allocator import (
    POOL_THRESHOLD,
    OutOfMemoryError,
    allocated,
    contiguous,
    copy,
    empty,
    limit,
    max_allocated,
    observe,
    on_pressure,
    pool,
    reset_peak,
    zeros,
)
from offgrad.memory.storage import Storage, holders, remember_saver
from offgrad.memory.units import format_nbytes, parse_nbytes

__all__ = [
    "POOL_THRESHOLD",
    "OutOfMemoryError",
    "Storage",
    "allocated",
    "contiguous",
    "copy",
    "empty",
    "format_nbytes",
    "holders",
    "limit",
    "max_allocated",
    "observe",
    "on_pressure",
    "parse_nbytes",
    "pool",
    "remember_saver",
    "reset_peak",
    "zeros",
]
