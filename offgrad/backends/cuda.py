"""``torch.backends.cuda``: not built; its flags are kept, and have no effect."""

import contextlib as _contextlib
from collections.abc import Iterator as _Iterator
from types import SimpleNamespace as _Namespace
from typing import Any as _Any

from offgrad._missing import missing as _missing

matmul = _Namespace(
    allow_tf32=False,
    allow_fp16_reduced_precision_reduction=True,
    allow_bf16_reduced_precision_reduction=True,
    allow_fp16_accumulation=False,
    fp32_precision="none",
)
cufft_plan_cache = _Namespace(size=0, max_size=0, clear=lambda: None)
_sdp = {"flash": True, "math": True, "mem_efficient": True, "cudnn": True}


def is_built() -> bool:
    """Return False."""
    return False


def flash_sdp_enabled() -> bool:
    """Return the flag."""
    return _sdp["flash"]


def math_sdp_enabled() -> bool:
    """Return the flag."""
    return _sdp["math"]


def mem_efficient_sdp_enabled() -> bool:
    """Return the flag."""
    return _sdp["mem_efficient"]


def cudnn_sdp_enabled() -> bool:
    """Return the flag."""
    return _sdp["cudnn"]


def enable_flash_sdp(enabled: bool) -> None:
    """Set the flag."""
    _sdp["flash"] = enabled


def enable_math_sdp(enabled: bool) -> None:
    """Set the flag."""
    _sdp["math"] = enabled


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Set the flag."""
    _sdp["mem_efficient"] = enabled


def enable_cudnn_sdp(enabled: bool) -> None:
    """Set the flag."""
    _sdp["cudnn"] = enabled


@_contextlib.contextmanager
def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> _Iterator[_Any]:
    """Set the flags for a block."""
    before = dict(_sdp)
    flags = enable_flash, enable_math, enable_mem_efficient, enable_cudnn
    _sdp.update(zip(("flash", "math", "mem_efficient", "cudnn"), flags, strict=True))
    try:
        yield {}
    finally:
        _sdp.update(before)


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.backends.cuda")
