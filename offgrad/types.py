"""``torch.types``: names for annotations."""

import builtins as _builtins
import os as _os
from collections.abc import Sequence as _Sequence
from typing import IO as _IO
from typing import TypeAlias as _TypeAlias

from offgrad._dtype import DType as _DType
from offgrad._layout import layout as _Layout
from offgrad._missing import missing as _missing
from offgrad._tensor.tensor import Tensor
from offgrad.ops._core.device import Device as _Device

__all__ = ["Device", "FileLike", "Number", "Tensor"]

Device: _TypeAlias = _Device | str | int | None
FileLike: _TypeAlias = str | _os.PathLike[str] | _IO[bytes]
Number: _TypeAlias = int | float | bool
_TensorOrTensors: _TypeAlias = Tensor | _Sequence[Tensor]
_size: _TypeAlias = _Sequence[int]
_device, _dtype, _layout = _Device, _DType, _Layout
_int, _float, _bool, _complex = _builtins.int, _builtins.float, _builtins.bool, complex

__getattr__ = _missing("offgrad.types")
