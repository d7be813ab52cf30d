"""Sorting, top k, the k-th value and the median."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.broadcasting import wide
from offgrad.ops._core.dims import integer, normalize_dim
from offgrad.ops._core.dtypes import check_not_bool, check_ordered, check_tensor
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._core.results import Extreme
from offgrad.ops._reduction.extrema import (
    Amax,
    Selection,
    not_empty,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["argsort", "kthvalue", "median", "msort", "sort", "topk"]


_SMALL = 4096
"""Elements up to which NumPy's argsort is the fastest."""


def _small_order(x: Array, axis: int, descending: bool) -> Array:
    if not descending:
        return x.argsort(axis, kind="stable")
    reverse = (*(slice(None),) * axis, slice(None, None, -1))
    order: Array = (x.shape[axis] - 1 - x[reverse].argsort(axis, kind="stable"))[reverse]
    return order


def _sorted_indices(
    x: Array, axis: int, descending: bool, first: int = 0, last: int | None = None
) -> Array:
    """Return the indices of a stable sort, from rank `first` to ``last - 1``; NaN is largest."""
    x = wide(x)  # NumPy has no order of bfloat16 with NaN
    if x.size <= _SMALL:
        order = _small_order(x, axis, descending)
        return np.ascontiguousarray(order[(*(slice(None),) * axis, slice(first, last))])
    rows = memory.contiguous(np.moveaxis(x, axis, -1))
    found = kernels.sorted_indices(rows, descending, first, last)
    return memory.contiguous(np.moveaxis(found, -1, axis))


def _ordered(input: "Tensor", dim: int, where: str) -> int:
    """Return the dimension counted from the front; complex numbers have no order."""
    error = RuntimeError if where in ("sort", "argsort", "topk", "msort") else NotImplementedError
    check_ordered(check_tensor(input, where), where, error)
    return normalize_dim(dim, input._array.ndim, where)


@with_numpy_names
def sort(
    input: "Tensor", dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> Extreme:
    """Return ``(values, indices)`` of the elements in order along `dim`.

    The sort is always stable; `stable` is accepted.
    """
    axis = _ordered(input, dim, "sort")
    name = "SortBackward0" if stable is None else "SortBackward1"
    find = lambda x, axis: _sorted_indices(x, axis, descending)
    return Extreme.of("sort", *Selection.named(name).apply_all(input, dim=axis, find=find))


def msort(input: "Tensor") -> "Tensor":
    """Return the elements in order along the first dimension."""
    return sort(input, 0).values


@with_numpy_names
def argsort(
    input: "Tensor", dim: int = -1, descending: bool = False, *, stable: bool = False
) -> "Tensor":
    """Return the indices that sort along `dim`; the sort is always stable."""
    axis = _ordered(input, dim, "argsort")
    if not input._array.ndim:
        return wrap(np.zeros((), np.int64))
    return wrap(_sorted_indices(input._array, axis, descending))


@with_numpy_names
def topk(
    input: "Tensor", k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Extreme:
    """Return ``(values, indices)`` of the `k` largest or smallest along `dim`, always in order.

    Raises:
        RuntimeError: if there are fewer than `k` elements.
    """
    axis = _ordered(input, dim, "topk")
    check_not_bool(input, "topk", RuntimeError)
    size = input._array.shape[axis] if input._array.ndim else 1
    k = integer(k, "topk", "k")
    if not 0 <= k <= size:
        raise RuntimeError(
            f"topk: selected index k out of range: it must be from 0 to {size}, the size of dim "
            f"{dim}, got {k}"
        )

    def find(x: Array, axis: int) -> Array:
        return _sorted_indices(x, axis, largest, 0, k)

    run = Selection.named("TopkBackward0").apply_all
    return Extreme.of("topk", *run(input, dim=axis, find=find))


def _at_rank(rank: int) -> Any:
    def find(x: Array, axis: int) -> Array:
        return _sorted_indices(x, axis, False, rank, rank + 1)

    return find


@with_numpy_names
def kthvalue(input: "Tensor", k: int, dim: int = -1, keepdim: bool = False) -> Extreme:
    """Return ``(values, indices)`` of the `k`-th smallest along `dim`, counted from 1.

    Raises:
        RuntimeError: if `k` is out of range.
    """
    axis = _ordered(input, dim, "kthvalue")
    not_empty(input, (axis,) if input._array.ndim else (), "kthvalue", IndexError)
    size = input._array.shape[axis] if input._array.ndim else 1
    check_not_bool(input, "kthvalue")
    k = integer(k, "kthvalue", "k")
    if not 1 <= k <= size:
        raise RuntimeError(
            f"kthvalue(): selected number k out of range for dimension {axis}: it must be from 1 "
            f"to {size}, got {k}"
        )
    run = Selection.named("KthvalueBackward0").apply_all
    return Extreme.of("kthvalue", *run(input, dim=axis, find=_at_rank(k - 1), keepdim=keepdim))


def _median_index(x: Array, axis: int) -> Array:
    """Return the index of the lower median, or of the first NaN."""
    rank = (x.shape[axis] - 1) // 2
    middle = _sorted_indices(x, axis, False, rank, rank + 1)
    nan = np.isnan(x)
    has_nan = nan.any(axis, keepdims=True)
    if not has_nan.any():
        return middle
    return np.where(has_nan, np.argmax(nan, axis=axis, keepdims=True), middle)


def _median(x: Array, out: Array) -> None:
    flat = x.reshape(-1)
    if not flat.size or np.isnan(flat).any():
        out[...] = np.nan
        return
    rank = (flat.size - 1) // 2
    out[...] = np.partition(flat, rank)[rank]


@with_numpy_names
def median(input: "Tensor", dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the median of all elements; along `dim`, ``(values, indices)``.

    Of two middle elements it is the lower one; it is NaN if any element is. As in PyTorch, the
    median of all elements shares its gradient among equal ones, the one along `dim` does not.
    """
    check_ordered(check_tensor(input, "median"), "median")
    check_not_bool(input, "median")
    if dim is None:
        return Amax.named("MedianBackward0").apply(input, dim=(), keepdim=False, reduce=_median)
    axis = normalize_dim(dim, input._array.ndim, "median")
    not_empty(input, (axis,) if input._array.ndim else (), "median", IndexError)
    run = Selection.named("MedianBackward1").apply_all
    return Extreme.of("median", *run(input, dim=axis, find=_median_index, keepdim=keepdim))
