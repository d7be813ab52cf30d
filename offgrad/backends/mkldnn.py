"""``torch.backends.mkldnn`` (oneDNN): not used; its flags are kept, and have no effect."""

from contextlib import AbstractContextManager as _Context

from offgrad._missing import missing as _missing
from offgrad.backends._flags import flags_of as _flags_of

enabled = True
deterministic = False
allow_tf32 = True
fp32_precision = "none"


def is_available() -> bool:
    """Return False."""
    return False


def flags(
    enabled: bool = False,
    deterministic: bool = False,
    allow_tf32: bool = True,
    fp32_precision: str = "none",
) -> _Context[None]:
    """Set the flags for a block."""
    return _flags_of(__name__, locals().copy())


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.backends.mkldnn")
