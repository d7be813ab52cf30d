"""``torch.utils.dlpack``: tensors shared with other libraries without a copy."""

import enum as _enum
from typing import Any as _Any

from offgrad._missing import missing as _missing
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.ops import from_dlpack

__all__ = ["DLDeviceType", "from_dlpack", "to_dlpack"]


class DLDeviceType(_enum.IntEnum):
    """The kinds of devices that DLPack numbers."""

    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLOpenCL = 4
    kDLVulkan = 7
    kDLMetal = 8
    kDLROCM = 10
    kDLExtDev = 12
    kDLOneAPI = 14


def to_dlpack(tensor: _Tensor, /) -> _Any:
    """Return a capsule of the memory of a tensor, which one call of `from_dlpack` takes.

    Raises:
        BufferError: if the tensor requires grad.
    """
    return tensor.__dlpack__()


__getattr__ = _missing("offgrad.utils.dlpack")
