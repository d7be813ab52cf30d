"""Sums, norms and softmax of sparse tensors of coordinates."""

from typing import Any

import numpy as np

from offgrad._tensor.sparse.positions import positions
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.dims import normalize_dim, normalize_dims


def sum(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the sum over all elements or some dimensions; dense if no sparse one remains."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return self._value.sum(dtype=dtype)
    if keepdim:
        raise RuntimeError("sum: keepdim=True is not supported for sparse tensors")
    sparse_dim = self.sparse_dim()
    axes = normalize_dims(dim, self.ndim, "sum")
    dense = [each - sparse_dim + 1 for each in axes if each >= sparse_dim]
    values = self._value if dtype is None else self._value.to(dtype)
    values = values.sum(dense) if dense else values
    kept = [each for each in range(sparse_dim) if each not in axes]
    if not kept:
        return values.sum(0)
    shape = [size for at, size in enumerate(self.shape) if at not in axes]
    index = np.ascontiguousarray(self._index._array[kept])
    is_coalesced = self._is_coalesced and len(kept) == sparse_dim
    return self._sparse(wrap(index), values, shape, is_coalesced).coalesce()


def norm(self: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return the norm over all elements."""
    if dim is not None and len(normalize_dims(dim, self.ndim, "norm")) != self.ndim:
        raise RuntimeError("norm of a sparse tensor is over all its dimensions only")
    return self.coalesce()._value.norm(p, dtype=dtype)


def any(self: Any) -> Any:
    """Return whether any element is nonzero."""
    return self._value.any()


def softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    """Return the softmax over the stored elements along `dim`: others count as minus infinity."""
    return _softmax(self, dim, dtype, False)


def log_softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    """Return the logarithm of `softmax`."""
    return _softmax(self, dim, dtype, True)


def _softmax(self: Any, dim: int, dtype: Any, is_log: bool) -> Any:
    axis, coo = normalize_dim(dim, self.ndim, "softmax"), self.coalesce()
    coo = coo if dtype is None else coo.to(dtype)
    values, index = coo._value, coo._index._array
    if axis >= coo.sparse_dim():
        at = axis - coo.sparse_dim() + 1
        return coo._with(values.log_softmax(at) if is_log else values.softmax(at))
    others = [each for each in range(coo.sparse_dim()) if each != axis]
    flat = positions(index[others], tuple(coo.shape[each] for each in others))
    unique, group = np.unique(flat, return_inverse=True)
    groups = wrap(group.reshape(-1).astype(np.int64))
    array = values._array
    highest = np.full((len(unique), *array.shape[1:]), -np.inf, array.dtype)
    np.maximum.at(highest, group.reshape(-1), array)
    shifted = values - wrap(highest)[groups]
    powers = shifted.exp()
    sums = values.new_zeros(highest.shape).index_add(0, groups, powers)
    return coo._with(shifted - sums.log()[groups] if is_log else powers / sums[groups])
