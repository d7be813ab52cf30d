"""Functions about dtypes for users: the default, promotion and limits of numbers."""

from typing import Any

import ml_dtypes
import numpy as np

from offgrad._dtype import DType, dtype_of
from offgrad.ops._core import dtypes

__all__ = [
    "can_cast",
    "finfo",
    "get_default_dtype",
    "iinfo",
    "promote_types",
    "result_type",
    "set_default_dtype",
]


def get_default_dtype() -> DType:
    """Return the dtype of tensors made from Python floats."""
    return dtype_of(dtypes.default_dtype())


def set_default_dtype(d: Any, /) -> None:
    """Set the dtype of tensors made from Python floats.

    Raises:
        TypeError: if `d` is not a floating point type.
    """
    dtypes.change_default_dtype(np.dtype(d))


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """Return the dtype to which PyTorch promotes two tensors or numbers.

    Tensors with dimensions decide. A tensor without dimensions, or a number, changes the dtype only
    if its category (bool, integer, floating point, complex) is higher.
    """
    return dtype_of(dtypes.common_dtype(tensor1, tensor2))


def promote_types(type1: Any, type2: Any) -> DType:
    """Return the smallest dtype that holds the numbers of both, as PyTorch chooses it.

    Raises:
        RuntimeError: for uint16, uint32 and uint64 with integers of another type.
    """
    return dtype_of(dtypes.promote_dtypes(np.dtype(type1), np.dtype(type2)))


def can_cast(from_: Any, to: Any) -> bool:
    """Return whether an operation may store results of dtype `from_` in a tensor of dtype `to`."""
    return dtypes.category(np.dtype(from_)) <= dtypes.category(np.dtype(to))


class finfo:
    """Limits of a floating point dtype; of a complex dtype, those of its parts.

    Raises:
        TypeError: for other dtypes.
    """

    bits: int
    eps: float
    max: float
    min: float
    tiny: float
    smallest_normal: float
    resolution: float
    dtype: str

    def __init__(self, type: Any = None) -> None:
        kind = dtypes.default_dtype() if type is None else np.dtype(type)
        if dtypes.category(kind) < 2:
            raise TypeError(f"finfo takes a floating point dtype, got {kind.name}; use iinfo")
        limits: Any = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
        self.bits, self.dtype = int(limits.bits), str(limits.dtype)
        self.eps, self.max, self.min = float(limits.eps), float(limits.max), float(limits.min)
        self.tiny = self.smallest_normal = float(limits.smallest_normal)
        self.resolution = 10.0**-limits.precision if self.bits > 8 else 1.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, finfo) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        numbers = ", ".join(f"{name}={getattr(self, name):g}" for name in names)
        return f"finfo({numbers}, dtype={self.dtype})"


class iinfo:
    """Limits of an integer dtype.

    Raises:
        TypeError: for other dtypes.
    """

    bits: int
    max: int
    min: int
    dtype: str

    def __init__(self, type: Any) -> None:
        kind = np.dtype(type)
        if dtypes.category(kind) != 1:
            raise TypeError(f"iinfo takes an integer dtype, got {kind.name}")
        limits = np.iinfo(kind)
        self.bits, self.max, self.min = int(limits.bits), int(limits.max), int(limits.min)
        self.dtype = kind.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, iinfo) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"
