"""Joining tensors, which copies."""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad._warning import warn_program
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, metadata, wrap
from offgrad.ops._core.dims import normalize_dim
from offgrad.ops._core.dtypes import cast, check_tensor, common_dtype, default_dtype
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._shape.permuting import broadcast_to
from offgrad.ops._shape.reshaping import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    reshape,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "block_diag",
    "cat",
    "column_stack",
    "concat",
    "concatenate",
    "dstack",
    "hstack",
    "meshgrid",
    "row_stack",
    "stack",
    "vstack",
]


def _are_large(arrays: Sequence[Array], out: Array) -> bool:
    """Whether it pays to copy arrays into parts of `out` on several threads, one by one."""
    return kernels.is_large(out.size // len(arrays))


class Cat(Op):
    """Tensors one after the other along a dimension; keeps nothing."""

    def forward(self, *arrays: Array, dim: int) -> Array:
        self.dim = dim
        self.lengths = tuple(array.shape[dim] for array in arrays)
        shape = list(arrays[0].shape)
        shape[dim] = sum(self.lengths)
        out = memory.empty(tuple(shape), arrays[0].dtype)
        if _are_large(arrays, out):
            for array, stop in zip(arrays, accumulate(self.lengths), strict=True):
                part = (slice(None),) * dim + (slice(stop - array.shape[dim], stop),)
                kernels.copy_into(out[part], array)
        elif dim and shape[0] > 1 and kernels.is_large(out.size):

            def join(start: int, stop: int) -> None:
                parts = [each[start:stop] for each in arrays]
                np.concatenate(parts, axis=dim, out=out[start:stop])

            kernels.parallel_for(join, shape[0], out.size // shape[0], merge=True)
        else:
            np.concatenate(arrays, axis=dim, out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return tuple(grad.split(self.lengths, self.dim))


class Stack(Op):
    """Tensors side by side along a new dimension; keeps nothing."""

    def forward(self, *arrays: Array, dim: int) -> Array:
        self.dim = dim
        shape = arrays[0].shape
        out = memory.empty((*shape[:dim], len(arrays), *shape[dim:]), arrays[0].dtype)
        if _are_large(arrays, out):
            for number, array in enumerate(arrays):
                kernels.copy_into(out[(slice(None),) * dim + (number,)], array)
        else:
            np.stack(arrays, axis=dim, out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return grad.unbind(self.dim)


class BlockDiag(Op):
    """Matrices along the diagonal of a matrix of zeros; keeps nothing."""

    def forward(self, *arrays: Array) -> Array:
        self.shapes = [each.shape for each in arrays]
        blocks = [np.atleast_2d(each) for each in arrays]
        shape = tuple(sum(each.shape[axis] for each in blocks) for axis in (0, 1))
        out = memory.zeros(shape, arrays[0].dtype)
        for block, slices in zip(blocks, self._block_slices(), strict=True):
            out[slices] = block
        return out

    def _block_slices(self) -> list[tuple[slice, slice]]:
        row = column = 0
        positions = []
        for shape in self.shapes:
            rows, columns = (1,) * (2 - len(shape)) + shape
            positions.append((slice(row, row + rows), slice(column, column + columns)))
            row, column = row + rows, column + columns
        return positions

    def backward(self, grad: "Tensor") -> Any:
        return tuple(
            grad[slices].reshape(shape) if needed else None
            for slices, shape, needed in zip(
                self._block_slices(), self.shapes, self.needs_input_grad, strict=True
            )
        )


def _listed(tensors: Any, where: str) -> "list[Tensor]":
    """Return the tensors to join, which must be a tuple or list.

    Raises:
        TypeError: for all else.
        RuntimeError: for none.
    """
    if not isinstance(tensors, (tuple, list)):
        raise TypeError(f"{where} takes a tuple or list of tensors, got {type(tensors).__name__}")
    if not tensors:
        if where == "cat":  # as PyTorch
            raise ValueError("cat(): expected a non-empty list of Tensors, got none")
        raise RuntimeError(f"{where} expects a non-empty TensorList: pass at least one tensor")
    return [check_tensor(each, where) for each in tensors]


@with_numpy_names
def cat(tensors: "Sequence[Tensor]", dim: int = 0) -> "Tensor":
    """Return tensors joined along `dim`; their other sizes must be equal."""
    return _cat(tensors, dim, "cat")


def _cat(tensors: "Sequence[Tensor]", dim: int, where: str) -> "Tensor":
    tensors = _listed(tensors, where)
    dtype = common_dtype(*tensors)
    full = [each for each in tensors if each._array.shape != (0,)] or tensors
    first = full[0]._array.shape
    if not first:
        raise RuntimeError(
            f"{where}: a zero-dimensional tensor cannot be concatenated; use stack(), or reshape(1)"
        )
    axis = normalize_dim(dim, len(first), where)
    if len(full) < len(tensors):
        # In PyTorch an empty vector can be joined with any tensor. It adds nothing but its graph.
        nothing = first[:axis] + (0,) + first[axis + 1 :]
        empty = [each for each in tensors if each._array.shape == (0,) and each.requires_grad]
        tensors = full + [each.reshape(nothing) for each in empty]
    for index, each in enumerate(tensors):
        shape = each._array.shape
        alike = shape[:axis] + first[axis : axis + 1] + shape[axis + 1 :]
        if len(shape) != len(first):
            raise RuntimeError(
                f"{where}: Tensors must have same number of dimensions: got {len(first)} and "
                f"{len(shape)}, as tensor {index} is a {describe(each)} and tensor 0 a "
                f"{describe(tensors[0])}"
            )
        if alike != first:
            at = next(at for at, size in enumerate(first) if alike[at] != size)
            raise RuntimeError(
                f"{where}: Sizes of tensors must match except in dimension {axis}. Expected size "
                f"{first[at]} but got size {shape[at]} for tensor number {index} in the list, a "
                f"{describe(each)}; tensor 0 is a {describe(tensors[0])}"
            )
    return Cat.apply(*[cast(each, dtype) for each in tensors], dim=axis)


@with_numpy_names
def concat(tensors: "Sequence[Tensor]", dim: int = 0) -> "Tensor":
    """Return tensors joined along `dim`; another name for `cat`."""
    return cat(tensors, dim)


@with_numpy_names
def concatenate(tensors: "Sequence[Tensor]", dim: int = 0) -> "Tensor":
    """Return tensors joined along `dim`; another name for `cat`."""
    return cat(tensors, dim)


@with_numpy_names
def stack(tensors: "Sequence[Tensor]", dim: int = 0) -> "Tensor":
    """Return tensors of one shape joined along a new dimension `dim`."""
    tensors = _listed(tensors, "stack")
    for index, each in enumerate(tensors):
        if each._array.shape != tensors[0]._array.shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but tensor {index} is a "
                f"{describe(each)} and tensor 0 a {describe(tensors[0])}"
            )
    axis = normalize_dim(dim, tensors[0]._array.ndim + 1, "stack")
    dtype = common_dtype(*tensors)
    return Stack.apply(*[cast(each, dtype) for each in tensors], dim=axis)


def hstack(tensors: "Sequence[Tensor]") -> "Tensor":
    """Return tensors joined side by side: along dimension 1, vectors along 0."""
    return _hstack(tensors, "hstack")


def _hstack(tensors: "Sequence[Tensor]", where: str) -> "Tensor":
    pieces = atleast_1d(_listed(tensors, where))
    return _cat(pieces, 0 if pieces[0].ndim == 1 else 1, where)


def vstack(tensors: "Sequence[Tensor]") -> "Tensor":
    """Return tensors joined below each other; vectors are rows."""
    return _cat(atleast_2d(_listed(tensors, "vstack")), 0, "vstack")


def row_stack(tensors: "Sequence[Tensor]") -> "Tensor":
    """Return tensors joined below each other; another name for `vstack`."""
    return vstack(tensors)


def dstack(tensors: "Sequence[Tensor]") -> "Tensor":
    """Return tensors joined along dimension 2, added where it is missing."""
    return _cat(atleast_3d(_listed(tensors, "dstack")), 2, "dstack")


def column_stack(tensors: "Sequence[Tensor]") -> "Tensor":
    """Return tensors joined side by side; vectors are columns."""
    columns = _listed(tensors, "column_stack")
    matrices = [each if each.ndim > 1 else reshape(each, each._array.size, 1) for each in columns]
    return _hstack(matrices, "column_stack")


def block_diag(*tensors: "Tensor") -> "Tensor":
    """Return the matrix with `tensors` along its diagonal; scalars and vectors count as rows.

    Raises:
        RuntimeError: for more than two dimensions.
    """
    for each in tensors:
        if metadata(check_tensor(each, "block_diag")).ndim > 2:
            raise RuntimeError(f"block_diag: at most 2 dimensions, got a {describe(each)}")
    if not tensors:
        return wrap(memory.empty((1, 0), default_dtype()))
    dtype = common_dtype(*tensors)
    return BlockDiag.apply(*(each.to(dtype) for each in tensors))


def meshgrid(*tensors: Any, indexing: str | None = None) -> "tuple[Tensor, ...]":
    """Return for each vector its coordinates on the grid of all, as an expanded view.

    Args:
        *tensors: vectors or scalars, or one sequence of them.
        indexing: ``"ij"``, or ``"xy"``, which swaps the first two dimensions; without it a warning
            reminds of the choice.

    Raises:
        RuntimeError: for no vector, more than one dimension, different dtypes, or another
            `indexing`.
    """
    sequence = (
        tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    )
    vectors = _listed(sequence, "meshgrid")
    if indexing is None:
        warn_program("meshgrid: pass indexing='ij', the default, or 'xy'")
        indexing = "ij"
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'meshgrid: indexing must be one of "xy" or "ij", got {indexing!r}')
    for each in vectors:
        if metadata(each).ndim > 1:
            raise RuntimeError(
                f"meshgrid: Expected 0D or 1D tensor in the tensor list, got a {describe(each)}"
            )
        if metadata(each).dtype != metadata(vectors[0]).dtype:
            raise RuntimeError(
                "meshgrid: the vectors must have one dtype, got "
                f"{metadata(vectors[0]).dtype.name} and {metadata(each).dtype.name}; convert them"
            )
    swap = indexing == "xy" and len(vectors) > 1
    if swap:
        vectors[:2] = vectors[1], vectors[0]
    shape = [metadata(each).size for each in vectors]
    grids = []
    for axis, each in enumerate(vectors):
        column = [size if at == axis else 1 for at, size in enumerate(shape)]
        grids.append(broadcast_to(reshape(each, column), shape))
    if swap:
        grids[:2] = grids[1], grids[0]
    return tuple(grids)
