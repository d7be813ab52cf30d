"""Autograd functions of users under `autocast`."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops._core.autocast import (
    autocast,
    get_autocast_dtype,
    is_autocast_enabled,
)
from offgrad.ops._core.device import Device

__all__ = ["autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]


def is_autocast_available(device_type: str) -> bool:
    """Return whether `autocast` works on a device: on the CPU.

    Raises:
        RuntimeError: for an unknown device.
    """
    return Device(device_type).type == "cpu"


def custom_fwd(
    fwd: Callable[..., Any] | None = None,
    *,
    device_type: str,
    cast_inputs: Any = None,
) -> Callable[..., Any]:
    """Decorate ``forward`` of an autograd function that is used under `autocast`.

    Args:
        fwd: the method; without it, the result is a decorator.
        device_type: of the `autocast`.
        cast_inputs: a dtype to which floating-point tensors are converted under `autocast`, which
            is then off inside; by default they stay, and it stays on.

    Raises:
        ValueError: if `device_type` is no text.
    """
    _check_text(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def forward(*args: Any, **kwargs: Any) -> Any:
        context = args[0]
        is_enabled = is_autocast_enabled(device_type)
        context._dtype = get_autocast_dtype(device_type)
        context._fwd_used_autocast = is_enabled and cast_inputs is None
        if cast_inputs is None or not is_enabled:
            return fwd(*args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(*_converted(args, cast_inputs), **_converted(kwargs, cast_inputs))

    return forward


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Callable[..., Any]:
    """Decorate ``backward`` of a function whose ``forward`` has `custom_fwd`: it runs likewise.

    Raises:
        ValueError: if `device_type` is no text.
    """
    _check_text(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(*args: Any, **kwargs: Any) -> Any:
        context = args[0]
        with autocast(device_type, dtype=context._dtype, enabled=context._fwd_used_autocast):
            return bwd(*args, **kwargs)

    return backward


def _check_text(device_type: Any) -> None:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")


def _converted(value: Any, dtype: Any) -> Any:
    """Return a value with the floating-point tensors in it, but float64, converted."""
    if isinstance(value, TensorBase):
        tensor: Any = value
        is_converted = tensor.is_floating_point() and tensor._array.dtype != np.float64
        return tensor.to(dtype) if is_converted else tensor
    if isinstance(value, Mapping):
        return {name: _converted(each, dtype) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_converted(each, dtype) for each in value])
    return value
