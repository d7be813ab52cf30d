"""The types of elements as objects, named and printed as PyTorch's.

The library computes with NumPy's dtypes (``x._array.dtype``); tensors show these objects to users.
``d.dtype`` and ``np.dtype(d)`` give NumPy's dtype, `dtype_of` the object of NumPy's.
"""

from typing import Any, Final, NoReturn

import ml_dtypes
import numpy as np

from offgrad._missing import no_attribute


class DType:
    """The type of the elements of a tensor, as `offgrad.float32`; there is one object of each.

    It equals NumPy's dtype and scalar type of the same name, in both directions, and hashes as
    NumPy's dtype.
    """

    __slots__ = ("_name", "dtype", "is_complex", "is_floating_point", "is_signed", "itemsize")

    dtype: np.dtype[Any]
    """NumPy's dtype, by which NumPy takes the object where it takes a dtype."""
    is_floating_point: bool
    is_complex: bool
    is_signed: bool
    itemsize: int
    _name: str

    def __new__(cls, *args: Any) -> "DType":
        """Refuse: the objects are made with the module."""
        raise TypeError("cannot create 'dtype' instances; the dtypes are offgrad.float32 and so on")

    def __init_subclass__(cls) -> NoReturn:
        """Refuse: code compares dtypes by identity."""
        raise TypeError("type 'dtype' is not an acceptable base type")

    def to_real(self) -> "DType":
        """Return the dtype of the parts of a complex dtype, else the dtype itself."""
        return _REAL.get(self._name, self)

    def to_complex(self) -> "DType":
        """Return the complex dtype whose parts have this dtype.

        Raises:
            RuntimeError: for integers and bools; for float16, for which NumPy has none.
        """
        if self.is_complex:
            return self
        if self._name not in _COMPLEX:
            raise RuntimeError(f"there is no complex dtype with parts of {self}")
        return _COMPLEX[self._name]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, np.dtype):
            return bool(self.dtype == other)
        if isinstance(other, type) and issubclass(other, np.generic):
            return bool(self.dtype.type is other)
        return False

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"torch.{self._name}"

    def __reduce__(self) -> str:
        return self._name

    def __getattr__(self, name: str) -> NoReturn:
        raise no_attribute("a dtype", name)


DType.__module__, DType.__name__, DType.__qualname__ = "offgrad", "dtype", "dtype"
dtype = DType


def _make(name: str, scalar: type) -> DType:
    made = object.__new__(DType)
    made._name, made.dtype, made.itemsize = name, np.dtype(scalar), np.dtype(scalar).itemsize
    made.is_complex = made.dtype.kind == "c"
    made.is_floating_point = made.dtype.kind in "fV"
    made.is_signed = made.dtype.kind not in "bu" and name != "float8_e8m0fnu"
    return made


float16 = half = _make("float16", np.float16)
bfloat16 = _make("bfloat16", ml_dtypes.bfloat16)
float32 = _make("float32", np.float32)
float64 = double = _make("float64", np.float64)
complex64 = cfloat = _make("complex64", np.complex64)
complex128 = cdouble = _make("complex128", np.complex128)
uint8 = _make("uint8", np.uint8)
uint16 = _make("uint16", np.uint16)
uint32 = _make("uint32", np.uint32)
uint64 = _make("uint64", np.uint64)
int8 = _make("int8", np.int8)
int16 = short = _make("int16", np.int16)
int32 = _make("int32", np.int32)
int64 = long = _make("int64", np.int64)
bool_ = _make("bool", np.bool_)
# For storage: operations are those that ml_dtypes has.
float8_e4m3fn = _make("float8_e4m3fn", ml_dtypes.float8_e4m3fn)
float8_e4m3fnuz = _make("float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz)
float8_e5m2 = _make("float8_e5m2", ml_dtypes.float8_e5m2)
float8_e5m2fnuz = _make("float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz)
float8_e8m0fnu = _make("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu)

_COMPLEX = {"bfloat16": complex64, "float32": complex64, "float64": complex128}
_REAL = {"complex64": float32, "complex128": float64}

DTYPES: Final[dict[np.dtype[Any], DType]] = {
    each.dtype: each
    for each in (
        *(float16, bfloat16, float32, float64, complex64, complex128),
        *(uint8, uint16, uint32, uint64, int8, int16, int32, int64, bool_),
        *(float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu),
    )
}
"""The object of each of NumPy's dtypes that tensors have."""


_TYPES = {
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "uint8": "Byte",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
}


def type_name(numpy_dtype: np.dtype[Any]) -> str:
    """Return PyTorch's name of NumPy's dtype in names of types and in errors, such as Float."""
    return _TYPES.get(numpy_dtype.name, numpy_dtype.name.capitalize())


def dtype_of(numpy_dtype: np.dtype[Any]) -> DType:
    """Return the object of NumPy's dtype."""
    return DTYPES[numpy_dtype]
