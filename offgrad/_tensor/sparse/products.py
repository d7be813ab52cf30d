"""Products of matrices of which at least one is sparse."""

from typing import Any

import numpy as np

from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.sparse_data import is_sparse
from offgrad.ops._linalg.sparse import SparseAddmm


def _matrix(tensor: Any, name: str) -> Any:
    coo = tensor._coo()
    if coo.ndim != 2 or coo.dense_dim():
        raise RuntimeError(
            f"{name} is for sparse matrices, got a sparse tensor of shape {list(tensor.shape)} "
            f"with {coo.dense_dim()} dense dimensions"
        )
    return coo


def matmul(self: Any, other: Any) -> Any:
    """Return the product with a dense matrix [m, k] or vector [m]; sparse with a sparse matrix.

    Raises:
        RuntimeError: for other shapes, and for another dtype.
    """
    matrix = _matrix(self, "matmul")
    if other.ndim == 1 and not is_sparse(other):
        return matmul(self, other.unsqueeze(1)).squeeze(1)
    if other.ndim != 2 or other.shape[0] != self.shape[1]:
        raise RuntimeError(
            f"these shapes cannot be multiplied: a sparse matrix of shape {list(self.shape)} needs "
            f"a matrix of {self.shape[1]} rows, got a {describe(other)}"
        )
    if other._array.dtype != self._array.dtype:
        raise RuntimeError(
            "a sparse matrix multiplies matrices of its dtype, "
            f"{self._array.dtype.name}, got a {describe(other)}"
        )
    if is_sparse(other):
        return self._from_coo(_of_two(matrix, _matrix(other, "matmul")))
    rows, columns = matrix._index._array
    return SparseAddmm.apply(matrix._value, other, rows=rows, columns=columns, count=self.shape[0])


def rmatmul(self: Any, other: Any) -> Any:
    """Return the product of the dense `other` and this sparse matrix, dense."""
    if other.ndim == 1:
        return matmul(self.t(), other)
    return matmul(_matrix(self, "matmul").t(), other.t()).t()


def _of_two(a: Any, b: Any) -> Any:
    """Return the product of two sparse matrices: each pair of elements that meet, summed."""
    a, b = a.coalesce(), b.coalesce()
    (a_rows, inner), (b_rows, columns) = a._index._array, b._index._array
    # The elements of B are sorted by rows: those of row k are from starts[k] on.
    starts = np.searchsorted(b_rows, np.arange(b.shape[0] + 1))
    counts = (starts[1:] - starts[:-1])[inner]
    left = np.repeat(np.arange(len(inner)), counts)
    firsts = np.repeat(starts[:-1][inner] - np.cumsum(counts) + counts, counts)
    right = firsts + np.arange(len(left))
    index = np.stack([a_rows[left], columns[right]])
    values = a._value[wrap(left)] * b._value[wrap(right)]
    return a._sparse(wrap(index), values, (a.shape[0], b.shape[1])).coalesce()


def mv(self: Any, vec: Any) -> Any:
    """Return the product with a vector."""
    if vec.ndim != 1:
        raise RuntimeError(f"mv: a vector is needed, got a {describe(vec)}")
    return matmul(self, vec)


def addmm(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return ``beta * self + alpha * (mat1 @ mat2)`` for a sparse `self`: all sparse."""
    return self * beta + mat1.mm(mat2) * alpha


def addmm_(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Change the sparse tensor to the result of `addmm`; return it."""
    return self._take(addmm(self, mat1, mat2, beta=beta, alpha=alpha))


def smm(self: Any, mat2: Any) -> Any:
    """Return the product with a dense matrix as a sparse tensor of all its elements.

    Rows without elements in this matrix have none in the result.
    """
    product, shape = matmul(self, mat2), (self.shape[0], mat2.shape[1])
    rows = np.unique(self._coo()._index._array[0])
    grid = np.meshgrid(rows, np.arange(shape[1]), indexing="ij")
    index = np.stack([each.reshape(-1) for each in grid])
    values = product[wrap(index[0]), wrap(index[1])]
    return product._sparse(wrap(index), values, shape)


def hspmm(mat1: Any, mat2: Any) -> Any:
    """Return ``mat1 @ mat2`` for a sparse `mat1` as a sparse tensor of dense rows."""
    product = matmul(mat1, mat2)
    rows = np.unique(mat1._coo()._index._array[0])
    return product._sparse(wrap(rows[None]), product[wrap(rows)], product.shape, True)


def sspaddmm(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return ``beta * self + alpha * (mat1 @ mat2)``, sparse, for a dense `mat2` alone."""
    return self * beta + smm(mat1, mat2) * alpha


def plus_product(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Return ``beta * input + alpha * (mat1 @ mat2)`` for a sparse `mat1`."""
    product = matmul(mat1, mat2) * alpha
    return product + input * beta if is_sparse(input) else input * beta + product
