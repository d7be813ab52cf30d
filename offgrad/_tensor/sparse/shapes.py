"""Dimensions and parts of sparse tensors of coordinates."""

from typing import Any

import numpy as np

from offgrad import ops
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.dims import normalize_dim


def _make(index: Any, values: Any, shape: Any, is_coalesced: bool = False) -> Any:
    index = wrap(np.ascontiguousarray(index))
    return values._sparse(index, values, shape, is_coalesced)


def permute(self: Any, dims: Any) -> Any:
    """Return the tensor with dimensions in another order; sparse ones stay before dense ones."""
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    axes = [normalize_dim(each, self.ndim, "permute") for each in order]
    count = self.sparse_dim()
    if sorted(axes) != list(range(self.ndim)) or sorted(axes[:count]) != list(range(count)):
        raise RuntimeError(
            f"permute: the order {tuple(order)} must name all dimensions, the {count} sparse ones "
            f"first, of a sparse tensor of shape {list(self.shape)}"
        )
    values = self._value
    if axes[count:] != list(range(count, self.ndim)):
        values = values.permute(0, *[each - count + 1 for each in axes[count:]])
    same = axes[:count] == list(range(count))
    shape = [self.shape[each] for each in axes]
    return _make(self._index._array[axes[:count]], values, shape, same and self._is_coalesced)


def transpose(self: Any, dim0: int, dim1: int) -> Any:
    """Return the tensor with two dimensions swapped."""
    axes = list(range(self.ndim))
    first, second = (normalize_dim(each, self.ndim, "transpose") for each in (dim0, dim1))
    axes[first], axes[second] = axes[second], axes[first]
    return self if first == second else permute(self, axes if len(axes) > 1 else (axes,))


def unsqueeze(self: Any, dim: int) -> Any:
    """Return the tensor with a dimension of size 1 before `dim`."""
    axis, count = normalize_dim(dim, self.ndim + 1, "unsqueeze"), self.sparse_dim()
    shape = [*self.shape[:axis], 1, *self.shape[axis:]]
    if axis > count:
        values = self._value.unsqueeze(axis - count + 1)
        return _make(self._index._array, values, shape, self._is_coalesced)
    index = np.insert(self._index._array, axis, 0, axis=0)
    return _make(index, self._value, shape, self._is_coalesced)


def index_select(self: Any, axis: int, index: Any) -> Any:
    """Return the entries of `axis` at the integers `index`, repeated as they are."""
    if index._array.ndim > 1 or index._array.dtype.kind not in "iu":
        raise RuntimeError(
            f"index_select: the index must be a vector of integers, got a {describe(index)}"
        )
    chosen, count = np.atleast_1d(index._array), self.sparse_dim()
    size = self.shape[axis]
    if chosen.size and (chosen.min() < -size or chosen.max() >= size):
        raise IndexError(f"index_select: indices must be below {size}, got {chosen.tolist()}")
    chosen = chosen % max(size, 1)
    shape = [*self.shape[:axis], len(chosen), *self.shape[axis + 1 :]]
    if axis >= count:
        values = self._value.index_select(axis - count + 1, wrap(chosen))
        return _make(self._index._array, values, shape, self._is_coalesced)
    coo = self.coalesce()
    along = coo._index._array[axis]
    order = np.argsort(along, kind="stable")
    starts = np.searchsorted(along[order], chosen, "left")
    counts = np.searchsorted(along[order], chosen, "right") - starts
    firsts = np.repeat(starts - np.cumsum(counts) + counts, counts)
    picked = order[firsts + np.arange(counts.sum())]
    found = coo._index._array[:, picked]
    found[axis] = np.repeat(np.arange(len(chosen)), counts)
    return _make(found, coo._value[wrap(picked)], shape, axis == 0)


def select(self: Any, axis: int, index: int) -> Any:
    """Return the entry `index` of `axis`; dense if no sparse dimension remains."""
    size, count = self.shape[axis], self.sparse_dim()
    if not -size <= index < size:
        raise IndexError(
            f"select: index {index} is out of range of dimension {axis}, of size {size}"
        )
    at = index % size
    shape = [*self.shape[:axis], *self.shape[axis + 1 :]]
    if axis >= count:
        values = self._value.select(axis - count + 1, at)
        return _make(self._index._array, values, shape, self._is_coalesced)
    picked = np.flatnonzero(self._index._array[axis] == at)
    values = self._value[wrap(picked)]
    if count == 1:
        return values.sum(0)
    found = np.delete(self._index._array[:, picked], axis, 0)
    return _make(found, values, shape, self._is_coalesced)


def getitem(self: Any, index: Any) -> Any:
    """Return parts by integers, full slices and a vector of integers.

    Raises:
        NotImplementedError: for other indices.
    """
    result, axis = self, 0
    for each in index if isinstance(index, tuple) else (index,):
        if isinstance(each, (int, np.integer)) and not isinstance(each, bool):
            result = result.select(axis, int(each))
            continue
        if isinstance(each, TensorBase) and each._array.dtype.kind in "iu":
            result = result.index_select(axis, each)
        elif not (isinstance(each, slice) and each == slice(None)):
            raise NotImplementedError(
                "sparse tensors take integers, vectors of integers and ':' as indices, got "
                f"{each!r}; use index_select, or to_dense()"
            )
        axis += 1
    return result


def cat(tensors: Any, dim: int = 0) -> Any:
    """Return sparse tensors joined along a dimension."""
    parts = [each._coo() for each in tensors]
    first = parts[0]
    axis, count = normalize_dim(dim, first.ndim, "cat"), first.sparse_dim()
    for each in parts[1:]:
        fits = each.ndim == first.ndim and each.sparse_dim() == count
        sizes = [size for at, size in enumerate(each.shape) if at != axis]
        if not fits or sizes != [size for at, size in enumerate(first.shape) if at != axis]:
            raise RuntimeError(
                "cat: sparse tensors need equal sizes but for the joined dimension, and equal "
                f"numbers of sparse dimensions; got {list(first.shape)} and {list(each.shape)}"
            )
    total = sum(each.shape[axis] for each in parts)
    shape = [*first.shape[:axis], total, *first.shape[axis + 1 :]]
    indices, values, offset = [], [], 0
    for each in parts:
        index, value = each._index._array.copy(), each._value
        if axis < count:
            index[axis] += offset
        else:
            at = axis - count + 1
            before = value.new_zeros((*value.shape[:at], offset, *value.shape[at + 1 :]))
            rest = total - offset - each.shape[axis]
            after = value.new_zeros((*value.shape[:at], rest, *value.shape[at + 1 :]))
            value = ops.cat([before, value, after], at)
        indices.append(index)
        values.append(value)
        offset += each.shape[axis]
    return _make(np.concatenate(indices, 1), ops.cat(values), shape)


def stack(tensors: Any, dim: int = 0) -> Any:
    """Return sparse tensors joined along a new dimension."""
    return cat([each.unsqueeze(dim) for each in tensors], dim)
