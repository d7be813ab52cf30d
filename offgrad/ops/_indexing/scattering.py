"""Gathering and scattering along a dimension, by an index for each element or each entry."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.dims import (
    normalize_dim,
)
from offgrad.ops._core.dtypes import check_tensor, element, shape_error
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._core.sparse_data import sparse_gradient
from offgrad.ops._core.updates import Update
from offgrad.ops._reduction.extrema import Scattered
from offgrad.ops._shape.slicing import Embed

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["gather", "put", "scatter", "scatter_add", "take", "take_along_dim"]


def _part(array: Array, index: Array) -> Array:
    """Return the part of `array` of the shape of `index`, from the first element on."""
    return array[tuple(slice(size) for size in index.shape)]


class _AtIndex(Op):
    """An operation on the elements that an index tensor chooses along a dimension; keeps the index.

    Tensors without dimensions count as vectors of one element.
    """

    def keep(self, index: Array, dim: int) -> None:
        """Save the index."""
        self.dim = dim
        self.save(index=index)

    def source_gradient(self, grad: "Tensor", shape: tuple[int, ...]) -> "Tensor":
        """Return `grad` at the index, padded with zeros to the shape of a larger source."""
        index = self.saved("index")
        gathered = gather(grad, self.dim, index)
        if index.shape == shape:
            return gathered
        corner = index.shape or (1,)
        where = tuple(slice(n) for n in corner)
        padded = Embed.apply(gathered.reshape(corner), index=where, shape=shape or (1,))
        return padded.reshape(shape)


class Gather(_AtIndex):
    """Elements at an index tensor along a dimension; keeps the index."""

    def forward(self, x: Array, index: Array, dim: int, sparse_grad: bool = False) -> Array:
        self.shape, self.sparse_grad = x.shape, sparse_grad
        self.keep(index, dim)
        at = np.atleast_1d(index)
        out = memory.empty(index.shape, x.dtype)
        kernels.gather(np.atleast_1d(x), at, dim, out.reshape(at.shape))
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient at the index of its element."""
        index = self.saved("index")
        if self.sparse_grad and self.shape:
            at = np.stack([np.asarray(each).reshape(-1) for each in self._places(index._array)])
            return sparse_gradient(wrap(at), grad.reshape(-1), self.shape), None
        return Scattered.apply(grad, index, dim=self.dim, shape=self.shape), None

    def _places(self, index: Array) -> Any:
        """Return the index of each element of x that was taken, in arrays of one shape."""
        places: list[Any] = list(np.indices(index.shape))
        places[self.dim] = index
        return places


class ScatterAdd(Update, _AtIndex):
    """x with a source added at an index tensor along a dimension; keeps the index."""

    in_place_name = "scatter_add_"

    @classmethod
    def with_samples(cls, size: int, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters for inputs with a further first dimension."""
        dim = parameters["dim"]
        return {**parameters, "dim": dim if dim < 0 else dim + 1}

    def setup_context(self, x: Array, index: Array, source: Array, dim: int) -> None:
        self.shape = source.shape
        self.keep(index, dim)

    def change(self, out: Array, index: Array, source: Array, dim: int) -> None:
        at = np.atleast_1d(index)
        if not at.size:  # it may have another number of dimensions
            return
        values = memory.contiguous(_part(np.atleast_1d(source), at))
        kernels.scatter_add(np.atleast_1d(out), at, values, dim)

    def backward(self, grad: "Tensor") -> Any:
        """x gets the gradient; the source gathers it."""
        need_x, _, need_source = self.needs_input_grad
        return (
            grad if need_x else None,
            None,
            self.source_gradient(grad, self.shape) if need_source else None,
        )


class Scatter(Update, _AtIndex):
    """x with a source put at an index tensor along a dimension; keeps the index."""

    in_place_name = "scatter_"

    def setup_context(self, x: Array, index: Array, source: Array, dim: int) -> None:
        self.shape = source.shape
        self.keep(index, dim)

    def change(self, out: Array, index: Array, source: Array, dim: int) -> None:
        at = np.atleast_1d(index)
        if not at.size:  # it may have another number of dimensions
            return
        values = memory.contiguous(_part(np.atleast_1d(source), at))
        kernels.scatter(np.atleast_1d(out), at, values, dim)

    def backward(self, grad: "Tensor") -> Any:
        """The source gathers the gradient; x gets the rest."""
        need_x, _, need_source = self.needs_input_grad
        return (
            scatter(grad, self.dim, self.saved("index"), 0) if need_x else None,
            None,
            self.source_gradient(grad, self.shape) if need_source else None,
        )


class ScatterValue(Update, _AtIndex):
    """x with a number put at an index tensor along a dimension; keeps the index."""

    torch_name = "ScatterBackward1"
    in_place_name = "scatter_"

    def setup_context(self, x: Array, index: Array, dim: int, value: Any) -> None:
        self.keep(index, dim)

    def change(self, out: Array, index: Array, dim: int, value: Any) -> None:
        at = np.atleast_1d(index)
        if not at.size:  # it may have another number of dimensions
            return
        values = memory.empty(at.shape, out.dtype)
        values[...] = value
        kernels.scatter(np.atleast_1d(out), at, values, dim)

    def backward(self, grad: "Tensor") -> Any:
        """Zero the gradient at the index."""
        return scatter(grad, self.dim, self.saved("index"), 0), None


class Take(Op):
    """Elements at positions in the flattened tensor; keeps the index."""

    def forward(self, x: Array, index: Array) -> Array:
        self.shape = x.shape
        self.save(index=index)
        out = memory.empty(index.shape, x.dtype)
        kernels.take_rows(x.reshape(-1), index, 0, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Add each gradient at the index of its element."""
        size = prod(self.shape)
        index = _from_front(self.saved("index"), size).reshape(-1)
        scattered = Scattered.apply(grad.reshape(-1), index, dim=0, shape=(size,))
        return scattered.reshape(self.shape), None


class Put(Update):
    """x with a source put, or added, at positions in the flattened tensor; keeps the index."""

    in_place_name = "put_"

    def setup_context(self, x: Array, index: Array, source: Array, accumulate: bool) -> None:
        self.shape, self.accumulate = source.shape, accumulate
        self.save(index=index)

    def change(self, out: Array, index: Array, source: Array, accumulate: bool) -> None:
        flat, values = out.reshape(-1), source.reshape(index.shape)
        if accumulate:
            at = np.where(index < 0, index + flat.size, index).reshape(-1)
            kernels.scatter_add(flat, at, memory.contiguous(values).reshape(-1), 0)
        else:
            flat[index] = values

    def backward(self, grad: "Tensor") -> Any:
        """The source takes the gradient; x gets the rest, or all of it if accumulating."""
        need_x, _, need_source = self.needs_input_grad
        index = self.saved("index")
        grad_x = grad if need_x else None
        if need_x and not self.accumulate:
            grad_x = put(grad, index, grad.new_zeros(index.shape))
        return grad_x, None, take(grad, index).reshape(self.shape) if need_source else None


_ONE_DTYPE = "Expected self.dtype to be equal to src.dtype"


def check_index(input: "Tensor", axis: int, index: "Tensor", where: str, *others: "Tensor") -> None:
    """Raise RuntimeError unless the index fits along `axis` and is no larger than `others`."""
    if not check_tensor(index, where)._array.size:
        return
    if index._array.dtype not in (np.int32, np.int64):
        raise RuntimeError(
            f"{where}(): Expected dtype int32/int64 for index, got a {describe(index)}"
        )
    ndim = max(index._array.ndim, 1)
    for each in (input, *others):
        if ndim != max(each._array.ndim, 1):
            name = "src" if each is not input else "input" if where == "gather" else "self"
            raise RuntimeError(
                f"{where}: Index tensor must have the same number of dimensions as {name} tensor, "
                f"got a {describe(index)} for a {describe(each)}"
            )
    size = input._array.shape[axis] if input._array.ndim else 1
    for other in others:
        pairs = zip(index._array.shape or (1,), other._array.shape or (1,), strict=True)
        for at, (index_size, max_size) in enumerate(pairs):
            if index_size > max_size and (at != axis or other is not input):
                problem = f"Size does not match at dimension {at}: the index must not be larger"
                raise shape_error(where, problem, index, other)
    if not kernels.are_within(index._array, 0, size):
        lowest, highest = index._array.min(), index._array.max()
        raise RuntimeError(
            f"{where}: index {lowest if lowest < 0 else highest} is out of bounds for dimension "
            f"{axis} with size {size}: indices must be from 0 to {size - 1}"
        )


def fitting(source: TensorBase, index: "Tensor") -> "Tensor":
    """Return `source`; if the index is empty, which may have any shape, none of its elements."""
    tensor: Tensor = source  # type: ignore[assignment]
    if index._array.size:
        return tensor
    return tensor.reshape(-1)[:0].reshape(index._array.shape)


@with_numpy_names
def gather(input: "Tensor", dim: int, index: "Tensor", *, sparse_grad: bool = False) -> "Tensor":
    """Return ``out[i][j] = input[index[i][j]][j]`` (for dim 0), of the shape of `index`.

    Raises:
        RuntimeError: if the index is not an integer tensor that fits.
    """
    return _gather(input, dim, index, "gather", sparse_grad)


def _gather(
    input: "Tensor", dim: int, index: "Tensor", where: str, sparse_grad: bool = False
) -> "Tensor":
    axis = normalize_dim(dim, check_tensor(input, where)._array.ndim, where)
    check_index(input, axis, index, where, input)
    if index._array.ndim != input._array.ndim and not index._array.size:
        return input.reshape(-1)[:0].reshape(index._array.shape).clone()
    return Gather.apply(input, index, dim=axis, sparse_grad=sparse_grad)


@with_numpy_names
def take_along_dim(input: "Tensor", indices: "Tensor", dim: int | None = None) -> "Tensor":
    """Return `gather` after broadcasting the other dimensions; without `dim`, `take`."""
    x = check_tensor(input, "take_along_dim")
    if check_tensor(indices, "take_along_dim")._array.dtype != np.int64:
        raise RuntimeError(f"take_along_dim: indices must be int64, got a {describe(indices)}")
    if dim is None:
        flat = _from_front(indices, x._array.size).reshape(-1)
        return _gather(x.reshape(-1), 0, flat, "take_along_dim")
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
    return _gather(x, axis, _from_front(indices, x._array.shape[axis]), "take_along_dim")


def _from_front(index: "Tensor", size: int) -> "Tensor":
    """Return `index` with negative entries down to ``-size`` counted from the front."""
    array = index._array
    if not array.size or index.is_meta or array.min() >= 0:
        return index
    return wrap(np.where((array < 0) & (array >= -size), array + size, array))


@with_numpy_names
def scatter_add(input: "Tensor", dim: int, index: "Tensor", src: "Tensor") -> "Tensor":
    """Return `input` with `src` added at `index` along `dim`; repeated indices are summed."""
    axis = normalize_dim(dim, check_tensor(input, "scatter_add")._array.ndim, "scatter_add")
    if check_tensor(src, "scatter_add")._array.dtype != input._array.dtype:
        raise shape_error("scatter_add", _ONE_DTYPE, input, src)
    check_index(input, axis, index, "scatter_add", input, src)
    return ScatterAdd.apply(input, index, fitting(src, index), dim=axis)


@with_numpy_names
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
        reduce: ``"add"`` is `scatter_add`, ``"multiply"`` is `scatter_reduce` by "prod".

    Raises:
        RuntimeError: if shapes or dtypes do not fit, or `reduce` is another.
    """
    source = value if src is None else src
    axis = normalize_dim(dim, check_tensor(input, "scatter")._array.ndim, "scatter")
    if reduce is not None:
        if reduce not in ("add", "multiply"):
            raise RuntimeError(f"scatter: reduce must be 'add' or 'multiply', got {reduce!r}")
        if not isinstance(source, TensorBase):
            source = wrap(element(source, input._array.dtype, "scatter")).expand(index.shape)
        if reduce == "multiply":
            return input.scatter_reduce(axis, index, source, "prod")
        return scatter_add(input, axis, index, source)
    if isinstance(source, TensorBase):
        if source._array.dtype != input._array.dtype:
            raise shape_error("scatter", _ONE_DTYPE, input, source)
        check_index(input, axis, index, "scatter", input, source)  # type: ignore[arg-type]
        return Scatter.apply(input, index, fitting(source, index), dim=axis)
    check_index(input, axis, index, "scatter", input)
    number = element(source, input._array.dtype, "scatter")
    return ScatterValue.apply(input, index, dim=axis, value=number)


def _positions(input: "Tensor", index: "Tensor", where: str) -> "Tensor":
    """Return `index`, which must hold positions in the flattened tensor."""
    if check_tensor(index, where)._array.dtype != np.int64:
        raise RuntimeError(f"{where}(): Expected a long tensor for index, got a {describe(index)}")
    size = check_tensor(input, where)._array.size
    if not kernels.are_within(index._array, -size, size):
        raise IndexError(
            f"{where}: out of range: positions on a tensor of {size} elements must be from {-size} "
            f"to {size - 1}, got {index._array.min()} to {index._array.max()}"
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
    if check_tensor(source, "put")._array.dtype != input._array.dtype:
        raise shape_error("put", "dtypes must be equal", input, source)
    if source._array.size != index._array.size:
        raise IndexError(
            f"put: an element for each position is needed, got a {describe(source)} for a "
            f"{describe(index)}"
        )
    return Put.apply(input, index, source, accumulate=accumulate)
