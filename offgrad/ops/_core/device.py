"""Devices, as PyTorch code names them. Tensors are on one: the CPU."""

import re
import threading
from typing import Any

import numpy as np

from offgrad.autograd.tensor_base import TensorBase
from offgrad.memory.meta import MetaArray

__all__ = ["conversion", "device"]

_NAMES = [
    "cpu",
    "cuda",
    "fpga",
    "hip",
    "hpu",
    "ideep",
    "ipu",
    "lazy",
    "maia",
    "meta",
    "mkldnn",
    "mps",
    "mtia",
    "opencl",
    "opengl",
    "privateuseone",
    "ve",
    "vulkan",
    "xla",
    "xpu",
]


class Device:
    """A device by name, and perhaps index: ``device("cpu")``, ``device("cuda:0")``.

    Tensors are on the CPU, or on "meta": shapes and dtypes without memory. Other devices have names
    only, so that programs can ask for them; a tensor there is refused. As a context manager it is
    the device of tensors made without another.

    Raises:
        RuntimeError: for a name that PyTorch does not know, or an index alone.
    """

    __slots__ = ("index", "type")

    type: str
    index: int | None

    def __init__(self, type: Any, index: int | None = None) -> None:
        if isinstance(type, Device):
            type, index = type.type, type.index
        if isinstance(type, int):
            raise RuntimeError(
                f"device {type} is an accelerator's, and none is available; use device('cpu')"
            )
        if not isinstance(type, str):
            raise TypeError(f"a device is named by a string, got {type!r}")
        name, colon, number = type.partition(":")
        if name not in _NAMES:
            raise RuntimeError(f"expected one of {', '.join(_NAMES)} as a device, got {type!r}")
        if colon and (index is not None or not re.fullmatch("0|[1-9][0-9]*", number)):
            raise RuntimeError(f"a device is a name, or a name and an index: 'cpu:0', got {type!r}")
        if index is not None and index < 0:
            raise RuntimeError(f"the index of a device must not be negative, got {index}")
        _set(self, "type", name)
        _set(self, "index", int(number) if colon else index)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a device does not change: {name} cannot be set")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return False
        return (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __reduce__(self) -> Any:
        return Device, (str(self),)

    def __enter__(self) -> "Device":
        is_meta(self)
        defaults.entered = (*defaults.entered, self)
        _update()
        return self

    def __exit__(self, *_: object) -> None:
        defaults.entered = defaults.entered[:-1]
        _update()


Device.__module__, Device.__name__, Device.__qualname__ = "offgrad", "device", "device"
device = Device
_set = object.__setattr__
CPU = Device("cpu")
META = Device("meta")


class _Defaults(threading.local):
    """The devices of this thread for tensors made without one.

    Attributes:
        entered: by ``with device:``, the innermost last.
        device: set by `set_default_device`.
    """

    entered: tuple[Device, ...] = ()
    device: Device = CPU


defaults = _Defaults()
_on_meta: set[int] = set()
"""The identifiers of threads whose default is the meta device: almost always none."""


def set_default(target: Any) -> None:
    """Make `target` the device of tensors made without one, in this thread."""
    is_meta(target)
    defaults.device = CPU if target is None else Device(target)
    _update()


def default() -> Device:
    """Return the device of tensors made without one."""
    return defaults.entered[-1] if defaults.entered else defaults.device


def _update() -> None:
    change = _on_meta.add if default().type == "meta" else _on_meta.discard
    change(threading.get_ident())


def is_meta(target: Any) -> bool:
    """Return whether `target`, None for the default, is the meta device.

    Raises:
        AssertionError, RuntimeError, TypeError: as `check_device`, for other devices than the CPU.
    """
    if target is None:
        return bool(_on_meta) and threading.get_ident() in _on_meta
    if target is CPU or target == "cpu":
        return False
    named = target if isinstance(target, Device) else Device(target)
    if named.type == "meta":
        return True
    check_device(named)
    return False


def check_device(target: Any) -> None:
    """Raise unless `target` is None or the CPU.

    Raises:
        AssertionError: for "cuda" and "xpu", as PyTorch without them.
        RuntimeError: for other devices.
        TypeError: for what is no device.
    """
    if target is None or target is CPU or target == "cpu":
        return
    named = target if isinstance(target, Device) else Device(target)
    if named.type == "cpu":
        return
    if named.type in ("cuda", "xpu"):
        raise AssertionError(
            f"device {str(named)!r} is not there, tensors are on the CPU: Torch not compiled with "
            f"{named.type.upper()} enabled"
        )
    raise RuntimeError(
        f"device {str(named)!r} is not there, tensors are on the CPU: not linked with support for "
        f"{named.type} devices"
    )


def _is_dtype(name: str) -> bool:
    try:
        np.dtype(name)
    except TypeError:
        return False
    return True


def conversion(target: tuple[Any, ...], where: Any, dtype: Any) -> "tuple[Any, bool | None]":
    """Return what the arguments of ``to()`` ask for: the dtype, and whether on the meta device.

    Each is None to keep the tensor's.

    Args:
        target: positional arguments: a device, a dtype, both, or a tensor.
        where: the keyword argument ``device``.
        dtype: the keyword argument.
    """
    meta = None if where is None else is_meta(where)
    for each in target:
        if isinstance(each, TensorBase):
            dtype, meta = each._array.dtype, type(each._array) is MetaArray
        elif isinstance(each, bool):  # non_blocking
            pass
        elif isinstance(each, (Device, int)) or (
            isinstance(each, str) and each.partition(":")[0] in _NAMES
        ):
            meta = is_meta(each)
        elif isinstance(each, str) and not _is_dtype(each):
            Device(each)  # raises
        elif each is not None:
            dtype = each
    return dtype, meta
