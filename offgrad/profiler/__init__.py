"""Tensor memory over time while a model trains.

Internal: the modules in this folder.
"""

from offgrad.autograd.profiler import record_function
from offgrad.profiler.memory_profile import (
    MemoryProfile,
    Phase,
    Timeline,
    profile_memory,
)

__all__ = ["MemoryProfile", "Phase", "Timeline", "profile_memory", "record_function"]
