"""``torch._C``: the few of its names that programs use."""

from offgrad import Generator as Generator
from offgrad._size import Size as Size
from offgrad._tensor.storages import UntypedStorage as StorageBase
from offgrad.autograd.override_state import DisableTorchFunction as DisableTorchFunction
from offgrad.autograd.override_state import (
    DisableTorchFunctionSubclass as DisableTorchFunctionSubclass,
)
from offgrad.autograd.override_state import (
    disabled_torch_function as _disabled_torch_function_impl,
)
from offgrad.autograd.tensor_base import TensorBase as TensorBase

_TensorBase = TensorBase


def _log_api_usage_once(event: str) -> None:
    """Do nothing: nothing is logged."""


__all__ = [
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "Generator",
    "Size",
    "StorageBase",
    "TensorBase",
    "_TensorBase",
    "_disabled_torch_function_impl",
    "_log_api_usage_once",
]
