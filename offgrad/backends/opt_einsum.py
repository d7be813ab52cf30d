"""``torch.backends.opt_einsum``: not used; its flags are kept, and have no effect."""

from offgrad._missing import missing as _missing

enabled = False
strategy: str | None = None


def is_available() -> bool:
    """Return False."""
    return False


def get_opt_einsum() -> None:
    """Return None."""


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.backends.opt_einsum")
