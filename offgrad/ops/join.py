"""Joining tensors, which copies, and splitting them, which does not."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops.convert import check_tensor, result_type
from offgrad.ops.reduce import normalize_dim
from offgrad.ops.shape import squeeze, unsqueeze

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


class Split(Op):
    """Consecutive pieces along a dimension, views; keeps nothing."""

    is_view = True

    def forward(self, x: Array, lengths: tuple[int, ...], dim: int) -> tuple[Array, ...]:
        """Return the pieces."""
        self.dim, self.shape = dim, x.shape
        self.lengths = lengths
        ends = np.cumsum(lengths)
        lead = (slice(None),) * dim
        return tuple(
            x[(*lead, slice(end - length, end))] for end, length in zip(ends, lengths, strict=True)
        )

    def backward(self, *grads: "Tensor | None") -> Any:
        """Join the gradients, with zeros for pieces without one."""
        like = next(grad for grad in grads if grad is not None)
        shapes = [
            (*self.shape[: self.dim], length, *self.shape[self.dim + 1 :])
            for length in self.lengths
        ]
        return cat(
            [
                like.new_zeros(shape) if grad is None else grad
                for grad, shape in zip(grads, shapes, strict=True)
            ],
            self.dim,
        )


class Cat(Op):
    """Tensors one after the other along a dimension; keeps nothing."""

    def forward(self, *arrays: Array, dim: int) -> Array:
        """Return the joined copy."""
        self.dim = dim
        self.lengths = tuple(array.shape[dim] for array in arrays)
        shape = list(arrays[0].shape)
        shape[dim] = sum(self.lengths)
        out = memory.empty(tuple(shape), arrays[0].dtype)
        np.concatenate(arrays, axis=dim, out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Give each its piece."""
        return tuple(split(grad, self.lengths, self.dim))


def cat(tensors: "Sequence[Tensor]", dim: int = 0) -> "Tensor":
    """Return tensors joined along `dim`; their other sizes must be equal."""
    tensors = [check_tensor(each, "cat") for each in tensors]
    if not tensors:
        raise ValueError("cat needs at least one tensor, got none")
    dtype = result_type(*tensors)
    if len(tensors) > 1:
        # PyTorch lets an empty vector join anything.
        tensors = [each for each in tensors if each._array.shape != (0,)] or tensors[:1]
    first = tensors[0]._array.shape
    if not first:
        raise RuntimeError("cat: tensors without dimensions cannot be joined; use stack()")
    axis = normalize_dim(dim, len(first), "cat")
    for index, each in enumerate(tensors):
        shape = each._array.shape
        if len(shape) != len(first) or any(
            m != n for at, (m, n) in enumerate(zip(shape, first, strict=True)) if at != axis
        ):
            raise RuntimeError(
                f"cat: sizes must be equal except along dim {axis}, but tensor {index} is a "
                f"{describe(each)} and tensor 0 a {describe(tensors[0])}"
            )
    return Cat.apply(*(each.to(dtype) for each in tensors), dim=axis)


def stack(tensors: "Sequence[Tensor]", dim: int = 0) -> "Tensor":
    """Return tensors of one shape joined along a new dimension `dim`."""
    tensors = [check_tensor(each, "stack") for each in tensors]
    if not tensors:
        raise RuntimeError("stack needs at least one tensor, got none")
    for index, each in enumerate(tensors):
        if each._array.shape != tensors[0]._array.shape:
            raise RuntimeError(
                f"stack: shapes must be equal, but tensor {index} is a {describe(each)} and "
                f"tensor 0 a {describe(tensors[0])}"
            )
    axis = normalize_dim(dim, tensors[0]._array.ndim + 1, "stack")
    return cat([unsqueeze(each, axis) for each in tensors], axis)


def split(
    tensor: "Tensor", split_size_or_sections: int | Sequence[int], dim: int = 0
) -> "tuple[Tensor, ...]":
    """Return views of consecutive pieces along `dim`, of one size (the last may be less) or of
    several.
    """
    if not check_tensor(tensor, "split")._array.ndim:
        raise RuntimeError("split: a tensor without dimensions has no pieces; use reshape(1) first")
    axis = normalize_dim(dim, tensor._array.ndim, "split")
    length = tensor._array.shape[axis]
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        if size <= 0 and length:
            raise RuntimeError(f"split: the size of a piece must be positive, got {size}")
        pieces = [min(size, length - start) for start in range(0, length, size or 1)] or [0]
    else:
        pieces = [int(each) for each in split_size_or_sections]
        if sum(pieces) != length or min(pieces, default=0) < 0:
            raise RuntimeError(
                f"split: sections must add up to the size {length} of dim {axis}, got {pieces}"
            )
    return Split.apply_all(tensor, lengths=tuple(pieces), dim=axis)


def chunk(input: "Tensor", chunks: int, dim: int = 0) -> "tuple[Tensor, ...]":
    """Return at most `chunks` views of equal length along `dim` (the last may be less)."""
    if chunks <= 0:
        raise RuntimeError(f"chunk: the number of chunks must be positive, got {chunks}")
    axis = normalize_dim(dim, check_tensor(input, "chunk")._array.ndim, "chunk")
    return split(input, max(1, -(-input._array.shape[axis] // chunks)), axis)


def unbind(input: "Tensor", dim: int = 0) -> "tuple[Tensor, ...]":
    """Return a view of each index along `dim`, without that dimension."""
    axis = normalize_dim(dim, check_tensor(input, "unbind")._array.ndim, "unbind")
    return tuple(squeeze(piece, axis) for piece in split(input, 1, axis)[: input.shape[axis]])
