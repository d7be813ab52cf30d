"""`save` and `load`: checkpoints in PyTorch's format, which either library reads.

By default `load` makes tensors, containers, numbers and text only, so that no file can run code.
"""

from offgrad._checkpoint.api import (
    add_safe_globals,
    clear_safe_globals,
    get_crc32_options,
    get_safe_globals,
    get_unsafe_globals_in_checkpoint,
    load,
    safe_globals,
    save,
    set_crc32_options,
)
from offgrad._missing import missing as _missing

__all__ = [
    "add_safe_globals",
    "clear_safe_globals",
    "get_crc32_options",
    "get_safe_globals",
    "get_unsafe_globals_in_checkpoint",
    "load",
    "safe_globals",
    "save",
    "set_crc32_options",
]

__getattr__ = _missing("offgrad.serialization")
