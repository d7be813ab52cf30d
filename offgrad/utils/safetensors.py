"""Safetensors files, as ``safetensors.torch`` and ``safetensors.safe_open`` have them."""

from offgrad._missing import missing as _missing
from offgrad.utils._safetensors import (
    load,
    load_file,
    load_model,
    safe_open,
    save,
    save_file,
    save_model,
)

__all__ = [
    "load",
    "load_file",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_model",
]

__getattr__ = _missing("offgrad.utils.safetensors")
