"""``torch.signal``: windows."""

from offgrad._missing import missing as _missing
from offgrad.signal import windows

__all__ = ["windows"]

__getattr__ = _missing("offgrad.signal")
