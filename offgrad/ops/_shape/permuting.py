"""Dimensions in another order, and dimensions repeated: views."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad._size import Size
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.dims import given_once, integers, is_integer, normalize_dim, sizes
from offgrad.ops._core.dtypes import check_tensor

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "broadcast_shapes",
    "broadcast_tensors",
    "broadcast_to",
    "expand",
    "moveaxis",
    "movedim",
    "permute",
    "swapaxes",
    "swapdims",
    "t",
    "transpose",
]


class Permute(Op):
    """Dimensions in another order; keeps nothing."""

    is_view = True

    def forward(self, x: Array, dims: tuple[int, ...]) -> Array:
        self.dims = dims
        return x.transpose(dims)

    def backward(self, grad: "Tensor") -> Any:
        return permute(grad, np.argsort(self.dims).tolist())


class Transpose(Op):
    """Two dimensions swapped; keeps nothing."""

    is_view = True

    def forward(self, x: Array, dim0: int, dim1: int) -> Array:
        self.dim0, self.dim1 = dim0, dim1
        # A new view, even if there is nothing to swap.
        return x.swapaxes(dim0, dim1) if x.ndim else x[...]

    def backward(self, grad: "Tensor") -> Any:
        if self.is_plain(grad) and grad._array.ndim:
            return wrap(grad._array.swapaxes(self.dim0, self.dim1), grad._storage)
        return transpose(grad, self.dim0, self.dim1)


class T(Op):
    """A matrix transposed; keeps nothing."""

    is_view = True

    def forward(self, x: Array) -> Array:
        return x.T

    def backward(self, grad: "Tensor") -> Any:
        return t(grad)


class Expand(Op):
    """Dimensions of size 1 repeated without copying; keeps nothing."""

    is_view = True

    def forward(self, x: Array, shape: tuple[int, ...]) -> Array:
        self.self_sym_sizes = x.shape
        # Writable as PyTorch's: in-place operations refuse overlapping memory.
        strides = (0,) * (len(shape) - x.ndim) + tuple(
            0 if old_size == 1 and new_size != 1 else stride
            for old_size, new_size, stride in zip(
                x.shape, shape[len(shape) - x.ndim :], x.strides, strict=True
            )
        )
        return np.lib.stride_tricks.as_strided(x, shape, strides)

    def backward(self, grad: "Tensor") -> Any:
        return grad.sum_to_size(self.self_sym_sizes)


_OTHER_NUMBER = (
    "number of dimensions in the tensor input does not match the length of the desired ordering"
)


def permute(input: "Tensor", *order: Any, dims: Any = None) -> "Tensor":
    """Return a view with the dimensions in the order given, one by one or as `dims`."""
    ndim = check_tensor(input, "permute")._array.ndim
    named = sizes(given_once(order, dims, "permute"), "permute", "dims")
    axes = tuple([normalize_dim(dim, ndim, "permute") for dim in named])
    if sorted(axes) != list(range(ndim)):
        problem = "duplicate dims are not allowed" if len(axes) == ndim else _OTHER_NUMBER
        raise RuntimeError(
            f"permute: {problem}: dims must name each of {ndim} dimensions once, got {list(named)}"
        )
    return Permute.apply(input, dims=axes)


def transpose(input: "Tensor", dim0: int, dim1: int) -> "Tensor":
    """Return a view with two dimensions swapped."""
    ndim = check_tensor(input, "transpose")._array.ndim
    for dim in (dim0, dim1):
        normalize_dim(dim, ndim, "transpose")
    dim0, dim1 = int(dim0), int(dim1)
    return Transpose.apply(input, dim0=dim0, dim1=dim1)


def swapaxes(input: "Tensor", axis0: int, axis1: int) -> "Tensor":
    """Return a view with two dimensions swapped; NumPy's name for `transpose`."""
    return transpose(input, axis0, axis1)


def swapdims(input: "Tensor", dim0: int, dim1: int) -> "Tensor":
    """Return a view with two dimensions swapped; another name for `transpose`."""
    return transpose(input, dim0, dim1)


def movedim(
    input: "Tensor", source: int | Sequence[int], destination: int | Sequence[int]
) -> "Tensor":
    """Return a view with dimensions moved from `source` to `destination`, the others in order.

    Raises:
        RuntimeError: if their numbers differ, or a dimension is given twice.
    """
    ndim = check_tensor(input, "movedim")._array.ndim
    pair = []
    for each in (source, destination):
        dims = (each,) if is_integer(each) else integers(each, "movedim", "dims")
        pair.append([normalize_dim(dim, ndim, "movedim") for dim in dims])  # type: ignore[arg-type]
    old, new = pair
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        problem = "Invalid source or destination dims"
        if len(old) == len(new):
            repeated = "source" if len(set(old)) != len(old) else "destination"
            problem = f"repeated dim in `{repeated}`"
        raise RuntimeError(
            f"movedim: {problem}: both must name the same number of dimensions, each once, got "
            f"{source} and {destination}"
        )
    if not ndim:
        return permute(input, ())
    order = [axis for axis in range(ndim) if axis not in old]
    for position, axis in sorted(zip(new, old, strict=True)):
        order.insert(position, axis)
    return permute(input, order)


def moveaxis(
    input: "Tensor", source: int | Sequence[int], destination: int | Sequence[int]
) -> "Tensor":
    """Return a view with dimensions moved; NumPy's name for `movedim`."""
    return movedim(input, source, destination)


def t(input: "Tensor") -> "Tensor":
    """Return the transposed matrix; of vectors and scalars the tensor itself."""
    if check_tensor(input, "t")._array.ndim > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, got a {describe(input)}; use transpose()"
        )
    return T.apply(input)


def expand(input: "Tensor", *shape: Any, size: Any = None) -> "Tensor":
    """Return a view that repeats dimensions of size 1; -1 keeps a size."""
    return expand_to(input, sizes(given_once(shape, size, "expand", "size"), "expand"), "expand")


_TOO_FEW = "the number of sizes must be greater or equal to the number of dimensions in the tensor"


def expand_to(input: "Tensor", requested: Sequence[int], where: str) -> "Tensor":
    """Return `expand` of `input` for the operation `where`, which errors name."""
    input_shape = check_tensor(input, where)._array.shape
    target = list(requested)
    num_new = len(target) - len(input_shape)
    for axis, size in enumerate(target):
        old_size = input_shape[axis - num_new] if axis >= num_new >= 0 else None
        if size == -1 and old_size is not None:
            target[axis] = old_size
        elif num_new < 0 or size < 0 or (old_size not in (None, 1) and old_size != size):
            if num_new < 0:
                problem = _TOO_FEW
            elif size == old_size or old_size is None or size < 0:
                problem = f"{size} is no size of a new dimension {axis}"
            else:
                problem = (
                    f"The expanded size of the tensor ({size}) must match the existing size "
                    f"({old_size}) at non-singleton dimension {axis}"
                )
            raise RuntimeError(
                f"{where}: {problem}, got size {list(requested)} for a {describe(input)}"
            )
    if num_new < 0:
        raise RuntimeError(f"{where}: {_TOO_FEW}, got size {target} for a {describe(input)}")
    return Expand.apply(input, shape=tuple(target))


def broadcast_to(input: "Tensor", *shape: Any, size: Any = None) -> "Tensor":
    """Return a view broadcast to the shape `size`."""
    given = given_once(shape, size, "broadcast_to", "size")
    return expand_to(input, sizes(given, "broadcast_to"), "broadcast_to")


def broadcast_shapes(*shapes: int | Sequence[int]) -> Size:
    """Return the shape to which shapes broadcast; an integer is a shape of one size.

    Raises:
        RuntimeError: if they do not broadcast.
        ValueError: for negative sizes.
    """
    given = [tuple(each) if isinstance(each, Sequence) else (each,) for each in shapes]
    if any(size < 0 for each in given for size in each):
        raise ValueError(f"Attempting to broadcast a dimension with negative length! got {given}")
    try:
        return Size(np.broadcast_shapes(*given))
    except ValueError:
        raise RuntimeError(
            f"broadcast_shapes: sizes must be equal or 1 where they differ, got {given}"
        ) from None


def broadcast_tensors(*tensors: "Tensor") -> "tuple[Tensor, ...]":
    """Return a view of each tensor, all broadcast to one shape.

    Raises:
        RuntimeError: if their shapes do not broadcast.
    """
    shapes = [check_tensor(each, "broadcast_tensors")._array.shape for each in tensors]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise RuntimeError(
            "broadcast_tensors: sizes must be equal or 1 where they differ, got shapes "
            f"{[list(each) for each in shapes]}"
        ) from None
    return tuple(expand(each, shape) for each in tensors)
