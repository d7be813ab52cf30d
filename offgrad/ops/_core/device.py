"""Devices, as PyTorch code names them. There is one: the CPU."""

from dataclasses import dataclass
from typing import Any

from offgrad.autograd.tensor_base import TensorBase

__all__ = ["Device", "conversion"]

_PYTORCH_DEVICES = ("cpu", "cuda", "mps", "xpu", "meta")


@dataclass(frozen=True)
class Device:
    """A device: ``Device("cpu")`` is the only one.

    Raises:
        RuntimeError: for another device.
    """

    type: str

    def __post_init__(self) -> None:
        kind, _, index = self.type.partition(":")
        if kind != "cpu" or index not in ("", "0"):
            raise RuntimeError(f"there is only the device 'cpu', got {self.type!r}")
        object.__setattr__(self, "type", kind)

    def __str__(self) -> str:
        return self.type


def check_device(device: Any) -> None:
    """Raise unless `device` is None or the CPU."""
    if device is not None and not isinstance(device, Device):
        Device(str(device))


def conversion(target: tuple[Any, ...], device: Any, dtype: Any) -> Any:
    """Return the dtype that the arguments of ``to()`` ask for, None to keep the tensor's.

    Args:
        target: positional arguments: a device, a dtype, both, or a tensor.
        device: the keyword argument, checked.
        dtype: the keyword argument.
    """
    check_device(device)
    for each in target:
        if isinstance(each, TensorBase):
            dtype = each._array.dtype
        elif isinstance(each, Device) or (
            isinstance(each, str) and each.partition(":")[0] in _PYTORCH_DEVICES
        ):
            check_device(each)
        elif not isinstance(each, bool):  # non_blocking
            dtype = each
    return dtype
