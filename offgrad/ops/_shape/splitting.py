"""Splitting tensors: operations with several views as results."""

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, metadata
from offgrad.ops._core.dims import integer, integers, is_integer, normalize_dim
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._shape.joining import cat, stack
from offgrad.ops._shape.slicing import Slice, index_along

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "chunk",
    "dsplit",
    "hsplit",
    "split",
    "split_with_sizes",
    "tensor_split",
    "unbind",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "vsplit",
]


def _pieces(x: Array, lengths: Sequence[int], dim: int) -> tuple[Array, ...]:
    return tuple(
        [
            x[index_along(dim, slice(end - length, end))]
            for end, length in zip(accumulate(lengths), lengths, strict=True)
        ]
    )


class _Split(Op):
    """Consecutive pieces along a dimension; keeps nothing."""

    self_sym_sizes: tuple[int, ...]
    dim: int
    lengths: tuple[int, ...]

    def pieces(self, x: Array, lengths: tuple[int, ...], dim: int) -> tuple[Array, ...]:
        """Record the geometry; return the pieces."""
        self.self_sym_sizes, self.dim, self.lengths = x.shape, dim, lengths
        return _pieces(x, lengths, dim)

    def backward(self, *grads: "Tensor | None") -> Any:
        """Join the gradients, with zeros for pieces without one."""
        like = next(grad for grad in grads if grad is not None)
        shape = self.self_sym_sizes
        parts: list[Tensor] = []
        for is_zero, group in groupby(
            zip(grads, self.lengths, strict=True), lambda pair: pair[0] is None
        ):
            if is_zero:  # neighbours at once
                length = sum(length for _, length in group)
                parts.append(like.new_zeros((*shape[: self.dim], length, *shape[self.dim + 1 :])))
            else:
                parts += [grad for grad, _ in group if grad is not None]
        return cat(parts, self.dim)


class Split(_Split):
    """Pieces of one size, views; keeps nothing."""

    is_view = True

    def forward(self, x: Array, split_size: int, dim: int) -> tuple[Array, ...]:
        self.split_size = split_size
        return self.pieces(x, _equal_lengths(x.shape[dim], split_size), dim)


class SplitWithSizes(_Split):
    """Pieces of several sizes, views; keeps nothing."""

    is_view = True

    def forward(self, x: Array, split_sizes: tuple[int, ...], dim: int) -> tuple[Array, ...]:
        self.split_sizes = split_sizes
        return self.pieces(x, split_sizes, dim)


class UnsafeSplit(_Split):
    """Pieces of one size, copies; keeps nothing."""

    def forward(self, x: Array, split_size: int, dim: int) -> tuple[Array, ...]:
        self.split_size = split_size
        lengths = _equal_lengths(x.shape[dim], split_size)
        return tuple(memory.copy(each) for each in self.pieces(x, lengths, dim))


class UnsafeSplitWithSizes(_Split):
    """Pieces of several sizes, copies; keeps nothing."""

    def forward(self, x: Array, split_sizes: tuple[int, ...], dim: int) -> tuple[Array, ...]:
        self.split_sizes = split_sizes
        return tuple(memory.copy(each) for each in self.pieces(x, split_sizes, dim))


class Unbind(Op):
    """The entries along a dimension, views; keeps nothing."""

    is_view = True

    def forward(self, x: Array, dim: int) -> tuple[Array, ...]:
        self.dim = dim
        return tuple(x[index_along(dim, index)] for index in range(x.shape[dim]))

    def backward(self, *grads: "Tensor | None") -> Any:
        """Stack the gradients, with zeros for entries without one."""
        like = next(grad for grad in grads if grad is not None)
        zeros = None
        if any(grad is None for grad in grads):
            zeros = like.new_zeros(like.shape)
        return stack([zeros if grad is None else grad for grad in grads], self.dim)  # type: ignore[misc]


def _equal_lengths(length: int, size: int) -> tuple[int, ...]:
    return tuple(min(size, length - start) for start in range(0, length, size or 1)) or (0,)


def _axis(tensor: "Tensor", dim: int, where: str) -> int:
    if not metadata(check_tensor(tensor, where)).ndim:
        raise RuntimeError(
            f"{where} expects at least a 1-dimensional tensor, got a scalar; use reshape(1) first"
        )
    return normalize_dim(dim, metadata(tensor).ndim, where)


def _checked_size(tensor: "Tensor", axis: int, size: int, where: str) -> int:
    length = metadata(tensor).shape[axis]
    size = integer(size, where, "the size of a piece")
    if size < 0 or (size == 0 and length):
        raise RuntimeError(
            f"{where} expects split_size be non-negative, and 0 for an empty dim only, got {size}"
        )
    return size


def _checked_sizes(
    tensor: "Tensor", axis: int, sizes: Sequence[int], where: str
) -> tuple[int, ...]:
    pieces = integers(sizes, where, "the sizes of pieces")
    length = metadata(tensor).shape[axis]
    if sum(pieces) != length or min(pieces, default=0) < 0:
        raise RuntimeError(
            f"{where} expects split_sizes to sum exactly to {length}, the size of dim {axis}, got "
            f"{list(pieces)}"
        )
    return pieces


def split(
    tensor: "Tensor",
    split_size_or_sections: int | Sequence[int] | None = None,
    dim: int = 0,
    *,
    split_size: int | Sequence[int] | None = None,
) -> "tuple[Tensor, ...]":
    """Return views of consecutive pieces along `dim`, of one size (the last may be smaller) or of
    the sizes in a list; the method's name of that argument is `split_size`.
    """
    if split_size_or_sections is None:
        split_size_or_sections = split_size
    elif split_size is not None:
        raise TypeError("split: split_size and split_size_or_sections are the same argument")
    if not is_integer(split_size_or_sections):
        return split_with_sizes(tensor, split_size_or_sections, dim)  # type: ignore[arg-type]
    axis = _axis(tensor, dim, "split")
    size = _checked_size(tensor, axis, split_size_or_sections, "split")  # type: ignore[arg-type]
    return Split.apply_all(tensor, split_size=size, dim=axis)


def split_with_sizes(
    input: "Tensor", split_sizes: Sequence[int], dim: int = 0
) -> "tuple[Tensor, ...]":
    """Return views of consecutive pieces along `dim`, of the sizes given."""
    axis = _axis(input, dim, "split_with_sizes")
    sizes = _checked_sizes(input, axis, split_sizes, "split_with_sizes")
    return SplitWithSizes.apply_all(input, split_sizes=sizes, dim=axis)


@with_numpy_names
def chunk(input: "Tensor", chunks: int, dim: int = 0) -> "tuple[Tensor, ...]":
    """Return at most `chunks` views of equal length along `dim` (the last may be smaller)."""
    axis, size = _chunks(input, chunks, dim, "chunk")
    if not size:
        return split_with_sizes(input, (0,) * chunks, axis)
    return split(input, size, axis)


def _chunks(input: "Tensor", chunks: int, dim: int, where: str) -> tuple[int, int]:
    """Return the dimension and the length of a chunk."""
    axis = _axis(input, dim, where)
    chunks = integer(chunks, where, "the number of chunks")
    if chunks <= 0:
        raise RuntimeError(f"{where} expects `chunks` to be greater than 0, got {chunks}")
    return axis, -(-metadata(input).shape[axis] // chunks)


def unsafe_split(input: "Tensor", split_size: int, dim: int = 0) -> "tuple[Tensor, ...]":
    """Return the pieces of `split` as copies, so that each may be changed in place."""
    axis = _axis(input, dim, "unsafe_split")
    size = _checked_size(input, axis, split_size, "unsafe_split")
    return UnsafeSplit.apply_all(input, split_size=size, dim=axis)


def unsafe_split_with_sizes(
    input: "Tensor", split_sizes: Sequence[int], dim: int = 0
) -> "tuple[Tensor, ...]":
    """Return the pieces of `split_with_sizes` as copies."""
    axis = _axis(input, dim, "unsafe_split_with_sizes")
    sizes = _checked_sizes(input, axis, split_sizes, "unsafe_split_with_sizes")
    return UnsafeSplitWithSizes.apply_all(input, split_sizes=sizes, dim=axis)


def unsafe_chunk(input: "Tensor", chunks: int, dim: int = 0) -> "tuple[Tensor, ...]":
    """Return the pieces of `chunk` as copies."""
    axis, size = _chunks(input, chunks, dim, "unsafe_chunk")
    if not size:
        return unsafe_split_with_sizes(input, (0,) * chunks, axis)
    return unsafe_split(input, size, axis)


@with_numpy_names
def tensor_split(
    input: "Tensor",
    indices_or_sections: Any = None,
    dim: int = 0,
    *,
    indices: Sequence[int] | None = None,
    sections: int | None = None,
) -> "tuple[Tensor, ...]":
    """Return views of consecutive pieces along `dim`: nearly equal ones, or cut at indices.

    Each is a separate slice, so that it may be changed in place.
    """
    given = [each for each in (indices_or_sections, indices, sections) if each is not None]
    if len(given) != 1:
        raise TypeError(
            "tensor_split takes either the number of pieces, sections=, or where to cut, indices=, "
            f"got {len(given)} of them"
        )
    (indices_or_sections,) = given
    axis = _axis(input, dim, "tensor_split")
    length = input._array.shape[axis]
    if isinstance(indices_or_sections, TensorBase):
        array = indices_or_sections._array
        if array.dtype != np.int64 or array.ndim > 1:
            raise RuntimeError(
                f"tensor_split: indices must be int64, got a {describe(indices_or_sections)}"
            )
        indices_or_sections = array.tolist()
    if is_integer(indices_or_sections):
        count = int(indices_or_sections)
        if count <= 0:
            raise RuntimeError(f"tensor_split: the number of pieces must be positive, got {count}")
        small, larger = divmod(length, count)
        ends = np.cumsum([small + (position < larger) for position in range(count)]).tolist()
        cuts = ends[:-1]
    else:
        cuts = list(integers(indices_or_sections, "tensor_split", "indices"))
    starts, stops = [0, *cuts], [*cuts, length]
    return tuple(
        Slice.apply(input, dim=axis, start=start, end=stop, step=1)
        for start, stop in zip(starts, stops, strict=True)
    )


def _numpy_split(input: "Tensor", parts: Any, dim: int, ndim: int, where: str) -> Any:
    if check_tensor(input, where)._array.ndim < ndim:
        raise RuntimeError(
            f"{where} requires a tensor with at least {ndim} dimension{'s' * (ndim > 1)}, got a "
            f"{describe(input)}"
        )
    if is_integer(parts) and (parts <= 0 or input._array.shape[dim] % parts):
        raise RuntimeError(
            f"{where} attempted to split along dimension {dim}, but the size of the dimension "
            f"{input._array.shape[dim]} is not divisible by the number of pieces, {parts}"
        )
    return tensor_split(input, parts, dim)


def hsplit(input: "Tensor", indices_or_sections: Any) -> "tuple[Tensor, ...]":
    """Return `tensor_split` along the columns: dimension 1, for a vector 0."""
    dim = 0 if metadata(check_tensor(input, "hsplit")).ndim == 1 else 1
    pieces: tuple[Tensor, ...] = _numpy_split(input, indices_or_sections, dim, 1, "hsplit")
    return pieces


def vsplit(input: "Tensor", indices_or_sections: Any) -> "tuple[Tensor, ...]":
    """Return `tensor_split` along the rows, dimension 0; `input` has at least two dimensions."""
    pieces: tuple[Tensor, ...] = _numpy_split(input, indices_or_sections, 0, 2, "vsplit")
    return pieces


def dsplit(input: "Tensor", indices_or_sections: Any) -> "tuple[Tensor, ...]":
    """Return `tensor_split` along dimension 2; `input` has at least three."""
    pieces: tuple[Tensor, ...] = _numpy_split(input, indices_or_sections, 2, 3, "dsplit")
    return pieces


@with_numpy_names
def unbind(input: "Tensor", dim: int = 0) -> "tuple[Tensor, ...]":
    """Return a view of each index along `dim`, without that dimension."""
    if not check_tensor(input, "unbind")._array.ndim:
        raise IndexError(f"unbind: Dimension specified as {dim} but tensor has no dimensions")
    axis = normalize_dim(dim, input._array.ndim, "unbind")
    return Unbind.apply_all(input, dim=axis)
