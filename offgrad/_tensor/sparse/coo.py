"""Sparse tensors of coordinates."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NoReturn

import numpy as np

from offgrad._layout import layout, sparse_coo
from offgrad._size import Size
from offgrad._tensor.sparse import products, reductions, shapes
from offgrad._tensor.sparse.common import SparseBase
from offgrad._tensor.sparse.positions import positions
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.dims import given_once, normalize_dim
from offgrad.ops._core.sparse_data import SparseArray


class SparseTensor(SparseBase):
    """A tensor of which some elements are stored: indices [d, n], values [n, ...], others zero.

    The first d dimensions are sparse, the others dense. Elements given twice count as their sum.
    History is that of the values. Operations without a sparse form raise; see `to_dense`.
    """

    is_sparse = True
    layout: layout = sparse_coo
    _index: Tensor
    _is_coalesced: bool

    def _become(
        self, index: Tensor, values: Tensor, shape: Sequence[int], is_coalesced: bool
    ) -> "SparseTensor":
        """Take these elements."""
        self._index, self._value, self._is_coalesced = index, values, is_coalesced
        self._array = SparseArray(tuple(shape), values._array.dtype)  # type: ignore[assignment]
        self._storage = values._storage
        return self

    def _with(self, values: Tensor) -> "SparseTensor":
        """Return a tensor with the same indices and other values."""
        return make_coo(self._index, values, self.shape, self._is_coalesced)

    def _take(self, other: "SparseTensor") -> "SparseTensor":
        """Take the elements of `other`, as in-place operations do."""
        return self._become(other._index, other._value, other.shape, other._is_coalesced)

    def _coo(self) -> "SparseTensor":
        return self

    def _from_coo(self, coo: "SparseTensor") -> "SparseTensor":
        return coo

    def __repr__(self, **_: Any) -> str:
        lines = [
            f"tensor(indices={self._shown(self._index, 15)},",
            f"       values={self._shown(self._value, 14)},",
        ]
        return self._with_suffix("\n".join(lines), new_line=True)

    def sparse_dim(self) -> int:
        """Return the number of sparse dimensions."""
        return self._index._array.shape[0]

    def _indices(self) -> Tensor:
        return self._index

    def indices(self) -> Tensor:
        """Return the indices [d, n] of a coalesced tensor."""
        self._check_coalesced("indices")
        return self._index

    def values(self) -> Tensor:
        """Return the values [n, ...] of a coalesced tensor."""
        self._check_coalesced("values")
        return self._value

    def _check_coalesced(self, name: str) -> None:
        if not self._is_coalesced:
            raise RuntimeError(
                f"{name}() of an uncoalesced tensor: its indices are not sorted, or given "
                f"more than once; call coalesce() first, or _{name}()"
            )

    def is_coalesced(self) -> bool:
        """Return whether the indices are sorted and each is given once."""
        return self._is_coalesced

    def _coalesced_(self, coalesced: bool) -> "SparseTensor":
        self._is_coalesced = coalesced
        return self

    def coalesce(self) -> "SparseTensor":
        """Return the same tensor with sorted indices, each given once, and their values summed."""
        if self._is_coalesced:
            return self
        flat = positions(self._index._array, self._sparse_shape())
        unique, first, places = np.unique(flat, return_index=True, return_inverse=True)
        index = np.ascontiguousarray(self._index._array[:, first])
        values = self._value.new_zeros((len(unique), *self._value._array.shape[1:]))
        values = values.index_add(0, wrap(places.reshape(-1).astype(np.int64)), self._value)
        return make_coo(wrap(index), values, self.shape, True)

    def _sparse_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[: self.sparse_dim()])

    def to_dense(self, dtype: Any = None, *, masked_grad: Any = None) -> Tensor:
        """Return all elements, with zeros where none is stored."""
        zeros = self._value.new_zeros(self.shape)
        if self.sparse_dim():
            index = tuple(wrap(each) for each in self._index._array)
            zeros = zeros.index_put(index, self._value, accumulate=True)
        else:
            zeros = zeros + self._value.sum(0)
        return zeros if dtype is None else zeros.to(dtype)

    @property
    def grad(self) -> "Tensor | None":
        """Of a leaf: the gradient of the stored elements, sparse, each index once."""
        grad = self._value.grad
        if grad is None or self._value._grad_fn is not None:
            return grad
        flat = positions(self._index._array, self._sparse_shape())
        _, first = np.unique(flat, return_index=True)
        index = np.ascontiguousarray(self._index._array[:, first])
        return make_coo(wrap(index), grad[wrap(first)], self.shape, True)

    @grad.setter
    def grad(self, value: "Tensor | None") -> None:
        if value is not None:
            raise RuntimeError("the gradient of a sparse tensor can only be set to None")
        self._value.grad = None

    @grad.deleter
    def grad(self) -> None:
        self._value.grad = None

    def clone(self, *, memory_format: Any = None) -> "SparseTensor":
        """Return a copy; gradients flow to this tensor."""
        return make_coo(self._index.clone(), self._value.clone(), self.shape, self._is_coalesced)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        known = memo.get(id(self))
        if known is None:
            parts = deepcopy(self._index, memo), deepcopy(self._value, memo)
            known = memo[id(self)] = make_coo(*parts, self.shape, self._is_coalesced)
        return known

    def __copy__(self) -> Any:
        return self._with(self._value)

    def _parts(self) -> Any:
        """Return the layout, and what `sparse_coo_tensor` makes the tensor of."""
        return self.layout, (self._index, self._value.detach(), self.shape, self._is_coalesced)

    def __reduce__(self) -> Any:
        return make_coo, (self._index, self._value, tuple(self.shape), self._is_coalesced)

    # Sizes and elements in place

    def sparse_resize_(self, size: Any, sparse_dim: int, dense_dim: int) -> "SparseTensor":
        """Change the shape, which may only grow while elements are stored; return the tensor.

        Raises:
            RuntimeError: for another number of sparse or dense dimensions, or a smaller size,
                unless the tensor stores nothing.
        """
        shape = tuple(int(each) for each in size)
        if len(shape) != sparse_dim + dense_dim:
            raise RuntimeError(
                f"sparse_resize_: the number of dimensions must be sparse_dim ({sparse_dim}) + "
                f"dense_dim ({dense_dim}), got the size {shape}"
            )
        same_dims = (sparse_dim, dense_dim) == (self.sparse_dim(), self.dense_dim())
        if not self._nnz():
            return self._empty(shape, sparse_dim)
        dense_is_same = shape[sparse_dim:] == tuple(self.shape[sparse_dim:])
        if not same_dims or not dense_is_same or any(map(int.__lt__, shape, self.shape)):
            raise RuntimeError(
                "sparse_resize_: a tensor that stores elements keeps its sparse and dense "
                f"dimensions, and its sizes may grow only; got {shape} for {tuple(self.shape)}"
            )
        return self._become(self._index, self._value, shape, self._is_coalesced)

    def sparse_resize_and_clear_(
        self, size: Any, sparse_dim: int, dense_dim: int
    ) -> "SparseTensor":
        """Change the shape and drop all elements; return the tensor."""
        return self._empty(tuple(int(each) for each in size), sparse_dim)

    def resize_as_sparse_(self, other: "SparseTensor") -> "SparseTensor":
        """Change the shape and the numbers of dimensions to those of `other`."""
        sizes = other.shape, other.sparse_dim(), other.dense_dim()
        if (self.shape, self.sparse_dim(), self.dense_dim()) == sizes:
            return self
        return self.sparse_resize_(*sizes)

    def _empty(self, shape: Sequence[int], sparse_dim: int) -> "SparseTensor":
        index = wrap(np.empty((sparse_dim, 0), np.int64))
        values = self._value.detach().new_empty((0, *shape[sparse_dim:]))
        return self._become(index, values, shape, self._is_coalesced)

    def zero_(self) -> "SparseTensor":
        """Drop all elements; return the tensor."""
        self._empty(self.shape, self.sparse_dim())
        self._is_coalesced = True
        return self

    def copy_(self, source: Any, non_blocking: bool = False, *, name: str = "copy_") -> Any:
        """Take a copy of the elements of the sparse tensor `source`; return this tensor."""
        if not isinstance(source, SparseBase):
            self._refuse_dense(name, source)
        sparse: Any = source
        return self._take(sparse._coo().clone().to(self.dtype))

    def _refuse_dense(self, name: str, other: Any) -> NoReturn:
        got = describe(other) if isinstance(other, Tensor) else type(other).__name__
        raise RuntimeError(f"{name} of a sparse tensor takes a sparse tensor, got a {got}")

    # Shapes

    def index_select(self, dim: int, index: Tensor) -> "SparseTensor":
        """Return the entries of `dim` at the integers `index`."""
        return shapes.index_select(self, normalize_dim(dim, self.ndim, "index_select"), index)

    def select(self, dim: int, index: int) -> Any:
        """Return the entry `index` of `dim`; dense if no sparse dimension remains."""
        return shapes.select(self, normalize_dim(dim, self.ndim, "select"), index)

    def __getitem__(self, index: Any) -> Any:
        return shapes.getitem(self, index)

    def permute(self, *order: Any, dims: Any = None) -> "SparseTensor":
        """Return the tensor with its sparse dimensions, and its dense ones, in another order."""
        return shapes.permute(self, given_once(order, dims, "permute"))

    def transpose(self, dim0: int, dim1: int) -> "SparseTensor":
        """Return the tensor with `dim0` and `dim1` swapped, both sparse or both dense."""
        return shapes.transpose(self, dim0, dim1)

    def t(self) -> "SparseTensor":
        """Return the transposed matrix."""
        if self.ndim > 2 or self.dense_dim():
            raise RuntimeError(
                "t() is for sparse matrices without dense dimensions, got a sparse tensor of shape "
                f"{list(self.shape)}"
            )
        return self if self.ndim < 2 else self.transpose(0, 1)

    def unsqueeze(self, dim: int) -> "SparseTensor":
        """Return the tensor with a dimension of size 1 before `dim`."""
        return shapes.unsqueeze(self, dim)

    # The rest is composed of functions of this folder.

    sum, norm, any = reductions.sum, reductions.norm, reductions.any  # type: ignore[assignment]
    softmax, log_softmax = reductions.softmax, reductions.log_softmax
    smm, sspaddmm = products.smm, products.sspaddmm

    def zeros_like(self, dtype: Any = None, **options: Any) -> "SparseTensor":
        """Return a sparse tensor of the shape that stores nothing: `offgrad.zeros_like`."""
        empty = self._with(self._value.detach()).zero_()
        empty = empty if dtype is None else empty.to(dtype)
        return empty.requires_grad_() if options.get("requires_grad") else empty

    empty_like = zeros_like


def make_coo(
    index: Tensor, values: Tensor, shape: Sequence[int], is_coalesced: bool = False
) -> SparseTensor:
    """Return a sparse tensor of these elements, unchecked."""
    tensor: SparseTensor = object.__new__(SparseTensor)
    return tensor._become(index, values, Size(shape), is_coalesced)
