"""What the names in a checkpoint's pickle stand for."""

import importlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

STORAGE_TYPES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
"""Names of storages that hold elements of one dtype."""

_DTYPES = {
    name: np.dtype(name)
    for name in [*STORAGE_TYPES.values(), "uint16", "uint32", "uint64"]
} | {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(ml_dtypes, name)
}  # fmt: skip


def offgrad_module() -> Any:
    """Return the package, which imports this module."""
    return importlib.import_module("offgrad")


def dtype_names() -> dict[int, str]:
    """Return the names of the dtypes that the package has, by the identity of the objects."""
    package = offgrad_module()
    found = {name: vars(package).get(name) for name in _DTYPES}
    return {id(dtype): name for name, dtype in found.items() if dtype is not None}


class StorageType(NamedTuple):
    """The class of a storage in a file: the dtype of its elements; None for plain bytes."""

    dtype: np.dtype[Any] | None


def plain_globals() -> dict[str, Any]:
    """Return what files may refer to, by full name, but for functions that rebuild tensors."""
    package = offgrad_module()
    found: dict[str, Any] = {
        "collections.OrderedDict": OrderedDict,
        "collections.Counter": Counter,
        "builtins.complex": complex,
        "builtins.set": set,
        "builtins.bytearray": bytearray,
        "_codecs.encode": _encode,
        "torch.Size": getattr(package, "Size", tuple),
        "torch.device": package.device,
        "torch.Tensor": package.Tensor,
        "torch.nn.parameter.Parameter": package.nn.Parameter,
        "torch.storage.UntypedStorage": StorageType(None),
    }
    for name, dtype in STORAGE_TYPES.items():
        for prefix in ("torch.", "torch.cuda."):
            found[prefix + name] = StorageType(_DTYPES[dtype])
    for name, numpy_dtype in _DTYPES.items():
        found[f"torch.{name}"] = vars(package).get(name, numpy_dtype)
    return found


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Return the bytes that protocol 2 stores as text."""
    return text.encode(encoding)


Rebuild = Callable[..., Any]
