"""``torch.backends.mps``: not available."""

from offgrad._missing import missing as _missing


def is_available() -> bool:
    """Return False."""
    return False


def is_built() -> bool:
    """Return False."""
    return False


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.backends.mps")
