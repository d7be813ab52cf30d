"""Gathering and scattering along a dimension, by an index for each element or each entry."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.ops._core.dims import (
    normalize_dim,
)
from offgrad.ops._core.dtypes import as_tensor_of, check_tensor, shape_error
from offgrad.ops._shape.slicing import Embed

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["gather", "put", "scatter", "scatter_add", "take", "take_along_dim"]


def _grid(index: Array, dim: int) -> tuple[Array, ...]:
    grid = list(np.ogrid[tuple(slice(size) for size in index.shape)])
    if grid:
        grid[dim] = index
    return tuple(grid)


def _part(array: Array, index: Array) -> Array:
    """Return the part of `array` of the shape of `index`, from the first element on."""
    return array[tuple(slice(size) for size in index.shape)]


class Gather(Op):
    """Elements at an index tensor along a dimension; keeps the index."""

    def forward(self, x: Array, index: Array, dim: int) -> Array:
        self.dim, self.shape, self.sparse_grad = dim, x.shape, False
        self.save(index=index)
        if not x.ndim:
            return np.broadcast_to(x, index.shape).copy()
        return x[_grid(index, dim)]

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient at the index of its element."""
        index = self.saved("index")
        return scatter_add(grad.new_zeros(self.shape), self.dim, index, grad), None


class ScatterAdd(Op):
    """x with a source added at an index tensor along a dimension; keeps the index."""

    def forward(self, x: Array, index: Array, source: Array, dim: int) -> Array:
        self.dim, self.shape = dim, source.shape
        self.save(index=index)
        out = memory.copy(x)
        if x.ndim:
            np.add.at(out, _grid(index, dim), _part(source, index))
        else:
            np.add(out, source.sum(), out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """x gets the gradient; the source gathers it."""
        need_x, _, need_source = self.needs_input_grad
        grad_source = None
        if need_source:
            grad_source = _gather_gradient(grad, self.dim, self.saved("index"), self.shape)
        return grad if need_x else None, None, grad_source


def _gather_gradient(grad: "Tensor", dim: int, index: "Tensor", shape: tuple[int, ...]) -> "Tensor":
    """Return `grad` at `index`, padded with zeros to the shape of a larger source."""
    gathered = gather(grad, dim, index)
    if index.shape == shape:
        return gathered
    corner = tuple(slice(n) for n in index.shape)
    return Embed.apply(gathered, index=corner, shape=shape)


class Scatter(Op):
    """x with a source put at an index tensor along a dimension; keeps the index."""

    def forward(self, x: Array, index: Array, source: Array, dim: int) -> Array:
        self.dim, self.shape = dim, source.shape
        self.save(index=index)
        out = memory.copy(x)
        if index.size:
            out[_grid(index, dim)] = _part(source, index)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """The source gathers the gradient; x gets the rest."""
        need_x, _, need_source = self.needs_input_grad
        index = self.saved("index")
        return (
            scatter(grad, self.dim, index, 0) if need_x else None,
            None,
            _gather_gradient(grad, self.dim, index, self.shape) if need_source else None,
        )


class ScatterValue(Op):
    """x with a number put at an index tensor along a dimension; keeps the index."""

    torch_name = "ScatterBackward1"

    def forward(self, x: Array, index: Array, dim: int, value: Any) -> Array:
        self.dim = dim
        self.save(index=index)
        out = memory.copy(x)
        if index.size:
            out[_grid(index, dim)] = value
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Zero the gradient at the index."""
        return scatter(grad, self.dim, self.saved("index"), 0), None


class Take(Op):
    """Elements at positions in the flattened tensor; keeps the index."""

    def forward(self, x: Array, index: Array) -> Array:
        self.shape = x.shape
        self.save(index=index)
        out = memory.empty(index.shape, x.dtype)
        np.take(x, index, out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient at the index of its element."""
        zeros = grad.new_zeros(self.shape)
        return put(zeros, self.saved("index"), grad, accumulate=True), None


class Put(Op):
    """x with a source put, or added, at positions in the flattened tensor; keeps the index."""

    def forward(self, x: Array, index: Array, source: Array, accumulate: bool) -> Array:
        self.shape, self.accumulate = source.shape, accumulate
        self.save(index=index)
        out = memory.copy(x)
        flat, values = out.reshape(-1), source.reshape(index.shape)
        if accumulate:
            np.add.at(flat, index, values)
        else:
            flat[index] = values
        return out

    def backward(self, grad: "Tensor") -> Any:
        """The source takes the gradient; x gets the rest, or all of it if accumulating."""
        need_x, _, need_source = self.needs_input_grad
        index = self.saved("index")
        grad_x = grad if need_x else None
        if need_x and not self.accumulate:
            grad_x = put(grad, index, grad.new_zeros(index.shape))
        return grad_x, None, take(grad, index).reshape(self.shape) if need_source else None


def _check_index(
    input: "Tensor", axis: int, index: "Tensor", where: str, *others: "Tensor"
) -> None:
    if check_tensor(index, where)._array.dtype.kind not in "iu":
        raise RuntimeError(f"{where}: the index must be an integer tensor, got a {describe(index)}")
    if max(index._array.ndim, 1) != max(input._array.ndim, 1):
        raise RuntimeError(
            f"{where}: index and tensor must have as many dimensions, got a {describe(index)} for "
            f"a {describe(input)}"
        )
    size = input._array.shape[axis] if input._array.ndim else 1
    for other in others:
        for at, (index_size, max_size) in enumerate(
            zip(index._array.shape, other._array.shape, strict=False)
        ):
            if index_size > max_size and (at != axis or other is not input):
                raise shape_error(where, "the index must not be larger", index, other)
    if index._array.size and (index._array.min() < 0 or index._array.max() >= size):
        raise RuntimeError(
            f"{where}: indices must be from 0 to {size - 1}, got {index._array.min()} to "
            f"{index._array.max()}"
        )


def gather(input: "Tensor", dim: int, index: "Tensor", *, sparse_grad: bool = False) -> "Tensor":
    """Return ``out[i][j] = input[index[i][j]][j]`` (for dim 0), of the shape of `index`.

    Raises:
        RuntimeError: if the index is not an integer tensor that fits; if `sparse_grad`, which is
            not supported.
    """
    if sparse_grad:
        raise NotImplementedError("gather: sparse gradients are not supported")
    axis = normalize_dim(dim, check_tensor(input, "gather")._array.ndim, "gather")
    _check_index(input, axis, index, "gather", input)
    return Gather.apply(input, index, dim=axis)


def take_along_dim(input: "Tensor", indices: "Tensor", dim: int | None = None) -> "Tensor":
    """Return `gather` after broadcasting the other dimensions; without `dim`, `take`."""
    x = check_tensor(input, "take_along_dim")
    if dim is None:
        return gather(x.reshape(-1), 0, indices.reshape(-1))
    axis = normalize_dim(dim, x._array.ndim, "take_along_dim")
    if x._array.ndim != indices._array.ndim:
        raise shape_error("take_along_dim", "both need the same number of dimensions", x, indices)
    shapes = [[1 if at == axis else n for at, n in enumerate(each.shape)] for each in (x, indices)]
    try:
        common = list(np.broadcast_shapes(*shapes))
    except ValueError:
        raise shape_error(
            "take_along_dim", "sizes must be equal or 1 except along dim", x, indices
        ) from None
    for tensor in (x, indices):
        common[axis] = tensor.shape[axis]
        if tensor is x:
            x = x.expand(common)
        else:
            indices = indices.expand(common)
    return gather(x, axis, indices)


def scatter_add(input: "Tensor", dim: int, index: "Tensor", src: "Tensor") -> "Tensor":
    """Return `input` with `src` added at `index` along `dim`; repeated indices are summed."""
    axis = normalize_dim(dim, check_tensor(input, "scatter_add")._array.ndim, "scatter_add")
    if check_tensor(src, "scatter_add")._array.dtype != input._array.dtype:
        raise shape_error("scatter_add", "dtypes must be equal", input, src)
    _check_index(input, axis, index, "scatter_add", input, src)
    return ScatterAdd.apply(input, index, src, dim=axis)


def scatter(
    input: "Tensor",
    dim: int,
    index: "Tensor",
    src: Any = None,
    *,
    value: Any = None,
    reduce: str | None = None,
) -> "Tensor":
    """Return `input` with a tensor `src`, or a number, put at `index` along `dim`.

    Args:
        input: the tensor.
        dim: the dimension.
        index: integers, with as many dimensions as `input`; of repeated ones the last wins.
        src: a tensor at least as large as `index`, or a number.
        value: a number, instead of `src`.
        reduce: ``"add"`` is `scatter_add`; others are not supported.

    Raises:
        RuntimeError: if shapes or dtypes do not fit.
    """
    source = value if src is None else src
    axis = normalize_dim(dim, check_tensor(input, "scatter")._array.ndim, "scatter")
    if reduce is not None:
        if reduce != "add":
            raise NotImplementedError(f"scatter: reduce={reduce!r} is not supported")
        if not isinstance(source, TensorBase):
            source = as_tensor_of(source, input._array.dtype, "scatter").expand(index.shape)
        return scatter_add(input, axis, index, source)
    if isinstance(source, TensorBase):
        if source._array.dtype != input._array.dtype:
            raise shape_error("scatter", "dtypes must be equal", input, source)
        _check_index(input, axis, index, "scatter", input, source)  # type: ignore[arg-type]
        return Scatter.apply(input, index, source, dim=axis)  # type: ignore[arg-type]
    _check_index(input, axis, index, "scatter", input)
    as_tensor_of(source, input._array.dtype, "scatter")
    return ScatterValue.apply(input, index, dim=axis, value=source)


def _positions(input: "Tensor", index: "Tensor", where: str) -> "Tensor":
    """Return `index`, which must hold positions in the flattened tensor."""
    if check_tensor(index, where)._array.dtype.kind not in "iu":
        raise RuntimeError(f"{where}: the index must be an integer tensor, got a {describe(index)}")
    size = check_tensor(input, where)._array.size
    if index._array.size and not (-size <= index._array.min() and index._array.max() < size):
        raise IndexError(
            f"{where}: positions must be from {-size} to {size - 1}, got {index._array.min()} to "
            f"{index._array.max()}"
        )
    return index


def take(input: "Tensor", index: "Tensor") -> "Tensor":
    """Return the elements at positions `index` of the flattened tensor, in the shape of `index`.

    Raises:
        IndexError: if a position is out of range.
    """
    return Take.apply(input, _positions(input, index, "take"))


def put(input: "Tensor", index: "Tensor", source: "Tensor", accumulate: bool = False) -> "Tensor":
    """Return a copy of `input` with `source` put, or added, at positions of the flattened tensor.

    Raises:
        IndexError: if a position is out of range, or `source` and `index` differ in size.
        RuntimeError: if the dtypes differ.
    """
    _positions(input, index, "put")
    if source._array.dtype != input._array.dtype:
        raise shape_error("put", "dtypes must be equal", input, source)
    if source._array.size != index._array.size:
        raise IndexError(
            f"put: an element for each position is needed, got a {describe(source)} for a "
            f"{describe(index)}"
        )
    return Put.apply(input, index, source, accumulate=accumulate)
