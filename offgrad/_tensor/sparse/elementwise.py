"""Sums and products of sparse tensors, with each other, with dense tensors and with numbers."""

from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.sparse.positions import positions
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.ops._core.sparse_data import is_sparse


def _check_shapes(name: str, a: Any, b: Any) -> None:
    if a.shape != b.shape:
        raise RuntimeError(
            f"{name}: expected sparse tensors of the same size, got {list(a.shape)} and "
            f"{list(b.shape)}"
        )


def add(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return ``self + alpha * other``, sparse, for a sparse `other` of the same shape."""
    if not is_sparse(other):
        if isinstance(other, TensorBase):
            raise RuntimeError("add(sparse, dense) is not supported; write add(dense, sparse)")
        raise RuntimeError(
            f"a sparse tensor adds sparse tensors, got {type(other).__name__}: a number would fill "
            "all its elements; convert it with to_dense()"
        )
    _check_shapes("add", self, other)
    a, b = self._coo(), other._coo()
    scaled = b._value if alpha == 1 else b._value * alpha
    if a.sparse_dim() == b.sparse_dim() and np.array_equal(a._index._array, b._index._array):
        return self._from_coo(a._with(a._value + scaled))
    if a.sparse_dim() != b.sparse_dim():
        raise RuntimeError(
            "add: sparse tensors need the same number of sparse dimensions, got "
            f"{a.sparse_dim()} and {b.sparse_dim()}"
        )
    index = wrap(np.concatenate([a._index._array, b._index._array], 1))
    total = self._sparse(index, ops.cat([a._value, scaled]), a.shape)
    if a._is_coalesced and b._is_coalesced:
        total = total.coalesce()
    return self._from_coo(total)


def sub(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return ``self - alpha * other``, sparse."""
    return add(self, other, alpha=-alpha)


def radd(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return ``other + alpha * self``, dense as `other`."""
    if not isinstance(other, TensorBase):
        return add(self, other)
    dense: Any = other
    _check_shapes("add", dense, self)
    coo = self._coo()
    values = coo._value if alpha == 1 else coo._value * alpha
    if coo.sparse_dim() == 1:  # rows, as the gradients of tables
        return dense.index_add(0, wrap(coo._index._array[0]), values)
    index = tuple(wrap(each) for each in coo._index._array)
    return dense.index_put(index, values, accumulate=True)


def rsub(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return ``other - alpha * self``, dense as `other`."""
    return radd(self, other, alpha=-alpha)


def _is_number(other: Any) -> bool:
    return not isinstance(other, TensorBase) or (not is_sparse(other) and other._array.ndim == 0)


def mul(self: Any, other: Any) -> Any:
    """Return the product with a number, or of the elements with those of a tensor; sparse."""
    if _is_number(other):
        return self._with(self._value * other)
    _check_shapes("mul", self, other)
    a = self._coo()
    if not is_sparse(other):
        return self._from_coo(a._with(a._value * _at(other, a)))
    a, b = a.coalesce(), other._coo().coalesce()
    shape = a._sparse_shape()
    _, mine, theirs = np.intersect1d(
        positions(a._index._array, shape), positions(b._index._array, shape), True, True
    )
    index = wrap(np.ascontiguousarray(a._index._array[:, mine]))
    product = a._value[wrap(mine)] * b._value[wrap(theirs)]
    return self._from_coo(self._sparse(index, product, a.shape, True))


def _at(dense: Any, coo: Any) -> Any:
    """Return the elements of `dense` that the sparse tensor stores."""
    return dense[tuple(wrap(each) for each in coo._index._array)]


def sparse_mask(input: Any, mask: Any) -> Any:
    """Return the elements of `input` at the indices of the sparse tensor `mask`, sparse.

    Raises:
        RuntimeError: if the shapes differ.
    """
    _check_shapes("sparse_mask", input, mask)
    coo = mask._coo()
    if not is_sparse(input):
        return mask._from_coo(coo._with(_at(input, coo)))
    source, shape = input._coo().coalesce(), coo._sparse_shape()
    known = positions(source._index._array, shape)
    asked = positions(coo._index._array, shape)
    at = np.minimum(np.searchsorted(known, asked), max(known.size - 1, 0))
    if not known.size:
        return mask._from_coo(coo._with(coo._value.detach().new_zeros(coo._value.shape)))
    found = (known[at] == asked).reshape(-1, *[1] * (coo._value.ndim - 1))
    values = source._value[wrap(at)].masked_fill(wrap(~found), 0)
    return mask._from_coo(coo._with(values))


def div(self: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """Return the quotient by a number.

    Raises:
        RuntimeError: for a tensor of dimensions, whose zeros would divide zeros.
    """
    if not _is_number(other):
        raise RuntimeError(
            "a sparse tensor can be divided by numbers only, got a tensor of shape "
            f"{list(other.shape)}"
        )
    whole = self.coalesce() if rounding_mode and self.is_sparse else self
    return whole._with(whole._value.div(other, rounding_mode=rounding_mode))


def pow(self: Any, exponent: Any) -> Any:
    """Return the powers of the elements, for a number above zero as `exponent`."""
    if isinstance(exponent, TensorBase) or not exponent:
        raise RuntimeError(
            "pow of a sparse tensor takes a number other than 0 as exponent: another fills all "
            "elements"
        )
    whole = self.coalesce() if self.is_sparse else self
    return whole._with(whole._value.pow(exponent))
