"""Sparse matrices of coordinates, as far as graph networks use them."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad._layout import sparse_coo
from offgrad._size import Size
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.dtypes import check_tensor

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["sparse_coo_tensor", "spmm"]


class SparseAddmm(Op):
    """A sparse matrix times a dense one; keeps the values and the dense matrix."""

    def forward(
        self, values: Array, dense: Array, rows: Array, columns: Array, count: int
    ) -> Array:
        """Return [count, k]: the sums of ``values[i] * dense[columns[i]]`` at ``rows[i]``."""
        from scipy.sparse import coo_matrix

        self.rows, self.columns, self.dense_rows = rows, columns, dense.shape[0]
        need_values, need_dense = self.needs_input_grad
        self.save(values=values if need_dense else None, mat2=dense if need_values else None)
        matrix = coo_matrix((values, (rows, columns)), (count, dense.shape[0])).tocsr()
        return memory.contiguous(np.asarray(matrix @ dense, values.dtype))

    def backward(self, grad: "Tensor") -> Any:
        """The values get the products of their rows of G and B; B gets A^H G."""
        need_values, need_dense = self.needs_input_grad
        grad_values = grad_dense = None
        if need_values:
            dense = self.saved("mat2")
            grad_values = (grad[wrap(self.rows)] * dense[wrap(self.columns)].conj()).sum(-1)
        if need_dense:
            grad_dense = SparseAddmm.apply(
                self.saved("values").conj(),
                grad,
                rows=self.columns,
                columns=self.rows,
                count=self.dense_rows,
            )
        return grad_values, grad_dense


class SparseTensor:
    """A matrix or tensor of which only some elements are stored: indices [d, n] and values [n].

    It multiplies dense matrices, whose gradient and that of the values exist. Elements given twice
    count as their sum. Other operations need `to_dense`.
    """

    is_sparse = True
    layout = sparse_coo

    def __init__(
        self, indices: "Tensor", values: "Tensor", shape: Size, is_coalesced: bool
    ) -> None:
        self._index, self._value = indices, values
        self.shape = shape
        self._is_coalesced = is_coalesced

    def __repr__(self) -> str:
        return (
            f"tensor(indices={self._index},\n       values={self._value},\n       "
            f"size={self.shape}, nnz={self._nnz()}, layout=torch.sparse_coo)"
        )

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self._value.dtype

    @property
    def device(self) -> Any:
        """The device of the values."""
        return self._value.device

    @property
    def requires_grad(self) -> bool:
        """Whether the values require grad."""
        return self._value.requires_grad

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def _nnz(self) -> int:
        return int(self._value._array.shape[0])

    def _indices(self) -> "Tensor":
        return self._index

    def _values(self) -> "Tensor":
        return self._value

    def indices(self) -> "Tensor":
        """Return the indices [d, n] of a coalesced tensor."""
        self._check_coalesced("indices")
        return self._index

    def values(self) -> "Tensor":
        """Return the values [n] of a coalesced tensor."""
        self._check_coalesced("values")
        return self._value

    def _check_coalesced(self, name: str) -> None:
        if not self._is_coalesced:
            raise RuntimeError(
                f"{name}() is for coalesced tensors, whose indices are sorted and given once; call "
                f"coalesce() first, or _{name}()"
            )

    def is_coalesced(self) -> bool:
        """Return whether the indices are sorted and each is given once."""
        return self._is_coalesced

    def coalesce(self) -> "SparseTensor":
        """Return the same tensor with sorted indices, each given once, and their values summed."""
        if self._is_coalesced:
            return self
        flat = np.ravel_multi_index(tuple(self._index._array), self.shape)
        unique, places = np.unique(flat, return_inverse=True)
        index = np.stack(np.unravel_index(unique, self.shape)).astype(np.int64)
        values = self._value.new_zeros((len(unique), *self._value._array.shape[1:]))
        values = values.index_add(0, wrap(places.reshape(-1).astype(np.int64)), self._value)
        return SparseTensor(wrap(index), values, self.shape, True)

    def to_dense(self) -> "Tensor":
        """Return all elements, with zeros where none is stored."""
        zeros = self._value.new_zeros(self.shape)
        index = tuple(wrap(each) for each in self._index._array)
        return zeros.index_put(index, self._value, accumulate=True)

    def t(self) -> "SparseTensor":
        """Return the transposed matrix."""
        self._check_matrix("t")
        return SparseTensor(self._index.flip(0), self._value, Size(self.shape[::-1]), False)

    def transpose(self, dim0: int, dim1: int) -> "SparseTensor":
        """Return the matrix with `dim0` and `dim1` swapped."""
        return self if dim0 % 2 == dim1 % 2 else self.t()

    def detach(self) -> "SparseTensor":
        """Return the same tensor without history."""
        return self._with(self._value.detach())

    def requires_grad_(self, requires_grad: bool = True) -> "SparseTensor":
        """Set whether the values require grad."""
        self._value.requires_grad_(requires_grad)
        return self

    def to(self, *args: Any, **options: Any) -> "SparseTensor":
        """Return the tensor with values in another dtype."""
        return self._with(self._value.to(*args, **options))

    def float(self) -> "SparseTensor":
        """Return the tensor as float32."""
        return self._with(self._value.float())

    def double(self) -> "SparseTensor":
        """Return the tensor as float64."""
        return self._with(self._value.double())

    def cpu(self) -> "SparseTensor":
        """Return the tensor itself."""
        return self

    def _with(self, values: "Tensor") -> "SparseTensor":
        return SparseTensor(self._index, values, self.shape, self._is_coalesced)

    def __mul__(self, number: Any) -> "SparseTensor":
        return self._with(self._value * number)

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> "SparseTensor":
        return self._with(self._value / number)

    def __neg__(self) -> "SparseTensor":
        return self._with(-self._value)

    def matmul(self, other: "Tensor") -> "Tensor":
        """Return the product with a dense matrix [m, k] or vector [m].

        Raises:
            RuntimeError: for other shapes, and for another dtype.
        """
        self._check_matrix("matmul")
        dense = check_tensor(other, "matmul")
        if dense._array.ndim == 1:
            return self.matmul(dense.unsqueeze(1)).squeeze(1)
        if dense._array.ndim != 2 or dense._array.shape[0] != self.shape[1]:
            raise RuntimeError(
                f"a sparse matrix of shape {tuple(self.shape)} multiplies matrices of "
                f"{self.shape[1]} rows, got a {describe(dense)}"
            )
        if dense._array.dtype != self._value._array.dtype:
            raise RuntimeError(
                "a sparse matrix multiplies matrices of its dtype, "
                f"{self._value._array.dtype.name}, got a {describe(dense)}"
            )
        rows, columns = self._index._array
        return SparseAddmm.apply(
            self._value, dense, rows=rows, columns=columns, count=self.shape[0]
        )

    __matmul__ = mm = matmul

    def _check_matrix(self, name: str) -> None:
        if len(self.shape) != 2 or self._value._array.ndim != 1:
            raise RuntimeError(
                f"{name} is for sparse matrices, got a sparse tensor of shape {tuple(self.shape)}"
            )


def sparse_coo_tensor(
    indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool = False,
) -> SparseTensor:
    """Return the sparse tensor with `values` [n] at `indices` [d, n]; others are zero.

    Args:
        indices: integers, a tensor or nested lists.
        values: a tensor or a list.
        size: the shape; by default the smallest that holds the indices.
        dtype: of the values; by default as given.
        device: the CPU, or None.
        requires_grad: whether the values require grad.
        check_invariants: accepted; indices are always checked.
        is_coalesced: whether the indices are sorted, and each is given once.

    Raises:
        RuntimeError: if indices lie outside `size`, or there are not as many as values.
    """
    index = indices._array if isinstance(indices, TensorBase) else np.asarray(indices)
    index = np.asarray(index, np.int64)
    value: Any = values if isinstance(values, TensorBase) else wrap(np.asarray(values))
    if not isinstance(values, TensorBase) and value._array.dtype == np.float64:
        value = value.float()
    value = value if dtype is None else value.to(dtype)
    if index.ndim != 2 or not value._array.ndim or index.shape[1] != value._array.shape[0]:
        raise RuntimeError(
            "sparse_coo_tensor: indices [d, n] and values [n] are needed, got indices of shape "
            f"{index.shape} and {describe(value)}"
        )
    if size is None:
        highest = index.max(1, initial=-1) + 1
        size = (*highest.tolist(), *value._array.shape[1:])
    shape = tuple(int(each) for each in size)
    limits = np.asarray(shape[: index.shape[0]])[:, None]
    if index.size and (index.min() < 0 or (index >= limits).any()):
        raise RuntimeError(
            f"sparse_coo_tensor: an index lies outside of size {shape}: the highest of each "
            f"dimension are {index.max(1).tolist()}, the lowest {index.min(1).tolist()}"
        )
    if requires_grad:
        value = value.detach().requires_grad_()
    return SparseTensor(wrap(index), value, Size(shape), is_coalesced)


def spmm(input: Any, mat2: "Tensor") -> "Tensor":
    """Return the product of a sparse matrix and a dense one: `sparse.mm`."""
    if isinstance(input, SparseTensor):
        return input.matmul(mat2)
    return check_tensor(input, "spmm") @ mat2


def to_sparse(input: "Tensor", sparse_dim: int | None = None) -> SparseTensor:
    """Return the nonzero elements of a tensor as a sparse one; gradients flow to them.

    Raises:
        NotImplementedError: for a `sparse_dim` other than the number of dimensions.
    """
    if sparse_dim not in (None, input._array.ndim):
        raise NotImplementedError("to_sparse: only tensors without dense dimensions are supported")
    index = np.stack(input._array.nonzero()).astype(np.int64)
    values = input[tuple(wrap(each) for each in index)]
    return SparseTensor(wrap(index), values, Size(input._array.shape), True)
