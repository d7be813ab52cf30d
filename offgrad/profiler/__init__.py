"""Tensor memory over time while a model trains.

Internal: the modules in this folder.
"""

from offgrad.autograd.profiler import record_function
from offgrad.profiler.html import report
from offgrad.profiler.memory_profile import (
    MemoryProfile,
    Phase,
    Timeline,
    profile_memory,
)
from offgrad.profiler.profiles import Profile, profile
from offgrad.profiler.schedules import (
    ProfilerAction,
    ProfilerActivity,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)

__all__ = [
    "MemoryProfile",
    "Phase",
    "Profile",
    "ProfilerAction",
    "ProfilerActivity",
    "Timeline",
    "profile",
    "profile_memory",
    "record_function",
    "report",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]
