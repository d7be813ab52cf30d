"""Copies with elements reordered or repeated."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, metadata, wrap
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.dims import (
    given_once,
    integer,
    integers,
    normalize_dim,
    normalize_dims,
    sizes,
)
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._shape.permuting import expand
from offgrad.ops._shape.reshaping import (
    clone,
    reshape,
    unsqueeze,
    view,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "flip",
    "fliplr",
    "flipud",
    "repeat",
    "repeat_interleave",
    "roll",
    "rot90",
    "tile",
]


class Flip(Op):
    """The order along dimensions reversed, a copy; keeps nothing."""

    def forward(self, x: Array, dims: tuple[int, ...]) -> Array:
        self.dims = dims
        return memory.copy(np.flip(x, dims))

    def backward(self, grad: "Tensor") -> Any:
        return flip(grad, self.dims)


class Roll(Op):
    """Elements moved along dimensions, the last ones to the front; keeps nothing."""

    def forward(self, x: Array, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Array:
        self.shifts, self.dims = shifts, dims
        return np.roll(x, shifts, dims) if dims else np.roll(x, shifts[0])

    def backward(self, grad: "Tensor") -> Any:
        return roll(grad, [-shift for shift in self.shifts], self.dims)


class Rot90(Op):
    """A rotation by quarter turns in the plane of two dimensions; keeps nothing."""

    def forward(self, x: Array, k: int, dims: tuple[int, int]) -> Array:
        self.k, self.dims = k, dims
        if k % 2 == 0:
            return memory.copy(np.rot90(x, k, dims))
        # As in PyTorch, the copy keeps the order of the input's dimensions in memory.
        turned = memory.copy(np.flip(x, dims[1] if k % 4 == 1 else dims[0]))
        return turned.swapaxes(*dims)

    def backward(self, grad: "Tensor") -> Any:
        return rot90(grad, -self.k, self.dims)


class Repeat(Op):
    """Copies of a tensor side by side along its dimensions; keeps nothing."""

    def forward(self, x: Array, repeats: tuple[int, ...]) -> Array:
        self.self_sym_sizes, self.repeats = x.shape, repeats
        shape = (1,) * (len(repeats) - x.ndim) + x.shape
        out = memory.empty(tuple(n * size for n, size in zip(repeats, shape, strict=True)), x.dtype)
        out.reshape(self._split_copies(shape))[...] = x.reshape(
            [each for size in shape for each in (1, size)]
        )
        return out

    def backward(self, grad: "Tensor") -> Any:
        num_new = len(self.repeats) - len(self.self_sym_sizes)
        shape = (1,) * num_new + self.self_sym_sizes
        if not shape:
            return grad
        split_grad = grad.reshape(self._split_copies(shape))
        return split_grad.sum(tuple(range(0, 2 * len(shape), 2))).reshape(self.self_sym_sizes)

    def _split_copies(self, shape: tuple[int, ...]) -> list[int]:
        """Return the result's shape with a dimension of copies before each of elements."""
        pairs = zip(self.repeats, shape, strict=True)
        return [each for n, size in pairs for each in (n, size)]


def flip(input: "Tensor", *order: Any, dims: Any = None) -> "Tensor":
    """Return a copy with the order along dimensions reversed, given one by one or as `dims`."""
    listed = sizes(given_once(order, dims, "flip"), "flip", "dims")
    ndim = check_tensor(input, "flip")._array.ndim
    axes = normalize_dims(listed, ndim, "flip") if listed else ()
    return Flip.apply(input, dims=axes)


def fliplr(input: "Tensor") -> "Tensor":
    """Return a copy with the columns in reverse order: dimension 1."""
    if metadata(check_tensor(input, "fliplr")).ndim < 2:
        raise RuntimeError(f"fliplr: Input must be >= 2-d, got a {describe(input)}")
    return flip(input, 1)


def flipud(input: "Tensor") -> "Tensor":
    """Return a copy with the rows in reverse order: dimension 0."""
    if not metadata(check_tensor(input, "flipud")).ndim:
        raise RuntimeError("flipud: Input must be >= 1-d, got a scalar")
    return flip(input, 0)


def roll(
    input: "Tensor", shifts: int | Sequence[int], dims: int | Sequence[int] | None = None
) -> "Tensor":
    """Return a copy with elements moved by `shifts` along `dims`, around the end.

    Without `dims` the tensor is rolled as one vector.

    Raises:
        RuntimeError: if the numbers of shifts and dimensions differ.
    """
    all_shifts = sizes((shifts,), "roll", "shifts")
    all_dims = () if dims is None else sizes((dims,), "roll", "dims")
    ndim = check_tensor(input, "roll")._array.ndim
    if not all_shifts or len(all_shifts) != (len(all_dims) or 1):
        raise RuntimeError(
            f"roll: shifts and dimensions must align, got shifts {list(all_shifts)} and "
            f"dims {list(all_dims)}"
        )
    if all_dims and not ndim:
        raise IndexError(f"roll: Dimension specified as {all_dims[0]} but tensor has no dimensions")
    axes = tuple([normalize_dim(dim, ndim, "roll") for dim in all_dims])
    return Roll.apply(input, shifts=all_shifts, dims=axes)


def rot90(input: "Tensor", k: int = 1, dims: Sequence[int] = (0, 1)) -> "Tensor":
    """Return a copy rotated by `k` quarter turns from the first of two dimensions to the second.

    Raises:
        RuntimeError: if `dims` are not two different dimensions.
    """
    ndim = metadata(check_tensor(input, "rot90")).ndim
    turns = integer(k, "rot90", "k")
    named = integers(dims, "rot90", "dims")
    axes = tuple([normalize_dim(dim, ndim, "rot90") for dim in named if ndim > 1])
    if len(axes) != 2 or axes[0] == axes[1]:
        problem = "expected rotation dims to be different"
        if ndim < 2:
            problem = "expected total dims >= 2"
        elif len(axes) != 2:
            problem = "expected total rotation dims == 2"
        raise RuntimeError(f"rot90: {problem}, got {list(dims)} for a {describe(input)}")
    return Rot90.apply(input, k=turns, dims=axes)


def repeat(input: "Tensor", *one_by_one: Any, repeats: Any = None) -> "Tensor":
    """Return copies of `input` side by side: `repeats` along each dimension, new ones first.

    Raises:
        RuntimeError: if there are fewer numbers than dimensions, or a negative one.
    """
    given = given_once(one_by_one, repeats, "repeat", "repeats")
    return _repeat(input, sizes(given, "repeat", "repeats"), "repeat")


def _repeat(input: "Tensor", counts: tuple[int, ...], where: str) -> "Tensor":
    if len(counts) < check_tensor(input, where)._array.ndim or min(counts, default=0) < 0:
        problem = (
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
            "tensor"
        )
        if min(counts, default=0) < 0:
            problem = f"Trying to create tensor with negative dimension {min(counts)}"
        raise RuntimeError(f"{where}: {problem}, got {list(counts)} for a {describe(input)}")
    return Repeat.apply(input, repeats=counts)


def tile(input: "Tensor", *one_by_one: Any, dims: Any = None) -> "Tensor":
    """Return copies of `input` side by side, as `repeat`; missing numbers in front are 1."""
    counts = sizes(given_once(one_by_one, dims, "tile"), "tile", "dims")
    ndim = check_tensor(input, "tile")._array.ndim
    return _repeat(input, (1,) * (ndim - len(counts)) + counts, "tile")


def _check_output_size(output_size: int | None, size: int) -> None:
    if output_size is not None and output_size != size:
        raise RuntimeError(
            f"repeat_interleave: output_size must be {size}, the sum of the repeats, got "
            f"{output_size}"
        )


@with_numpy_names
def repeat_interleave(
    input: "Tensor",
    repeats: Any = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> "Tensor":
    """Return each element along `dim` repeated; without `dim`, of the flattened tensor.

    Without `repeats`, `input` has them, and the indices 0, 1, ... are repeated.

    Args:
        input: the tensor.
        repeats: a number, or a tensor with a number for each entry of the dimension.
        dim: the dimension.
        output_size: the sum of `repeats`, the size of the result along the dimension.

    Raises:
        RuntimeError: if a number is negative or there is not one for each entry; if `output_size`
            is not their sum.
    """
    x = check_tensor(input, "repeat_interleave")
    if repeats is None:
        if metadata(x).ndim != 1:
            raise RuntimeError(f"repeat_interleave: repeats must be 1D, got a {describe(x)}")
        x, repeats = wrap(np.arange(metadata(x).size, dtype=metadata(x).dtype)), x
    if dim is None:
        x, dim = reshape(x, metadata(x).size), 0
    axis = normalize_dim(dim, metadata(x).ndim, "repeat_interleave")
    x = x if metadata(x).ndim else reshape(x, 1)
    length = metadata(x).shape[axis]
    if isinstance(repeats, TensorBase):
        counts = repeats._array
        if counts.dtype.kind not in "iu" or counts.ndim > 1 or counts.size not in (1, length):
            raise RuntimeError(
                "repeat_interleave: repeats must have the same size as input along dim, "
                f"{length}, or 1, and be integers, got a {describe(repeats)}"
            )
        if type(counts) is MetaArray and output_size is None:
            raise RuntimeError(
                "cannot repeat_interleave a meta tensor without output_size: the counts have no "
                "values"
            )
        if counts.size and type(counts) is not MetaArray and counts.min() < 0:
            raise RuntimeError(
                f"repeat_interleave: repeats must not be negative, got {counts.min()}"
            )
        entries = np.repeat(np.arange(length), np.broadcast_to(counts, (length,)))
        _check_output_size(output_size, entries.size)
        return x.index_select(axis, wrap(entries))
    count = integer(repeats, "repeat_interleave", "repeats")
    if count < 0:
        raise RuntimeError(f"repeat_interleave: repeats must not be negative, got {count}")
    _check_output_size(output_size, length * count)
    shape = metadata(x).shape
    copies = expand(unsqueeze(x, axis + 1), (*shape[: axis + 1], count, *shape[axis + 1 :]))
    return view(clone(copies), (*shape[:axis], length * count, *shape[axis + 1 :]))
