"""Arrays of nested sequences of numbers, with the dtypes that PyTorch infers."""

import array as buffers
import functools
from typing import Any

import numpy as np

from offgrad._dtype import DTYPES
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.ops._core.dtypes import common_dtype, default_dtype, promote_dtypes


def check_numeric(array: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """Return `array`, which must hold numbers or bools in the machine's byte order.

    Raises:
        TypeError: for other elements.
        ValueError: for another byte order.
    """
    if array.dtype not in DTYPES and array.dtype.isnative:
        given = "str" if array.dtype.kind == "U" else array.dtype.name
        raise TypeError(
            f"{where}: invalid data type {given!r}: elements must be numbers or bools (a ragged or "
            "mixed sequence gives object)"
        )
    if not array.dtype.isnative:
        raise ValueError(
            f"{where}: the byte order must be the machine's, got {array.dtype}; convert with "
            "array.astype(array.dtype.newbyteorder('='))"
        )
    return array


def array_of_numbers(data: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array of a number or nested sequences of numbers, arrays and one-element tensors.

    Without `dtype`, it has that to which the elements promote.
    """
    dtypes: set[np.dtype[Any]] = set()
    try:
        plain = _as_python_numbers(data, dtypes)
    except RecursionError:
        raise ValueError(
            f"tensor(): too many dimensions {type(data).__name__!r}: a sequence holds itself"
        ) from None
    try:
        array = np.asarray(plain)
    except ValueError as error:
        raise _not_alike(plain, error) from None
    is_too_large = array.dtype == np.uint64 or (array.dtype == object and _holds_integers(array))
    if array.dtype == object and not is_too_large:
        strange = next(each for each in array.reshape(-1) if not isinstance(each, (int, float)))
        raise RuntimeError(
            f"Could not infer dtype of {type(strange).__name__}: tensor() takes numbers, sequences "
            "and arrays"
        )
    if array.dtype.kind == "U" and array.ndim and isinstance(_first(plain), str):
        raise ValueError("tensor(): too many dimensions 'str': a text is no sequence of numbers")
    if not is_too_large:
        check_numeric(array, "tensor()")
    if dtype is None:
        dtype = functools.reduce(promote_dtypes, dtypes) if dtypes else default_dtype()
    target = np.dtype(dtype)
    if target not in DTYPES:
        raise TypeError(f"tensor(): argument 'dtype' must be a dtype of numbers, not {dtype}")
    if target.kind in "iu" and array.dtype.kind != "b":
        _check_range(array, target, ValueError if is_too_large else RuntimeError)
    if array.dtype.kind == "c" and target.kind not in "cb":
        raise TypeError(
            f"tensor(): complex numbers do not fit into {target.name}; pass their .real"
        )
    with np.errstate(all="ignore"):
        return array.astype(target, copy=False)


def _as_python_numbers(data: Any, dtypes: set[np.dtype[Any]]) -> Any:
    """Return `data` with Python numbers in place of tensors, arrays and NumPy's numbers.

    Add the dtypes of all to `dtypes`.
    """
    if isinstance(data, (bytearray, memoryview, buffers.array)):
        data = memoryview(data).tolist()
    if isinstance(data, (list, tuple, range)):
        kinds = set(map(type, data))
        if kinds <= _PYTHON_NUMBERS:
            dtypes.update(_dtype_of(kind) for kind in kinds)
            return data
        return [_as_python_numbers(each, dtypes) for each in data]
    if isinstance(data, TensorBase):
        if data._array.size != 1:
            raise ValueError(
                f"tensor(): only tensors of one element can be elements, got a {describe(data)}; "
                "use stack()"
            )
        dtypes.add(data._array.dtype)
        return data._array.reshape(()).tolist()
    if isinstance(data, (np.ndarray, np.generic)):
        check_numeric(np.asarray(data), "tensor()")
        dtypes.add(data.dtype)
        return data.tolist()
    for kind in (bool, int, float, complex):
        if isinstance(data, kind):
            dtypes.add(_dtype_of(kind))
            break
    return data


_PYTHON_NUMBERS = {bool, int, float, complex}


def _dtype_of(kind: type) -> np.dtype[Any]:
    """Return PyTorch's dtype for a Python type of number."""
    return common_dtype(kind())


def _first(data: Any) -> Any:
    """Return the first element of nested sequences."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return data


def _not_alike(data: Any, error: ValueError) -> Exception:
    """Return the error for nested sequences that differ in length, or in depth."""
    level, dim = [data], 0
    while any(isinstance(each, (list, tuple)) for each in level):
        numbers = [each for each in level if not isinstance(each, (list, tuple))]
        if numbers:
            return TypeError(
                f"tensor(): {numbers[0]!r} is not a sequence, as others at dim {dim} are"
            )
        other = next((len(each) for each in level if len(each) != len(level[0])), None)
        if other is not None:
            return ValueError(
                f"tensor(): expected sequence of length {len(level[0])} at dim {dim} (got {other})"
            )
        level, dim = [item for each in level for item in each], dim + 1
    return ValueError(f"tensor(): sequences must have one length at each depth: {error}")


def _holds_integers(array: np.ndarray[Any, Any]) -> bool:
    return all(isinstance(each, (int, float)) for each in array.reshape(-1))


def _check_range(array: np.ndarray[Any, Any], dtype: np.dtype[Any], error: type[Exception]) -> None:
    """Raise `error` unless all numbers fit into an integer dtype; negative integers wrap around."""
    highest = int(np.iinfo(dtype).max)
    wraps = dtype.kind == "u" and array.dtype.kind in "iu"
    lowest = -highest if wraps else int(np.iinfo(dtype).min)
    # The bounds are powers of two, exact as floats.
    if array.size and not np.all((array >= lowest) & (array < highest + 1)):
        held = "Overflow when unpacking long: " if error is ValueError else ""
        raise error(f"tensor(): {held}the numbers do not fit into {dtype.name}")
