"""Basic indexing: views of entries, slices and both; and their inverse."""

import sys
from typing import TYPE_CHECKING, Any

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.ops._core.dims import integer, normalize_dim
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._shape.reshaping import Unsqueeze

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["narrow", "select"]

ALL = slice(None)
END = sys.maxsize
"""PyTorch's number for an open end of a slice."""


def index_along(dim: int, *entries: Any) -> tuple[Any, ...]:
    """Return the NumPy index of `entries` along `dim`; indexing with it gives a view."""
    return (*(ALL,) * dim, *entries, Ellipsis)


class Select(Op):
    """One entry along a dimension, a view; keeps nothing."""

    is_view = True

    def forward(self, x: Array, dim: int, index: int) -> Array:
        self.self_sym_sizes, self.dim, self.index = x.shape, dim, index
        view: Array = x[index_along(dim, index)]
        return view

    def backward(self, grad: "Tensor") -> Any:
        """Put the gradient at the entry, zeros elsewhere."""
        index = index_along(self.dim, self.index)
        return Embed.named("SelectBackwardBackward0").apply(
            grad, index=index, shape=self.self_sym_sizes
        )


class Slice(Op):
    """Entries from `start` to before `end` by `step` along a dimension, a view; keeps nothing."""

    is_view = True

    def forward(self, x: Array, dim: int, start: int, end: int, step: int) -> Array:
        self.self_sym_sizes = x.shape
        self.dim, self.start, self.end, self.step = dim, start, end, step
        view: Array = x[index_along(dim, slice(start, end, step))]
        return view

    def backward(self, grad: "Tensor") -> Any:
        """Put the gradient at the slice, zeros elsewhere."""
        index = index_along(self.dim, slice(self.start, self.end, self.step))
        return Embed.apply(grad, index=index, shape=self.self_sym_sizes)


class Alias(Op):
    """A view of the whole tensor; keeps nothing."""

    is_view = True

    def forward(self, x: Array) -> Array:
        return x[...]

    def backward(self, grad: "Tensor") -> Any:
        return grad


class _Combined(Op):
    """A basic index of several steps, a view; keeps nothing. Its name is that of the last step."""

    is_view = True

    def forward(self, x: Array, index: tuple[Any, ...]) -> Array:
        self.key, self.shape = index, x.shape
        view: Array = x[index]
        return view

    def backward(self, grad: "Tensor") -> Any:
        """Put the gradient at the view, zeros elsewhere."""
        name = self.name().replace("Backward0", "BackwardBackward0")
        return Embed.named(name).apply(grad, index=self.key, shape=self.shape)


class CombinedSelect(_Combined):
    """A basic index whose last step selects an entry; keeps nothing."""

    torch_name = "SelectBackward0"


class CombinedSlice(_Combined):
    """A basic index whose last step is a slice; keeps nothing."""

    torch_name = "SliceBackward0"


class CombinedUnsqueeze(_Combined):
    """A basic index whose last step inserts a dimension; keeps nothing."""

    torch_name = "UnsqueezeBackward0"


class Embed(Op):
    """Zeros with a tensor put at a basic index; keeps nothing."""

    torch_name = "SliceBackwardBackward0"

    @classmethod
    def with_samples(cls, size: int, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters for inputs with a further first dimension."""
        index, shape = parameters["index"], parameters["shape"]
        return {"index": (slice(None), *index), "shape": (size, *shape)}

    def forward(self, x: Array, index: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
        self.key = index
        out = memory.zeros(shape, x.dtype)
        out[index] = x
        return out

    def backward(self, grad: "Tensor") -> Any:
        return grad[self.key]


def basic(input: "Tensor", index: tuple[Any, ...]) -> "Tensor":
    """Return the view at an index of ints, slices, None and ``...``.

    It is recorded as one operation: PyTorch's if it has one for the index, else a combined one.

    Raises:
        IndexError: if the index does not fit.
    """
    index = _expand_ellipsis(index, input._array.ndim)
    steps = []
    axis = 0
    for position, item in enumerate(index):
        if item is None:
            steps.append((position, item))
            continue
        if not _is_whole(item, input._array.shape[axis]):
            steps.append((position, item))
        axis += 1
    if not steps:
        return Alias.apply(input)
    position, item = steps[-1]
    if len(steps) == 1:
        # The items before are whole dimensions.
        if item is None:
            return Unsqueeze.apply(input, dim=position)
        if isinstance(item, slice):
            return slice_of(input, position, item)
        return Select.apply(input, dim=position, index=int(item))
    kind: type[_Combined] = CombinedSelect
    if item is None or isinstance(item, slice):
        kind = CombinedUnsqueeze if item is None else CombinedSlice
    return kind.apply(input, index=(*index, Ellipsis))


def _expand_ellipsis(index: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Return `index` with ``...`` replaced by whole dimensions."""
    missing = ndim - (len(index) - index.count(None) - index.count(Ellipsis))
    if missing < 0 or index.count(Ellipsis) > 1:
        raise IndexError(f"too many indices: {ndim} dimensions and one ... can be indexed")
    if Ellipsis not in index:
        return index
    at = index.index(Ellipsis)
    return (*index[:at], *[ALL] * missing, *index[at + 1 :])


def _is_whole(item: Any, size: int) -> bool:
    return (
        isinstance(item, slice)
        and item.start in (None, 0)
        and (item.stop is None or item.stop >= size)
        and item.step in (None, 1)
    )


def slice_of(input: "Tensor", dim: int, item: slice) -> "Tensor":
    """Return the view of a slice along a dimension.

    Raises:
        IndexError: if there is no such dimension.
    """
    if dim >= input._array.ndim:
        raise IndexError(
            f"slice: dim must be below {input._array.ndim}, the number of dimensions, got {dim}"
        )
    start = 0 if item.start is None else item.start
    end = END if item.stop is None else item.stop
    return Slice.apply(input, dim=dim, start=start, end=end, step=item.step or 1)


def narrow(input: "Tensor", dim: int, start: Any, length: int) -> "Tensor":
    """Return a view of `length` entries along `dim` from `start`.

    Raises:
        RuntimeError: if the entries do not lie within the dimension.
        IndexError: if there is no such dimension, or `start` lies outside.
    """
    if not check_tensor(input, "narrow")._array.ndim:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor; use reshape(1) first")
    axis = normalize_dim(dim, input._array.ndim, "narrow")
    size = input._array.shape[axis]
    if isinstance(start, TensorBase) and (start._array.ndim or start._array.dtype.kind not in "iu"):
        raise RuntimeError(
            f"narrow: start must be an 0-dim integral Tensor, or an int, got a {describe(start)}"
        )
    first, length = integer(start, "narrow", "start"), integer(length, "narrow", "length")
    if not -size <= first <= size:
        raise IndexError(
            f"narrow: start out of range (expected to be in range of [{-size}, {size}], but got "
            f"{first}) along dim {axis}"
        )
    first += size if first < 0 else 0
    if length < 0:
        raise RuntimeError(f"narrow(): length must be non-negative, got {length}")
    if first > size - length:
        raise RuntimeError(
            f"narrow: start ({start}) + length ({length}) exceeds dimension size ({size}). It is "
            f"that of dim {axis} of a {describe(input)}"
        )
    return Slice.apply(input, dim=axis, start=first, end=first + length, step=1)


def select(input: "Tensor", dim: int, index: Any) -> "Tensor":
    """Return a view of entry `index` along `dim`, without that dimension.

    Raises:
        IndexError: if there is no such entry.
    """
    if not check_tensor(input, "select")._array.ndim:
        raise IndexError("select: at least one dimension is needed, got a scalar")
    axis = normalize_dim(dim, input._array.ndim, "select")
    size = input._array.shape[axis]
    entry = integer(index, "select", "index")
    if not -size <= entry < size:
        raise IndexError(
            f"select(): index {entry} out of range for tensor of size {list(input._array.shape)} "
            f"at dimension {axis}: it must be from {-size} to {size - 1}"
        )
    return Select.apply(input, dim=axis, index=entry)
