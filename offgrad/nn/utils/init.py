"""Construction of modules whose parameters will be overwritten."""

import inspect
from typing import Any

from offgrad.nn.modules.module import Module

__all__ = ["skip_init"]


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Return ``module_cls(*args, **kwargs)`` with uninitialised parameters and buffers.

    Args:
        module_cls: a subclass of `Module` that takes `device`.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    if not issubclass(module_cls, Module):
        raise RuntimeError(f"Expected a Module; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError(
            f"skip_init needs a module with a device argument, got {module_cls.__name__}"
        )
    device = kwargs.pop("device", "cpu")
    return module_cls(*args, **kwargs, device="meta").to_empty(device=device)
