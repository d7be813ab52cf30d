"""Where memory goes while a model trains."""

from offgrad.profiler.profile import (
    MemoryProfile,
    Phase,
    Timeline,
    profile_memory,
)

__all__ = ["MemoryProfile", "Phase", "Timeline", "profile_memory"]
