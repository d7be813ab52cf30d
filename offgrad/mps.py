"""``torch.mps`` on a library for the CPU: Apple GPUs are refused but for questions and seeds."""

from offgrad import _refused
from offgrad._missing import missing as _missing

_FUNCTIONS = """
    current_allocated_memory driver_allocated_memory get_rng_state recommended_max_memory
    set_per_process_memory_fraction set_rng_state synchronize
"""

globals().update(_refused.functions("offgrad.mps", _FUNCTIONS, "offgrad runs on the CPU only"))


def is_available() -> bool:
    """Return False."""
    return False


def device_count() -> int:
    """Return 0."""
    return 0


def manual_seed(seed: int) -> None:
    """Do nothing: there is no generator of a device."""


def seed() -> None:
    """Do nothing: there is no generator of a device."""


def empty_cache() -> None:
    """Do nothing: there is no memory of a device."""


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.mps")
