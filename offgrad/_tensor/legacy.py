"""PyTorch's old constructors, one for each dtype: ``FloatTensor([1, 2])``, ``LongTensor(2, 3)``."""

from typing import Any

import numpy as np

from offgrad import ops
from offgrad._dtype import DTYPES, DType
from offgrad._tensor import type_names
from offgrad._warning import warn_program
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.device import CPU, is_meta
from offgrad.ops._core.dims import is_integer
from offgrad.ops._core.factories import made_on_meta


def legacy_tensor(data: tuple[Any, ...], dtype: np.dtype[Any], where: str) -> Any:
    """Return the tensor that PyTorch's old constructors make.

    Args:
        data: nothing; sizes, one by one or as a `Size`, for an uninitialised tensor; a tensor,
            whose memory the result shares; a sequence or an array, which is converted.
        dtype: of the result.
        where: the constructor, for messages.

    Raises:
        TypeError: for other arguments, and for a tensor of another dtype.
    """
    if not data:
        return ops.empty(0, dtype=dtype)
    first = data[0]
    if all(is_integer(each) and not isinstance(each, TensorBase) for each in data):
        return ops.empty(*data, dtype=dtype)
    if len(data) > 1:
        raise TypeError(f"{where} takes sizes, or one sequence, array or tensor, got {data!r}")
    if type(first).__name__ == "Size":
        return ops.empty(first, dtype=dtype)
    if isinstance(first, TensorBase):
        if where != "Tensor" and first._array.dtype != dtype:
            raise TypeError(
                f"{where} takes a tensor of {dtype.name}, got a {describe(first)}; convert it with "
                ".to()"
            )
        return wrap(first._array, first._storage)
    if isinstance(first, (bool, int, float, complex, str)) or not hasattr(first, "__len__"):
        raise TypeError(f"{where}: data must be a sequence (got {type(first).__name__})")
    if dtype.kind in "iu":
        numbers = ops.tensor(first)._array
        return ops.tensor(numbers.astype(dtype) if numbers.size else numbers, dtype=dtype)
    return ops.tensor(first, dtype=dtype)


class tensortype(type):
    """The class of the old constructors: `isinstance` asks for a tensor of the dtype."""

    dtype: DType
    is_cuda = is_sparse = False

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, TensorBase) and cls.dtype == instance._array.dtype


def _constructor(name: str, dtype: DType) -> Any:
    def make(cls: Any, *data: Any, device: Any = None) -> Any:
        if is_meta("cpu" if device is None else device):
            return made_on_meta(legacy_tensor, data, dtype.dtype, name)
        with CPU:
            return legacy_tensor(data, dtype.dtype, name)

    doc = f"Make a tensor of {dtype} of sizes, a sequence, an array or a tensor."
    body = {"__new__": make, "dtype": dtype, "__module__": "torch", "__doc__": doc}
    return tensortype(name, (), body)


TYPES: dict[str, Any] = {
    name: _constructor(name, DTYPES[dtype])
    for dtype, name in type_names.NAMES.items()
    if not name.startswith(("UInt", "Float8"))  # which PyTorch has no constructors of
}
"""The constructors by name."""


def set_default_tensor_type(t: Any, /) -> None:
    """Make the dtype of a floating point type, or of its name, the default dtype.

    Raises:
        TypeError: for types of integers.
    """
    warn_program(
        "torch.set_default_tensor_type() is deprecated; use set_default_dtype() and "
        "set_default_device()"
    )
    ops.set_default_dtype(type_names.dtype_named(t))
