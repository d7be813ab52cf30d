"""Sparse matrices whose rows or columns, or those of blocks, are compressed."""

from copy import deepcopy
from typing import Any

import numpy as np

from offgrad._layout import layout as Layout
from offgrad._layout import sparse_bsc, sparse_bsr, sparse_csc, sparse_csr
from offgrad._tensor.sparse.common import SparseBase
from offgrad._tensor.sparse.coo import SparseTensor, make_coo
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.sparse_data import SparseArray

BY_ROWS = (sparse_csr, sparse_bsr)
BLOCKS = (sparse_bsr, sparse_bsc)
TRANSPOSED = {
    sparse_csr: sparse_csc,
    sparse_csc: sparse_csr,
    sparse_bsr: sparse_bsc,
    sparse_bsc: sparse_bsr,
}


class CompressedTensor(SparseBase):
    """A matrix of which some elements, or blocks, are stored, by rows or by columns.

    `_compressed` [rows + 1] has where each row begins among the values, `_plain` [n] the column of
    each; for columns likewise. History is that of the values.
    """

    _layout: Layout
    _compressed: Tensor
    _plain: Tensor

    def _become(self, parts: tuple[Tensor, Tensor, Tensor], shape: Any, layout: Layout) -> Any:
        self._compressed, self._plain, self._value = parts
        self._layout = layout
        self._array = SparseArray(tuple(shape), self._value._array.dtype)  # type: ignore[assignment]
        self._storage = self._value._storage
        return self

    def _with(self, values: Tensor) -> "CompressedTensor":
        return make_compressed((self._compressed, self._plain, values), self.shape, self.layout)

    def _take(self, other: "CompressedTensor") -> "CompressedTensor":
        parts = other._compressed, other._plain, other._value
        result: CompressedTensor = self._become(parts, other.shape, other.layout)
        return result

    @property
    def layout(self) -> Layout:
        """The layout: one of the compressed ones."""
        return self._layout

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        """Whether rows are compressed, without blocks."""
        return self.layout is sparse_csr

    def __repr__(self, **_: Any) -> str:
        first, second = (
            ("crow_indices", "col_indices")
            if self.layout in BY_ROWS
            else ("ccol_indices", "row_indices")
        )
        lines = [
            f"tensor({first}={self._shown(self._compressed, 8 + len(first))},",
            f"       {second}={self._shown(self._plain, 8 + len(second))},",
            f"       values={self._shown(self._value, 14)},",
        ]
        return self._with_suffix("\n".join(lines))

    def sparse_dim(self) -> int:
        """Return 2: both dimensions are sparse."""
        return 2

    def values(self) -> Tensor:
        """Return the stored elements [n], or blocks [n, a, b]."""
        return self._value

    def _index_of(self, compressed: bool, by_rows: bool, name: str) -> Tensor:
        if by_rows != (self.layout in BY_ROWS):
            kind = "row" if by_rows else "column"
            raise RuntimeError(
                f"{name} needs a layout of compressed {kind}s, but the tensor has {self.layout}"
            )
        return self._compressed if compressed else self._plain

    def crow_indices(self) -> Tensor:
        """Return where each row, or row of blocks, begins among the values."""
        return self._index_of(True, True, "crow_indices")

    def col_indices(self) -> Tensor:
        """Return the column of each value or block."""
        return self._index_of(False, True, "col_indices")

    def ccol_indices(self) -> Tensor:
        """Return where each column, or column of blocks, begins among the values."""
        return self._index_of(True, False, "ccol_indices")

    def row_indices(self) -> Tensor:
        """Return the row of each value or block."""
        return self._index_of(False, False, "row_indices")

    def _coo(self) -> SparseTensor:
        """Return the matrix of coordinates; coalesced if the elements lie in that order."""
        starts, inner = self._compressed._array, self._plain._array
        outer = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        rows, columns = (outer, inner) if self.layout in BY_ROWS else (inner, outer)
        values = self._value
        if self.layout in BLOCKS:
            height, width = values.shape[1:]
            rows = rows[:, None, None] * height + np.arange(height)[:, None]
            columns = columns[:, None, None] * width + np.arange(width)
            rows, columns = (each.reshape(-1) for each in np.broadcast_arrays(rows, columns))
            values = values.reshape(-1)
        index = np.stack([rows, columns]).astype(np.int64)
        return make_coo(wrap(index), values, self.shape, self.layout is sparse_csr)

    def _from_coo(self, coo: SparseTensor) -> Any:
        if self.layout in BLOCKS:
            block = tuple(self._value.shape[1:])
            return blocks_of(coo.to_dense(), block, self.layout)
        return compress(coo, self.layout)

    def to_dense(self, dtype: Any = None, *, masked_grad: Any = None) -> Tensor:
        """Return all elements, with zeros where none is stored."""
        return self._coo().to_dense(dtype)

    @property
    def grad(self) -> "Tensor | None":
        """Of a leaf: the gradient of the stored elements, in the same layout."""
        grad = self._value.grad
        return grad if grad is None or self._value._grad_fn is not None else self._with(grad)

    @grad.setter
    def grad(self, value: "Tensor | None") -> None:
        if value is not None:
            raise RuntimeError("the gradient of a sparse tensor can only be set to None")
        self._value.grad = None

    @grad.deleter
    def grad(self) -> None:
        self._value.grad = None

    def clone(self, *, memory_format: Any = None) -> "CompressedTensor":
        """Return a copy; gradients flow to this tensor."""
        parts = self._compressed.clone(), self._plain.clone(), self._value.clone()
        return make_compressed(parts, self.shape, self.layout)

    def copy_(self, source: Any, non_blocking: bool = False, *, name: str = "copy_") -> Any:
        """Take a copy of the elements of `source`, of the same layout; return this tensor."""
        if getattr(source, "layout", None) is not self.layout:
            raise RuntimeError(f"{name} of a {self.layout} tensor takes one of that layout")
        return self._take(source.clone().to(self.dtype))

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        known = memo.get(id(self))
        if known is None:
            parts = deepcopy((self._compressed, self._plain, self._value), memo)
            known = memo[id(self)] = make_compressed(parts, self.shape, self.layout)
        return known

    def __copy__(self) -> Any:
        return self._with(self._value)

    def _parts(self) -> Any:
        """Return the layout, and what `sparse_compressed_tensor` makes the tensor of."""
        parts = self._compressed, self._plain, self._value.detach(), self.shape
        return self.layout, parts

    def __reduce__(self) -> Any:
        parts = self._compressed, self._plain, self._value
        return make_compressed, (parts, tuple(self.shape), self.layout)

    def t(self) -> "CompressedTensor":
        """Return the transposed matrix, whose rows are these columns: no element moves."""
        values = self._value.transpose(1, 2) if self.layout in BLOCKS else self._value
        parts = self._compressed, self._plain, values
        return make_compressed(parts, self.shape[::-1], TRANSPOSED[self.layout])

    def transpose(self, dim0: int, dim1: int) -> "CompressedTensor":
        """Return the matrix with `dim0` and `dim1` swapped."""
        return self if dim0 % 2 == dim1 % 2 else self.t()

    def sum(self, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        """Return the sum over all elements."""
        if dim is None:
            return self._value.sum(dtype=dtype)
        return self._coo().sum(dim, keepdim, dtype=dtype)

    def norm(self, p: Any = 2, *args: Any, **options: Any) -> Any:
        """Return the norm over all elements."""
        return self._coo().norm(p, *args, **options)

    def select(self, dim: int, index: int) -> Any:
        """Return a row or a column, dense."""
        return self._coo().select(dim, index).to_dense()

    def __getitem__(self, index: Any) -> Any:
        found = self._coo()[index]
        return found.to_dense() if isinstance(found, SparseTensor) else found


def make_compressed(
    parts: tuple[Tensor, Tensor, Tensor], shape: Any, layout: Layout
) -> CompressedTensor:
    """Return a matrix of compressed and plain indices and values, unchecked."""
    tensor: CompressedTensor = object.__new__(CompressedTensor)
    result: CompressedTensor = tensor._become(parts, shape, layout)
    return result


def compress(coo: SparseTensor, layout: Layout) -> CompressedTensor:
    """Return a matrix of coordinates by rows or by columns."""
    coo = coo.coalesce()
    (outer, inner), values = coo._index._array, coo._value
    count = coo.shape[0]
    if layout is sparse_csc:
        order = np.lexsort((outer, inner))
        outer, inner, count = inner[order], outer[order], coo.shape[1]
        values = values[wrap(order)]
    starts = np.searchsorted(outer, np.arange(count + 1)).astype(np.int64)
    return make_compressed(
        (wrap(starts), wrap(np.ascontiguousarray(inner)), values), coo.shape, layout
    )


def blocks_of(dense: Tensor, block: tuple[int, int], layout: Layout) -> CompressedTensor:
    """Return the blocks of a dense matrix that are not zero.

    Raises:
        RuntimeError: if the blocks do not tile the matrix.
    """
    (rows, columns), (height, width) = dense.shape, block
    if rows % height or columns % width:
        raise RuntimeError(
            f"the sizes of a matrix must be divisible by those of its blocks, got "
            f"{[rows, columns]} and {list(block)}"
        )
    tiles = dense.reshape(rows // height, height, columns // width, width).transpose(1, 2)
    outer, inner = (tiles._array != 0).any((2, 3)).nonzero()
    count = rows // height
    if layout is sparse_bsc:
        order = np.lexsort((outer, inner))
        outer, inner, count = outer[order], inner[order], columns // width
        starts = np.searchsorted(inner, np.arange(count + 1))
        plain = outer
    else:
        starts, plain = np.searchsorted(outer, np.arange(count + 1)), inner
    values = tiles[wrap(outer), wrap(inner)]
    parts = wrap(starts.astype(np.int64)), wrap(plain.astype(np.int64)), values
    return make_compressed(parts, dense.shape, layout)
