"""Automatic mixed precision: `autocast` and `GradScaler`.

Internal: the modules in this folder.
"""

from offgrad._missing import missing as _missing
from offgrad.amp.autocast_mode import custom_bwd, custom_fwd, is_autocast_available
from offgrad.amp.grad_scaler import GradScaler
from offgrad.ops._core.autocast import autocast

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]

__getattr__ = _missing("offgrad.amp")
