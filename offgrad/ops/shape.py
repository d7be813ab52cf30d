"""Views, which share memory, and joins, which copy."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops.convert import check_tensor
from offgrad.ops.reduce import normalize_dim, normalize_dims, sum_to_size

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


def sizes(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the sizes given one by one, or as one sequence."""
    if len(args) == 1 and not isinstance(args[0], int | np.integer):
        return tuple(int(size) for size in args[0])
    return tuple(int(size) for size in args)


class View(Op):
    """Another shape over the same memory; keeps nothing."""

    is_view = True

    def forward(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return the view."""
        self.shape = x.shape
        return np.reshape(x, shape, copy=False)

    def backward(self, grad: "Tensor") -> Any:
        """Shape back."""
        return grad.reshape(self.shape)


class Permute(Op):
    """Dimensions in another order; keeps nothing."""

    is_view = True

    def forward(self, x: Array, order: tuple[int, ...]) -> Array:
        """Return the view."""
        self.order = order
        return x.transpose(order)

    def backward(self, grad: "Tensor") -> Any:
        """Reorder back."""
        return permute(grad, np.argsort(self.order).tolist())


class Expand(Op):
    """Dimensions of size 1 repeated without copying; keeps nothing."""

    is_view = True

    def forward(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return the view."""
        self.shape = x.shape
        # Writable as PyTorch's; the memory is the base's and in-place operations refuse overlaps.
        strides = (0,) * (len(shape) - x.ndim) + tuple(
            0 if have == 1 and want != 1 else stride
            for have, want, stride in zip(
                x.shape, shape[len(shape) - x.ndim :], x.strides, strict=True
            )
        )
        return np.lib.stride_tricks.as_strided(x, shape, strides)

    def backward(self, grad: "Tensor") -> Any:
        """Sum what was repeated."""
        return sum_to_size(grad, self.shape)


class Flip(Op):
    """The order along dimensions reversed, a copy; keeps nothing."""

    def forward(self, x: Array, dims: tuple[int, ...]) -> Array:
        """Return the reversed copy."""
        self.dims = dims
        return memory.copy(np.flip(x, dims))

    def backward(self, grad: "Tensor") -> Any:
        """Reverse back."""
        return flip(grad, self.dims)


class Clone(Op):
    """A copy in memory of its own, C-ordered; keeps nothing."""

    def forward(self, x: Array) -> Array:
        """Return the copy."""
        return memory.copy(x)

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient."""
        return grad


class Tril(Op):
    """The lower or upper triangle of matrices, the rest zero; keeps nothing."""

    def name(self) -> str:
        """Return PyTorch's name."""
        return "TrilBackward0" if self.lower else "TriuBackward0"

    def forward(self, x: Array, diagonal: int, lower: bool) -> Array:
        """Return the triangle."""
        self.diagonal, self.lower = diagonal, lower
        return (np.tril if lower else np.triu)(x, diagonal)

    def backward(self, grad: "Tensor") -> Any:
        """The gradient's triangle."""
        return (tril if self.lower else triu)(grad, self.diagonal)


def _resolve(shape: tuple[int, ...], input: "Tensor", where: str) -> tuple[int, ...]:
    """Return `shape` with its -1 worked out."""
    size = input._array.size
    if shape.count(-1) == 1:
        rest = prod(each for each in shape if each != -1)
        if rest and size % rest == 0:
            shape = tuple(size // rest if each == -1 else each for each in shape)
    if min(shape, default=0) < 0 or prod(shape) != size:
        raise RuntimeError(
            f"{where}: the shape must hold exactly the tensor's {size} elements (one size may be "
            f"-1), got shape {list(shape)} for a {describe(input)}"
        )
    return shape


def view(input: "Tensor", *shape: Any) -> "Tensor":
    """Return a view of another shape; one size may be -1.

    Raises:
        RuntimeError: if the elements do not fit, or the memory layout needs a copy (use `reshape`).
    """
    if len(shape) == 1 and isinstance(shape[0], np.dtype | type):
        raise NotImplementedError("view(dtype) is not supported; use to(dtype), which converts")
    target = _resolve(sizes(shape), check_tensor(input, "view"), "view")
    result = _try_view(input, target)
    if result is None:
        raise RuntimeError(
            f"view: shape {list(target)} needs a copy, because the memory of this "
            f"{describe(input)} with strides {input.stride()} is not laid out so; use reshape()"
        )
    return result


def _try_view(input: "Tensor", shape: tuple[int, ...]) -> "Tensor | None":
    if not input._array.flags.c_contiguous:
        try:
            np.reshape(input._array, shape, copy=False)
        except ValueError:
            return None
    return View.apply(input, shape=shape)


def reshape(input: "Tensor", *shape: Any) -> "Tensor":
    """Return the elements in another shape: a view where possible, else a copy."""
    target = _resolve(sizes(shape), check_tensor(input, "reshape"), "reshape")
    result = _try_view(input, target)
    return _try_view(clone(input), target) if result is None else result  # type: ignore[return-value]


def flatten(input: "Tensor", start_dim: int = 0, end_dim: int = -1) -> "Tensor":
    """Return `input` with dimensions `start_dim` to `end_dim` made one."""
    shape = check_tensor(input, "flatten")._array.shape
    if not shape:
        return reshape(input, 1)
    first = normalize_dim(start_dim, len(shape), "flatten")
    last = normalize_dim(end_dim, len(shape), "flatten")
    if last < first:
        raise RuntimeError(
            f"flatten: start_dim must not come after end_dim, got {first} and {last}"
        )
    return reshape(input, (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]))


def permute(input: "Tensor", *dims: Any) -> "Tensor":
    """Return a view with the dimensions in the order `dims`."""
    ndim = check_tensor(input, "permute")._array.ndim
    order = tuple(normalize_dim(dim, ndim, "permute") for dim in sizes(dims))
    if sorted(order) != list(range(ndim)):
        raise RuntimeError(
            f"permute: dims must name each of {ndim} dimensions once, got {list(sizes(dims))}"
        )
    return Permute.apply(input, order=order)


def transpose(input: "Tensor", dim0: int, dim1: int) -> "Tensor":
    """Return a view with two dimensions swapped."""
    ndim = check_tensor(input, "transpose")._array.ndim
    order = list(range(ndim))
    a, b = normalize_dim(dim0, ndim, "transpose"), normalize_dim(dim1, ndim, "transpose")
    if ndim:
        order[a], order[b] = order[b], order[a]
    return Permute.apply(input, order=tuple(order))


def t(input: "Tensor") -> "Tensor":
    """Return the transposed matrix; vectors and scalars as they are."""
    if check_tensor(input, "t")._array.ndim > 2:
        raise RuntimeError(
            f"t: a tensor of at most 2 dimensions is needed, got a {describe(input)}"
        )
    return permute(input, *reversed(range(input._array.ndim)))


def expand(input: "Tensor", *shape: Any) -> "Tensor":
    """Return a view that repeats dimensions of size 1; -1 keeps a size."""
    given = check_tensor(input, "expand")._array.shape
    target = list(sizes(shape))
    lead = len(target) - len(given)
    for axis, size in enumerate(target):
        have = given[axis - lead] if axis >= lead >= 0 else None
        if size == -1 and have is not None:
            target[axis] = have
        elif lead < 0 or size < 0 or (have not in (None, 1) and have != size):
            raise RuntimeError(
                "expand: only dimensions of size 1 (and new ones in front) can be expanded, got "
                f"size {list(sizes(shape))} for a {describe(input)}"
            )
    if lead < 0:
        raise RuntimeError(
            f"expand: dimensions cannot go, got size {target} for a {describe(input)}"
        )
    return Expand.apply(input, shape=tuple(target))


def broadcast_to(input: "Tensor", shape: Sequence[int]) -> "Tensor":
    """Return a view broadcast to `shape`."""
    return expand(input, shape)


def squeeze(input: "Tensor", dim: int | Sequence[int] | None = None) -> "Tensor":
    """Return a view without dimensions of size 1: all of them, or those of `dim` that have it."""
    shape = check_tensor(input, "squeeze")._array.shape
    dims = normalize_dims(dim, len(shape), "squeeze")
    kept = tuple(size for axis, size in enumerate(shape) if size != 1 or axis not in dims)
    return View.apply(input, shape=kept)


def unsqueeze(input: "Tensor", dim: int) -> "Tensor":
    """Return a view with a dimension of size 1 inserted at `dim`."""
    shape = check_tensor(input, "unsqueeze")._array.shape
    axis = normalize_dim(dim, len(shape) + 1, "unsqueeze")
    return View.apply(input, shape=(*shape[:axis], 1, *shape[axis:]))


def contiguous(input: "Tensor") -> "Tensor":
    """Return `input` itself if its memory is C-ordered without gaps, else a copy that is."""
    return input if check_tensor(input, "contiguous")._array.flags.c_contiguous else clone(input)


def clone(input: "Tensor") -> "Tensor":
    """Return a copy in memory of its own, C-ordered."""
    return Clone.apply(check_tensor(input, "clone"))


def flip(input: "Tensor", *dims: Any) -> "Tensor":
    """Return a copy with the order along `dims` reversed."""
    axes = normalize_dims(sizes(dims), check_tensor(input, "flip")._array.ndim, "flip")
    return Flip.apply(input, dims=axes)


def _matrices(input: "Tensor", where: str) -> "Tensor":
    if check_tensor(input, where)._array.ndim < 2:
        raise RuntimeError(f"{where}: at least 2 dimensions are needed, got a {describe(input)}")
    return input


def tril(input: "Tensor", diagonal: int = 0) -> "Tensor":
    """Return the lower triangle of matrices, zero above `diagonal`."""
    return Tril.apply(_matrices(input, "tril"), diagonal=diagonal, lower=True)


def triu(input: "Tensor", diagonal: int = 0) -> "Tensor":
    """Return the upper triangle of matrices, zero below `diagonal`."""
    return Tril.apply(_matrices(input, "triu"), diagonal=diagonal, lower=False)


def detach(input: "Tensor") -> "Tensor":
    """Return a tensor over the same memory that no gradient flows through."""
    return wrap(check_tensor(input, "detach")._array, input._storage)
