"""Unique values and binary search, not differentiable."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.broadcasting import wide
from offgrad.ops._core.dims import (
    normalize_dim,
)
from offgrad.ops._core.dtypes import check_tensor

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["bucketize", "searchsorted", "unique"]


class Unique2(Op):
    """The distinct elements; keeps nothing, as there is no derivative."""

    def forward(self, x: Array, values: Array) -> Array:
        """Return `values`, found by the caller."""
        return values

    def backward(self, grad: "Tensor") -> Any:
        """Raise: there is no derivative.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "unique has no derivative; index the tensor with positions instead, or detach it"
        )


def _unordered(input: "Tensor", where: str) -> Array:
    array = check_tensor(input, where)._array
    if array.dtype.kind == "c":
        raise NotImplementedError(f"{where} is not supported for complex numbers")
    return array


def unique(
    input: "Tensor",
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Return the distinct elements of `input`, or entries along `dim`, in ascending order.

    Args:
        input: the tensor.
        sorted: ignored; the result is always sorted.
        return_inverse: also return the index in the result of each element of `input`.
        return_counts: also return the number of occurrences in `input`.
        dim: the dimension of entries; None for elements.
    """
    array = _unordered(input, "unique")
    axis = None if dim is None else normalize_dim(dim, array.ndim, "unique")
    # bfloat16 as float32: NumPy has no order of bfloat16 with NaN.
    values, inverse, counts = np.unique(
        wide(array), return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    result = Unique2.apply(input, values=values.astype(array.dtype, copy=False))
    inverse = inverse.reshape(array.shape if axis is None else -1)
    extra = [wrap(inverse)] * return_inverse + [wrap(counts)] * return_counts
    return (result, *extra) if extra else result


def searchsorted(
    sorted_sequence: "Tensor",
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: "Tensor | None" = None,
) -> "Tensor":
    """Return the index at which each value would be inserted into an ascending sequence.

    Args:
        sorted_sequence: one vector, or a row of values for each row of `input`.
        input: values, a tensor or a number.
        out_int32: return int32 rather than int64.
        right: insert behind equal values rather than before them.
        side: ``"left"`` or ``"right"``, another form of `right`.
        sorter: indices that sort the sequence.

    Raises:
        RuntimeError: if the rows do not fit, or `right` and `side` contradict each other.
    """
    rows = wide(_unordered(sorted_sequence, "searchsorted"))
    if side not in (None, "left", "right") or (side == "left" and right):
        raise RuntimeError(
            f"searchsorted: side must be 'left' or 'right' and agree with right, got {side!r} and "
            f"{right}"
        )
    values = _unordered(input, "searchsorted") if isinstance(input, TensorBase) else np.array(input)  # type: ignore[arg-type]
    values = wide(values)
    if not rows.ndim or (rows.ndim > 1 and rows.shape[:-1] != values.shape[:-1]):
        raise RuntimeError(
            "searchsorted: a vector, or a row for each row of values, is needed, got a "
            f"{describe(sorted_sequence)} for values of shape {list(values.shape)}"
        )
    if sorter is not None:
        rows = np.take_along_axis(rows, sorter._array, -1)
    where: Any = "right" if right or side == "right" else "left"
    if rows.ndim == 1:
        result = np.asarray(np.searchsorted(rows, values, where))
    else:
        count = prod(rows.shape[:-1])
        tables = rows.reshape(count, rows.shape[-1]), values.reshape(count, values.shape[-1])
        pairs = zip(*tables, strict=True)
        result = np.array([np.searchsorted(row, each, where) for row, each in pairs], np.int64)
    return wrap(result.reshape(values.shape).astype(np.int32 if out_int32 else np.int64))


def bucketize(
    input: Any, boundaries: "Tensor", *, out_int32: bool = False, right: bool = False
) -> "Tensor":
    """Return the index of each value's bucket between ascending boundaries."""
    if check_tensor(boundaries, "bucketize")._array.ndim != 1:
        raise RuntimeError(
            f"bucketize: boundaries tensor must be 1 dimension, got a {describe(boundaries)}"
        )
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)
