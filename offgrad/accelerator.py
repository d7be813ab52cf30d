"""``torch.accelerator``: there is none, and what needs one is refused."""

from offgrad import _refused
from offgrad._missing import missing as _missing

_FUNCTIONS = """
    current_device_idx current_device_index current_stream empty_cache get_memory_info
    max_memory_allocated memory_allocated memory_stats reset_peak_memory_stats
    set_device_idx set_device_index set_stream synchronize
"""

globals().update(
    _refused.functions(
        "offgrad.accelerator",
        _FUNCTIONS,
        "no accelerator is available: offgrad runs on the CPU",
    )
)


def is_available() -> bool:
    """Return False."""
    return False


def device_count() -> int:
    """Return 0."""
    return 0


def current_accelerator(check_available: bool = False) -> None:
    """Return None."""


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.accelerator")
