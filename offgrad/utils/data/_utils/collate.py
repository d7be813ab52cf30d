"""Samples become batches: `default_collate` stacks, `default_convert` only converts."""

import collections.abc
import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offgrad import memory, ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import wrap

__all__ = ["collate", "default_collate", "default_collate_fn_map", "default_convert"]


def _rebuilt(container: Any, values: Any) -> Any:
    """Return `values` in the type of a mapping or sequence; plain if its class does not allow."""
    kind = type(container)
    try:
        if isinstance(container, Mapping):
            if isinstance(container, collections.abc.MutableMapping):
                clone: Any = copy.copy(container)  # keeps what else the object holds
                clone.update(values)
                return clone
            return kind(values)
        if isinstance(container, collections.abc.MutableSequence):
            clone = copy.copy(container)
            for index, value in enumerate(values):
                clone[index] = value
            return clone
        return kind(values)
    except (TypeError, ValueError, IndexError):  # its constructor takes something else
        return values


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_text(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "SUOV" and array.dtype.name != "bfloat16"


def default_convert(data: Any) -> Any:
    """Return `data` with the NumPy arrays and scalars in it as tensors, the rest as it is.

    Lists, tuples and mappings are searched. Arrays share their memory with the tensors.
    """
    if isinstance(data, (np.ndarray, np.generic)):
        return data if _is_text(np.asarray(data)) else ops.as_tensor(data)
    if isinstance(data, Mapping):
        return _rebuilt(data, {key: default_convert(value) for key, value in data.items()})
    if _is_namedtuple(data):
        return type(data)(*[default_convert(each) for each in data])
    if isinstance(data, tuple):
        return [default_convert(each) for each in data]
    if isinstance(data, collections.abc.Sequence) and not isinstance(data, (str, bytes)):
        return _rebuilt(data, [default_convert(each) for each in data])
    return data


CollateFunction = Callable[..., Any]


def collate(batch: Any, *, collate_fn_map: Mapping[Any, CollateFunction] | None = None) -> Any:
    """Combine the samples of a batch, with functions by the type of their elements.

    Mappings, named tuples, tuples and lists are combined field by field.

    Args:
        batch: a sequence of samples alike.
        collate_fn_map: functions ``f(batch, *, collate_fn_map)`` by type or tuple of types.

    Raises:
        TypeError: there is no function for a type.
        RuntimeError: sequences have different lengths.
    """
    first = batch[0]
    function = _function_for(first, collate_fn_map)
    if function is not None:
        return function(batch, collate_fn_map=collate_fn_map)

    def combined(column: Any) -> Any:
        return collate(column, collate_fn_map=collate_fn_map)

    if isinstance(first, Mapping):
        return _rebuilt(first, {key: combined([each[key] for each in batch]) for key in first})
    if isinstance(first, collections.abc.Sequence):
        lengths = {len(each) for each in batch}
        if len(lengths) > 1:
            raise RuntimeError(
                "each element in list of batch should be of equal size, got "
                f"{sorted(lengths)}: pad them, or pass a collate_fn"
            )
        columns = [combined(column) for column in zip(*batch, strict=True)]
        if _is_namedtuple(first):
            return type(first)(*columns)
        return columns if isinstance(first, tuple) else _rebuilt(first, columns)
    raise TypeError(_unknown(type(first)))


def _function_for(
    element: Any, functions: Mapping[Any, CollateFunction] | None
) -> CollateFunction | None:
    if not functions:
        return None
    if type(element) in functions:
        return functions[type(element)]
    for kinds, function in functions.items():
        if isinstance(element, kinds):
            return function
    return None


def _unknown(what: Any) -> str:
    return (
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
        f"{what}: pass a collate_fn"
    )


def collate_tensor_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Stack tensors."""
    first = batch[0]._array
    for each in batch:
        array = each._array
        if array.shape != first.shape or array.dtype != first.dtype or each.requires_grad:
            return ops.stack(list(batch), 0)  # promotes, records or raises
    out = memory.empty((len(batch), *first.shape), first.dtype)
    np.stack([each._array for each in batch], out=out)
    return wrap(out)


def collate_numpy_array_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Stack NumPy arrays of numbers."""
    if _is_text(batch[0]):
        raise TypeError(_unknown(batch[0].dtype))
    return ops.stack([ops.as_tensor(each) for each in batch], 0)


def collate_numpy_scalar_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Return a tensor of NumPy's numbers, in their dtype."""
    return ops.as_tensor(np.asarray(batch))


def collate_float_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Return a float64 tensor of Python's floats."""
    return ops.tensor(batch, dtype=np.float64)


def collate_int_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Return a tensor of Python's integers or bools."""
    return ops.tensor(batch)


def collate_str_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Return text as it is."""
    return batch


default_collate_fn_map: dict[Any, CollateFunction] = {
    Tensor: collate_tensor_fn,
    np.ndarray: collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): collate_numpy_scalar_fn,
    float: collate_float_fn,
    int: collate_int_fn,
    str: collate_str_fn,
    bytes: collate_str_fn,
}
"""The functions of `default_collate`; a program may add types of its own."""


def stacks_tensors() -> bool:
    """Return whether the program has left the function for tensors as it was."""
    return default_collate_fn_map.get(Tensor) is collate_tensor_fn


def default_collate(batch: Any) -> Any:
    """Combine the samples of a batch: tensors and arrays are stacked, numbers become a tensor.

    Text stays a list. Mappings, named tuples, tuples and lists are combined field by field.

    Raises:
        TypeError: for elements of other types, None included.
        RuntimeError: shapes or lengths differ.
    """
    return collate(batch, collate_fn_map=default_collate_fn_map)
