"""Whole entries along a dimension, chosen by a vector of indices."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.autocast import widest_precision
from offgrad.ops._core.dims import (
    normalize_dim,
)
from offgrad.ops._core.dtypes import (
    as_factor,
    as_tensor_of,
    category,
    check_tensor,
    element,
    shape_error,
)
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._core.updates import Update
from offgrad.ops._indexing.masking import filled

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["index_add", "index_copy", "index_fill", "index_select"]


_INDEX_DTYPES = (np.int32, np.int64)

_MIN_RUN = 64
"""Elements in a row from which NumPy fills chosen rows faster than a mask."""


class _AlongDim(Op):
    """An operation on the entries that a vector of indices chooses; keeps the index.

    A tensor without dimensions is its own single entry.
    """

    def keep(self, index: Array, dim: int) -> None:
        """Save the index."""
        self.dim = dim
        self.save(index=index)

    def entries(self, x: Array, index: Array, dim: int) -> tuple[Any, Any]:
        """Return an array with dimensions over `x`, and the NumPy index for it."""
        return np.atleast_1d(x), (*(slice(None),) * dim, np.atleast_1d(index))

    def filled_entries(self, x: Array, index: Array, value: Any, dim: int) -> Array:
        """Save the index; return x with a number in the chosen entries."""
        self.keep(index, dim)
        source, chosen = self.entries(x, index, dim)
        inner = source.shape[dim + 1 :]
        if prod(inner) >= _MIN_RUN:
            out = memory.copy(source)
            out[chosen] = value
        else:
            mask = np.zeros((source.shape[dim], *(1,) * len(inner)), bool)
            mask[chosen[dim]] = True
            out = filled(source, mask, value)
        return out.reshape(x.shape)


def _spread(index: Array, like: Array, dim: int) -> Array:
    """Return a vector of entries along `dim` as an index for each element of `like`."""
    return np.broadcast_to(index.reshape(-1, *(1,) * (like.ndim - dim - 1)), like.shape)


class IndexSelect(_AlongDim):
    """The chosen entries; keeps the index."""

    def forward(self, x: Array, index: Array, dim: int) -> Array:
        self.self_sym_sizes = x.shape
        self.keep(index, dim)
        source, _ = self.entries(x, index, dim)
        out = memory.empty((*x.shape[:dim], index.size, *x.shape[dim + 1 :]), x.dtype)
        kernels.take_rows(source, np.atleast_1d(index), dim, out)
        return out if x.ndim else out.reshape(())

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient to its entry."""
        where: Any = {"dim": self.dim, "shape": self.self_sym_sizes}
        return IndexSelectBackward.apply(grad, self.saved("index"), **where), None


class IndexSelectBackward(_AlongDim):
    """Zeros with a tensor's entries added to the chosen ones; keeps the index."""

    torch_name = "IndexAddBackward0"

    def forward(self, source: Array, index: Array, dim: int, shape: tuple[int, ...]) -> Array:
        out = memory.empty(shape, source.dtype)
        self.keep(index, dim)
        values, target = memory.contiguous(np.atleast_1d(source)), np.atleast_1d(out)
        kernels.add_rows(values, np.atleast_1d(index), dim, target)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return index_select(grad, self.dim, self.saved("index")), None


class IndexAdd(Update, _AlongDim):
    """x with a multiple of a source's entries added to the chosen ones; keeps the index."""

    in_place_name = "index_add_"

    def setup_context(self, x: Array, index: Array, source: Array, dim: int, alpha: Any) -> None:
        self.alpha, self.source_dim = alpha, source.ndim
        self.keep(index, dim)

    def change(self, out: Array, index: Array, source: Array, dim: int, alpha: Any) -> None:
        target, chosen = self.entries(out, index, dim)
        values = source if alpha == 1 else source * source.dtype.type(alpha)
        contiguous = memory.contiguous(np.atleast_1d(values))
        kernels.scatter_add(target, chosen[dim], contiguous, dim)

    def backward(self, grad: "Tensor") -> Any:
        """x gets the gradient; the source gets that of the chosen entries."""
        need_x, _, need_source = self.needs_input_grad
        grad_source = None
        if need_source:
            grad_source = index_select(grad, self.dim, self.saved("index"))
            grad_source = grad_source if self.alpha == 1 else grad_source * np.conj(self.alpha)
        return grad if need_x else None, None, grad_source


class IndexCopy(Update, _AlongDim):
    """x with a source's entries in place of the chosen ones; keeps the index."""

    in_place_name = "index_copy_"

    def setup_context(self, x: Array, index: Array, source: Array, dim: int) -> None:
        self.source_dim = source.ndim
        self.keep(index, dim)

    def change(self, out: Array, index: Array, source: Array, dim: int) -> None:
        target, chosen = self.entries(out, index, dim)
        values = memory.contiguous(np.atleast_1d(source))
        kernels.scatter(target, _spread(chosen[dim], values, dim), values, dim)

    def backward(self, grad: "Tensor") -> Any:
        """The source gets the gradient of the chosen entries, x that of the others."""
        need_x, _, need_source = self.needs_input_grad
        index = self.saved("index")
        return (
            index_fill(grad, self.dim, index, 0) if need_x else None,
            None,
            index_select(grad, self.dim, index) if need_source else None,
        )


class IndexFill(Update, _AlongDim):
    """x with a number in the chosen entries; keeps the index."""

    in_place_name = "index_fill_"

    def forward(self, x: Array, index: Array, dim: int, value: Any) -> Array:
        return self.filled_entries(x, index, value, dim)

    def setup_context(self, x: Array, index: Array, dim: int, value: Any) -> None:
        self.keep(index, dim)

    def change(self, out: Array, index: Array, dim: int, value: Any) -> None:
        target, chosen = self.entries(out, index, dim)
        target[chosen] = value

    def backward(self, grad: "Tensor") -> Any:
        """Zero the gradient of filled entries."""
        return index_fill(grad, self.dim, self.saved("index"), 0), None


class IndexFillTensor(Update, _AlongDim):
    """x with a tensor without dimensions in the chosen entries; keeps the index."""

    torch_name = "IndexFillBackward1"
    in_place_name = "index_fill_"

    def forward(self, x: Array, index: Array, value: Array, dim: int) -> Array:
        return self.filled_entries(x, index, value, dim)

    def setup_context(self, x: Array, index: Array, value: Array, dim: int) -> None:
        self.keep(index, dim)

    def change(self, out: Array, index: Array, value: Array, dim: int) -> None:
        target, chosen = self.entries(out, index, dim)
        target[chosen] = value

    def backward(self, grad: "Tensor") -> Any:
        """The value gets the sum over filled entries, each once; x the gradient of the others."""
        need_x, _, need_value = self.needs_input_grad
        index = self.saved("index")
        grad_value = None
        if need_value:
            size = grad.shape[self.dim] if grad.ndim else 1
            filled = wrap(np.unique(index._array % size))
            grad_value = index_select(grad, self.dim, filled).sum()
        return index_fill(grad, self.dim, index, 0) if need_x else None, None, grad_value


def check_entries(
    input: "Tensor", dim: int, index: "Tensor", where: str, dtypes: tuple[Any, ...] = _INDEX_DTYPES
) -> int:
    """Return the dimension, counted from the front; check that the index is a vector of entries."""
    axis = normalize_dim(dim, check_tensor(input, where)._array.ndim, where)
    is_fill = where == "index_fill"
    if check_tensor(index, where)._array.dtype not in dtypes:
        names = " or ".join(np.dtype(each).name for each in dtypes)
        message = f"{where}(): Expected dtype {names} for index, got a {describe(index)}"
        raise IndexError(message) if is_fill else RuntimeError(message)
    if index._array.ndim > 1:
        message = f"{where}: Index is supposed to be a vector, got a {describe(index)}"
        raise RuntimeError(message) if is_fill else IndexError(message)
    size = input._array.shape[axis] if input._array.ndim else 1
    low = -size if is_fill else 0
    if not kernels.are_within(index._array, low, size):
        lowest, highest = index._array.min(), index._array.max()
        problem = "index out of range in self"
        if where in ("index_fill", "index_copy"):
            wrong = lowest if lowest < low else highest
            problem = f"index {wrong} is out of bounds for dimension {axis} with size {size}"
        raise IndexError(
            f"{where}: {problem}: indices must be from {low} to {size - 1}, got {lowest} to "
            f"{highest}"
        )
    return axis


def check_source(
    input: "Tensor", axis: int, index: "Tensor", source: "Tensor", where: str
) -> "Tensor":
    """Return `source`, which must have an entry for each index."""
    shape = input._array.shape
    if not shape and index._array.size != 1:
        raise IndexError(f"{where}: a scalar has one entry, got a {describe(index)} for it")
    expected = (*shape[:axis], index._array.size, *shape[axis + 1 :]) if shape else ()
    if check_tensor(source, where)._array.dtype != input._array.dtype:
        raise shape_error(where, "self and source expected to have the same dtype", input, source)
    # A tensor without dimensions is its own single entry.
    one_entry = source._array.size == 1 == index._array.size and max(source.ndim, len(shape)) == 1
    if source._array.shape != expected and not (one_entry and where == "index_copy"):
        if where == "index_add" and source.ndim > 0 and source.ndim != len(shape):
            raise RuntimeError(
                f"{where}: source tensor shape must match self tensor shape, excluding the "
                f"specified dimension, so be {list(expected)}, got a {describe(source)}"
            )
        message = (
            f"{where}: Number of indices ({index._array.size}) should be equal to that of entries "
            f"of the source, shape {list(expected)}, got a {describe(source)}"
        )
        counts_differ = source.ndim != len(shape) or (
            source.ndim > 0 and source._array.shape[axis] != index._array.size
        )
        if where == "index_copy" and source.ndim and counts_differ:
            raise IndexError(message)
        raise RuntimeError(message)
    return source if source._array.shape == expected else source.reshape(expected)


@with_numpy_names
def index_select(input: "Tensor", dim: int, index: "Tensor") -> "Tensor":
    """Return the entries `index`, a vector, along `dim`.

    Raises:
        IndexError: if there is no such entry, or the index is not a vector.
        RuntimeError: if the index is neither int32 nor int64.
    """
    axis = check_entries(input, dim, index, "index_select")
    if not input._array.ndim and index._array.size != 1:
        raise RuntimeError(f"index_select: a scalar has one entry, got a {describe(index)}")
    return IndexSelect.apply(input, index, dim=axis)


@with_numpy_names
def index_add(
    input: "Tensor", dim: int, index: "Tensor", source: "Tensor", *, alpha: Any = 1
) -> "Tensor":
    """Return `input` with ``alpha * source`` added to the entries `index` along `dim`.

    Raises:
        IndexError: if there is no such entry.
        RuntimeError: if the source does not fit.
    """
    axis = check_entries(input, dim, index, "index_add")
    values = check_source(input, axis, index, source, "index_add")
    factor = as_factor(alpha, values._array.dtype, "index_add")
    return IndexAdd.apply(input, index, values, dim=axis, alpha=factor)


@with_numpy_names
@widest_precision
def index_copy(input: "Tensor", dim: int, index: "Tensor", source: "Tensor") -> "Tensor":
    """Return `input` with `source` in place of the entries `index` along `dim`.

    Raises:
        IndexError: if there is no such entry.
        RuntimeError: if the source does not fit.
    """
    axis = check_entries(input, dim, index, "index_copy", (np.int64,))
    return IndexCopy.apply(
        input, index, check_source(input, axis, index, source, "index_copy"), dim=axis
    )


@with_numpy_names
def index_fill(input: "Tensor", dim: int, index: "Tensor", value: Any) -> "Tensor":
    """Return `input` with `value`, a number or a scalar tensor, in the entries `index` along `dim`.

    Raises:
        IndexError: if there is no such entry, or the index is not int64.
        RuntimeError: if the value does not fit into the dtype.
    """
    axis = check_entries(input, dim, index, "index_fill", (np.int64,))
    if isinstance(value, TensorBase):
        if value._array.ndim:
            raise RuntimeError(
                f"index_fill only supports a 0-dimensional value tensor, got a {describe(value)}"
            )
        if category(value._array.dtype) == 3 != category(input._array.dtype):
            raise RuntimeError(
                "index_fill: value cannot be converted to type of this "
                f"{describe(input)}: it is complex"
            )
        cast = as_tensor_of(value, input._array.dtype, "index_fill")  # type: ignore[arg-type]
        return IndexFillTensor.apply(input, index, cast, dim=axis)
    number = element(value, input._array.dtype, "index_fill")
    return IndexFill.apply(input, index, dim=axis, value=number)
