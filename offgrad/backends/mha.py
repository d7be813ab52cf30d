"""``torch.backends.mha``: a flag of attention's fast path, which is kept and has no effect."""

from offgrad._missing import missing as _missing

_is_enabled = True


def get_fastpath_enabled() -> bool:
    """Return what was set; True at first."""
    return _is_enabled


def set_fastpath_enabled(value: bool) -> None:
    """Set the flag."""
    global _is_enabled
    _is_enabled = value


__all__ = ["get_fastpath_enabled", "set_fastpath_enabled"]

__getattr__ = _missing("offgrad.backends.mha")
