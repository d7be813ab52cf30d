"""The names of the types of tensors: ``torch.FloatTensor`` and so on."""

from typing import Any

import numpy as np

from offgrad._dtype import DTYPES, DType, type_name
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops._core.dtypes import default_dtype

NAMES: dict[np.dtype[Any], str] = {each: type_name(each) + "Tensor" for each in DTYPES}
"""The name of the type for each of NumPy's dtypes."""

_BY_NAME = {f"torch.{name}": dtype for dtype, name in NAMES.items()}


def dtype_named(kind: Any) -> np.dtype[Any]:
    """Return NumPy's dtype for a dtype, the name of a type, or a type with a ``dtype``.

    Raises:
        ValueError: for all else.
        RuntimeError: for types on other devices.
    """
    if isinstance(kind, DType):
        return kind.dtype
    if isinstance(kind, np.dtype):
        return kind
    if kind is TensorBase.tensor_class:
        return default_dtype()
    given = getattr(kind, "dtype", None)
    if isinstance(given, DType):
        return given.dtype
    if kind in _BY_NAME:
        return _BY_NAME[kind]
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        raise RuntimeError(f"tensors are on the CPU, so there is no {kind}: use torch.FloatTensor")
    raise ValueError(f"invalid type: {kind!r}; it is a dtype or a name such as 'torch.FloatTensor'")
