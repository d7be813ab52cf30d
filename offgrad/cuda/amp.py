"""The old names of ``offgrad.amp``; without CUDA, they warn and do nothing."""

import functools as _functools
import warnings as _warnings
from typing import Any as _Any

from offgrad import amp as _amp
from offgrad._missing import missing as _missing

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(_amp.autocast):
    """`offgrad.amp.autocast` for ``"cuda"``: disabled, with a warning."""

    def __init__(
        self, enabled: bool = True, dtype: _Any = None, cache_enabled: bool = True
    ) -> None:
        _warn_of_old_name("autocast")
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(_amp.GradScaler):
    """`offgrad.amp.GradScaler` for ``"cuda"``: disabled, with a warning."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        _warn_of_old_name("GradScaler")
        super().__init__(
            "cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


def _warn_of_old_name(name: str) -> None:
    _warnings.warn(
        f"`torch.cuda.amp.{name}(args...)` is deprecated. "
        f"Please use `torch.amp.{name}('cuda', args...)` instead.",
        FutureWarning,
        stacklevel=3,
    )


custom_fwd = _functools.partial(_amp.custom_fwd, device_type="cuda")
custom_bwd = _functools.partial(_amp.custom_bwd, device_type="cuda")

__getattr__ = _missing("offgrad.cuda.amp")
