"""``torch.xpu`` on a library for the CPU: Intel GPUs are refused but for questions and seeds."""

from typing import Any as _Any

from offgrad import _refused
from offgrad._missing import missing as _missing

_FUNCTIONS = """
    current_device current_stream get_device_capability get_device_name get_device_properties
    get_rng_state init set_device set_rng_state synchronize
"""

globals().update(
    _refused.functions("offgrad.xpu", _FUNCTIONS, "offgrad runs on the CPU only", AssertionError)
)


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


def is_initialized() -> bool:
    """Return False."""
    return False


def is_bf16_supported() -> bool:
    """Return False."""
    return False


def manual_seed_all(seed: int) -> None:
    """Do nothing: there is no generator of a device."""


def empty_cache() -> None:
    """Do nothing: there is no memory of a device."""


def memory_allocated(device: _Any = None) -> int:
    """Return 0."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.xpu")
