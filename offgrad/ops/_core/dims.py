"""Dimensions, sizes and counts as arguments: integers, dimensions counted from the front."""

import builtins
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from offgrad.autograd.tensor_base import TensorBase

Dim: TypeAlias = int | Sequence[int] | None


def integer(value: Any, where: str, name: str) -> int:
    """Return an argument that must be an integer: a number, or a tensor of one.

    Raises:
        TypeError: for bools, floats and all else that Python does not take for an index.
    """
    if type(value) is int:
        return value
    if not is_integer(value):
        raise TypeError(f"{where}: {name} must be an integer, got {_described(value)}")
    return int(value.item() if isinstance(value, np.ndarray) else value)


def is_integer(value: Any) -> bool:
    """Return whether an argument is one integer: no bool, maybe a tensor or array of one."""
    if isinstance(value, TensorBase):
        return value._array.dtype.kind in "iu" and value._array.size == 1
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iu" and value.size == 1
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _described(value: Any) -> str:
    if isinstance(value, TensorBase):
        return f"a {value._array.dtype.name} tensor of shape {list(value._array.shape)}"
    return f"{value!r} ({type(value).__name__})"


def integers(values: Any, where: str, name: str) -> tuple[int, ...]:
    """Return an argument that must be a tuple or list of integers.

    Raises:
        TypeError: for all else.
    """
    if not isinstance(values, (tuple, list)):
        raise TypeError(f"{where}: {name} must be a tuple of integers, got {_described(values)}")
    if _INT.issuperset(map(type, values)):
        return tuple(values)
    return tuple([integer(each, where, name) for each in values])


_INT = frozenset({int})


def sizes(args: tuple[Any, ...], where: str, name: str = "size") -> tuple[int, ...]:
    """Return the integers that a function takes one by one, or as one tuple or list.

    Raises:
        TypeError: for all else, and for no argument.
    """
    if not args:
        raise TypeError(f"{where}: {name} is missing; an empty one is ()")
    if len(args) == 1 and type(args[0]) is not int and not is_integer(args[0]):
        return integers(args[0], where, name)
    return integers(args, where, name)


def shape_of(args: tuple[Any, ...], where: str) -> tuple[int, ...]:
    """Return the shape of a new tensor, given as `sizes` takes it.

    Raises:
        TypeError: as `sizes`.
        RuntimeError: for negative sizes.
    """
    shape = sizes(args, where)
    if min(shape, default=0) < 0:
        raise RuntimeError(
            f"{where}: Trying to create tensor with negative dimension {min(shape)}, got sizes "
            f"{list(shape)}"
        )
    return shape


def normalize_dim(dim: int, ndim: int, where: str) -> int:
    """Return `dim` counted from the front.

    Raises:
        IndexError: if there is no such dimension.
        TypeError: if `dim` is not an integer.
    """
    bound = builtins.max(ndim, 1)
    if type(dim) is not int:
        dim = integer(dim, where, "dim")
    if not -bound <= dim < bound:
        raise IndexError(
            f"{where}: Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], "
            f"but got {dim}) for a tensor of {ndim} dimensions"
        )
    return dim % bound


def normalize_dims(dim: Dim, ndim: int, where: str) -> tuple[int, ...]:
    """Return the dimensions `dim` as counted from the front; None and () mean all."""
    if dim is None:
        return tuple(range(ndim))
    if is_integer(dim):
        axis = normalize_dim(dim, ndim, where)  # type: ignore[arg-type]
        return (axis,) if ndim else ()
    dims = tuple([normalize_dim(each, ndim, where) for each in integers(dim, where, "dim")])
    if len(set(dims)) != len(dims):
        twice = next(each for each in dims if dims.count(each) > 1)
        raise RuntimeError(
            f"{where}: dim {twice} appears multiple times in the list of dims {dim}; give it once"
        )
    return dims if dims and ndim else tuple(range(ndim))


def given_once(
    one_by_one: tuple[Any, ...], named: Any, where: str, name: str = "dims"
) -> tuple[Any, ...]:
    """Return dimensions or sizes that were given by position or by name.

    Raises:
        TypeError: if they were given both ways.
    """
    if named is None:
        return one_by_one
    if one_by_one:
        raise TypeError(f"{where}: {name} is given twice, as {one_by_one} and as {name}={named}")
    return (named,)
