"""Diagonals and triangles of matrices."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, metadata, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.broadcasting import wide_dtype
from offgrad.ops._core.dims import integer, normalize_dim
from offgrad.ops._core.dtypes import category, check_not_bool, check_tensor
from offgrad.ops._core.factories import placed
from offgrad.ops._shape.reshaping import reshape

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "diag",
    "diag_embed",
    "diagflat",
    "diagonal",
    "trace",
    "tril",
    "tril_indices",
    "triu",
    "triu_indices",
]


def diagonal_view(x: Array, offset: int, dim1: int, dim2: int) -> Array:
    """Return the diagonal of `x` between two dimensions as a last dimension, a writable view."""
    view = x.diagonal(offset, dim1, dim2)
    # NumPy's view is read-only, PyTorch's is not.
    view.flags.writeable = x.flags.writeable
    return view


class Diagonal(Op):
    """The diagonal between two dimensions, a view; keeps nothing."""

    is_view = True

    def forward(self, x: Array, offset: int, dim1: int, dim2: int) -> Array:
        self.self_sym_sizes, self.offset, self.dim1, self.dim2 = x.shape, offset, dim1, dim2
        return diagonal_view(x, offset, dim1, dim2)

    def backward(self, grad: "Tensor") -> Any:
        """Put the gradient on the diagonal."""
        where = {"offset": self.offset, "dim1": self.dim1, "dim2": self.dim2}
        return DiagonalBackward.apply(grad, shape=self.self_sym_sizes, **where)


class DiagonalCopy(Op):
    """The diagonal of a matrix, a copy; keeps nothing."""

    torch_name = "DiagonalBackward0_copy"

    def forward(self, x: Array, offset: int, dim1: int, dim2: int) -> Array:
        self.self_sym_sizes, self.offset, self.dim1, self.dim2 = x.shape, offset, dim1, dim2
        return memory.copy(x.diagonal(offset, dim1, dim2))

    def backward(self, grad: "Tensor") -> Any:
        """Put the gradient on the diagonal."""
        where = {"offset": self.offset, "dim1": self.dim1, "dim2": self.dim2}
        return DiagonalBackward.apply(grad, shape=self.self_sym_sizes, **where)


class DiagonalBackward(Op):
    """Zeros with a tensor on the diagonal; keeps nothing."""

    def forward(self, x: Array, shape: tuple[int, ...], offset: int, dim1: int, dim2: int) -> Array:
        self.offset, self.dim1, self.dim2 = offset, dim1, dim2
        out = memory.zeros(shape, x.dtype)
        diagonal_view(out, offset, dim1, dim2)[...] = x
        return out

    def backward(self, grad: "Tensor") -> Any:
        return diagonal(grad, self.offset, self.dim1, self.dim2)


class DiagEmbed(Op):
    """Matrices with a tensor's last dimension on a diagonal; keeps nothing."""

    def forward(self, x: Array, offset: int, dim1: int, dim2: int) -> Array:
        self.offset, self.dim1, self.dim2 = offset, dim1, dim2
        size = x.shape[-1] + abs(offset)
        first, second = dim1 % (x.ndim + 1), dim2 % (x.ndim + 1)
        shape = list(x.shape[:-1])
        for axis in sorted((first, second)):
            shape.insert(axis, size)
        out = memory.zeros(tuple(shape), x.dtype)
        diagonal_view(out, offset, first, second)[...] = x
        return out

    def backward(self, grad: "Tensor") -> Any:
        return diagonal(grad, self.offset, self.dim1, self.dim2)


class Trace(Op):
    """The sum of the diagonal of a matrix; keeps nothing."""

    def forward(self, x: Array) -> Array:
        self.self_sym_sizes = x.shape
        result = x.dtype if category(x.dtype) >= 2 else np.int64
        return np.asarray(np.trace(x, dtype=wide_dtype(np.dtype(result))), result)

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient to every element of the diagonal."""
        shape = self.self_sym_sizes
        return DiagonalBackward.apply(
            grad.expand(min(shape)), shape=shape, offset=0, dim1=0, dim2=1
        )


class Tril(Op):
    """The lower triangle of matrices, the rest zero; keeps nothing."""

    def forward(self, x: Array, diagonal: int) -> Array:
        self.diagonal = diagonal
        out = memory.empty(x.shape, x.dtype)
        kernels.triangle(x, out, diagonal, upper=False)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return tril(grad, self.diagonal)


class Triu(Op):
    """The upper triangle of matrices, the rest zero; keeps nothing."""

    def forward(self, x: Array, diagonal: int) -> Array:
        self.diagonal = diagonal
        out = memory.empty(x.shape, x.dtype)
        kernels.triangle(x, out, diagonal, upper=True)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return triu(grad, self.diagonal)


def _two_dims(ndim: int, dim1: int, dim2: int, where: str) -> None:
    if normalize_dim(dim1, ndim, where) == normalize_dim(dim2, ndim, where):
        raise RuntimeError(
            f"{where}: diagonal dimensions cannot be identical {dim1}, {dim2}: name two dimensions"
        )


def diagonal(input: "Tensor", offset: int = 0, dim1: int = 0, dim2: int = 1) -> "Tensor":
    """Return a view of the diagonal between two dimensions, which becomes the last dimension.

    Args:
        input: at least two dimensions.
        offset: the distance above (positive) or below the main diagonal.
        dim1: the dimension of rows.
        dim2: the dimension of columns.

    Raises:
        IndexError: if there is no such dimension.
        RuntimeError: if both dimensions are the same.
    """
    _two_dims(check_tensor(input, "diagonal")._array.ndim, dim1, dim2, "diagonal")
    where = {"offset": integer(offset, "diagonal", "offset"), "dim1": int(dim1), "dim2": int(dim2)}
    return Diagonal.apply(input, **where)


def diag_embed(input: "Tensor", offset: int = 0, dim1: int = -2, dim2: int = -1) -> "Tensor":
    """Return matrices with the last dimension of `input` on a diagonal, zero elsewhere."""
    ndim = metadata(check_tensor(input, "diag_embed")).ndim
    if not ndim:
        raise IndexError("diag_embed: at least one dimension is needed, got a scalar")
    _two_dims(ndim + 1, dim1, dim2, "diag_embed")
    offset = integer(offset, "diag_embed", "offset")
    return DiagEmbed.apply(input, offset=offset, dim1=int(dim1), dim2=int(dim2))


def diag(input: "Tensor", diagonal: int = 0) -> "Tensor":
    """Return the matrix with the vector `input` on a diagonal, or a copy of a matrix's diagonal."""
    ndim = check_tensor(input, "diag")._array.ndim
    if ndim == 1:
        return diag_embed(input, diagonal)
    if ndim != 2:
        raise RuntimeError(f"diag: a 1D or 2D tensor is needed, got a {describe(input)}")
    offset = integer(diagonal, "diag", "diagonal")
    return DiagonalCopy.apply(input, offset=offset, dim1=0, dim2=1)


def diagflat(input: "Tensor", offset: int = 0) -> "Tensor":
    """Return the matrix with the elements of `input` on a diagonal."""
    return diag_embed(reshape(check_tensor(input, "diagflat"), metadata(input).size), offset)


@full_precision
def trace(input: "Tensor") -> "Tensor":
    """Return the sum of the diagonal of a matrix."""
    if check_tensor(input, "trace")._array.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, got a {describe(input)}")
    check_not_bool(input, "trace")
    return Trace.apply(input)


def _matrices(input: "Tensor", where: str) -> "Tensor":
    if check_tensor(input, where)._array.ndim < 2:
        raise RuntimeError(
            f"{where}: input tensor must have at least 2 dimensions, got a {describe(input)}"
        )
    return input


def tril(input: "Tensor", diagonal: int = 0) -> "Tensor":
    """Return the lower triangle of matrices, zero above `diagonal`."""
    diagonal = integer(diagonal, "tril", "diagonal")
    return Tril.apply(_matrices(input, "tril"), diagonal=diagonal)


def triu(input: "Tensor", diagonal: int = 0) -> "Tensor":
    """Return the upper triangle of matrices, zero below `diagonal`."""
    diagonal = integer(diagonal, "triu", "diagonal")
    return Triu.apply(_matrices(input, "triu"), diagonal=diagonal)


def _triangle(
    find: Any, where: str, row: Any, col: Any, offset: Any, dtype: Any, device: Any
) -> "Tensor":
    rows, columns = integer(row, where, "row"), integer(col, where, "col")
    if min(rows, columns) < 0:
        name, size = ("row", rows) if rows < 0 else ("col", columns)
        raise RuntimeError(f"{where}: {name} must be non-negative, got {size}")
    if np.dtype(dtype) not in (np.int32, np.int64):
        raise NotImplementedError(f"{where} gives int32 or int64, not {np.dtype(dtype).name}")
    found = find(rows, integer(offset, where, "offset"), columns)
    return placed(wrap(np.stack(found).astype(dtype)), device)


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = np.int64, device: Any = None
) -> "Tensor":
    """Return the rows and columns of a lower triangle, shape [2, count]."""
    return _triangle(np.tril_indices, "tril_indices", row, col, offset, dtype, device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = np.int64, device: Any = None
) -> "Tensor":
    """Return the rows and columns of an upper triangle, shape [2, count]."""
    return _triangle(np.triu_indices, "triu_indices", row, col, offset, dtype, device)
