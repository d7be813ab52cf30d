"""Changes of shape: views where the memory layout allows, else copies."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad._dtype import DType
from offgrad._layout import contiguous_format
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, alias, describe, metadata, wrap
from offgrad.ops._core.dims import (
    given_once,
    integers,
    is_integer,
    normalize_dim,
    normalize_dims,
    sizes,
)
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._core.memory_formats import empty_in_order, is_in_order, order_of
from offgrad.ops._core.numpy_names import with_numpy_names

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "clone",
    "contiguous",
    "detach",
    "flatten",
    "ravel",
    "reshape",
    "squeeze",
    "unflatten",
    "unsqueeze",
    "view",
]


class View(Op):
    """Another shape over the same memory; keeps nothing."""

    is_view = True

    def forward(self, x: Array, shape: tuple[int, ...]) -> Array:
        self.self_sym_sizes = x.shape
        return x.reshape(shape, copy=False)

    def backward(self, grad: "Tensor") -> Any:
        if self.is_plain(grad) and grad._array.flags.c_contiguous:
            return wrap(grad._array.reshape(self.self_sym_sizes), grad._storage)
        return grad.reshape(self.self_sym_sizes)


class UnsafeView(Op):
    """The elements in another shape, a copy unless x is contiguous; keeps nothing.

    Autograd does not treat the result as a view: a contiguous x must have no other reference.
    """

    def forward(self, x: Array, shape: tuple[int, ...]) -> Array:
        self.self_sym_sizes = x.shape
        return memory.contiguous(x).reshape(shape)

    def backward(self, grad: "Tensor") -> Any:
        return grad.reshape(self.self_sym_sizes)


class _WithoutOnes(Op):
    """A view without some dimensions of size 1; keeps nothing."""

    is_view = True

    def forward(self, x: Array, dim: Any = None) -> Array:
        self.self_sym_sizes = x.shape
        self.dim = dim
        dims = normalize_dims(dim, x.ndim, "squeeze") if dim != () else ()
        return np.squeeze(x, tuple(axis for axis in dims if x.shape[axis] == 1))

    def backward(self, grad: "Tensor") -> Any:
        return grad.reshape(self.self_sym_sizes)


class Squeeze(_WithoutOnes):
    """A view without dimensions of size 1; keeps nothing."""


class SqueezeDim(_WithoutOnes):
    """A view without a dimension, if its size is 1; keeps nothing."""

    torch_name = "SqueezeBackward1"


class SqueezeDims(_WithoutOnes):
    """A view without those of some dimensions whose size is 1; keeps nothing."""

    torch_name = "SqueezeBackward2"


class Unsqueeze(Op):
    """A view with a dimension of size 1 inserted; keeps nothing."""

    is_view = True

    def forward(self, x: Array, dim: int) -> Array:
        self.dim = dim
        view: Array = x[(slice(None),) * dim + (None, ...)]
        return view

    def backward(self, grad: "Tensor") -> Any:
        return squeeze(grad, self.dim)


class Clone(Op):
    """A copy, in C order or another; keeps nothing."""

    def forward(self, x: Array, order: tuple[int, ...] | None = None) -> Array:
        if order is None:
            return memory.copy(x)
        out = empty_in_order(x.shape, x.dtype, order)
        np.copyto(out, x)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return grad


def _resolve(shape: tuple[int, ...], input: "Tensor", where: str) -> tuple[int, ...]:
    """Return `shape` with -1 replaced by the size that fits."""
    size = input._array.size
    if shape.count(-1) == 1:
        known = prod(each for each in shape if each != -1)
        if known and size % known == 0:
            shape = tuple(size // known if each == -1 else each for each in shape)
    if min(shape, default=0) < 0 or prod(shape) != size:
        problem = f"shape '{list(shape)}' is invalid for input of size {size}"
        if min(shape, default=0) < -1:
            problem = f"invalid shape dimension {min(shape)} in shape {list(shape)}"
        elif shape.count(-1) > 1:
            problem = f"only one dimension can be inferred, not several of shape {list(shape)}"
        elif -1 in shape and 0 in shape and not size:
            problem = (
                f"cannot reshape tensor of 0 elements into shape {list(shape)} because the "
                "unspecified dimension size -1 can be any value and is ambiguous"
            )
        raise RuntimeError(
            f"{where}: {problem}: it must hold exactly the elements of the {describe(input)}; one "
            "size may be -1"
        )
    return shape


def view(input: "Tensor", *shape: Any, size: Any = None, dtype: Any = None) -> "Tensor":
    """Return a view of another shape, given one by one or as `size`; one size may be -1.

    With a dtype instead of a shape return the same bytes as elements of that dtype, detached.

    Raises:
        RuntimeError: if the elements do not fit, or the memory layout needs a copy (use `reshape`).
    """
    if len(shape) == 1 and isinstance(shape[0], (DType, np.dtype, type)):
        (dtype,), shape = given_once(shape, dtype, "view", "dtype"), ()
    if dtype is not None:
        if shape or size is not None:
            raise TypeError(f"view: takes a shape or a dtype, got both, dtype={dtype}")
        return _reinterpret(check_tensor(input, "view"), np.dtype(dtype))
    target = _resolve(
        sizes(given_once(shape, size, "view", "size"), "view"), check_tensor(input, "view"), "view"
    )
    result = _try_view(input, target)
    if result is None:
        raise RuntimeError(
            f"view: shape {list(target)} needs a copy: view size is not compatible with input "
            f"tensor's size and stride, {input.stride()} for this {describe(input)}. "
            "Use .reshape(...) instead"
        )
    return result


def _reinterpret(input: "Tensor", dtype: np.dtype[Any]) -> "Tensor":
    """Return the bytes of `input` as elements of `dtype`, outside the graph as in PyTorch."""
    array = input._array
    given, wanted = array.itemsize, dtype.itemsize
    if given != wanted:
        where = f"view: self, a {describe(input)}, as {dtype.name} (different element sizes)"
        if not array.ndim:
            raise RuntimeError(f"{where}: self.dim() cannot be 0")
        *steps, step = input.stride()
        if array.size and step != 1:
            raise RuntimeError(f"{where}: self.stride(-1) must be 1, got {step}")
        for name, count in (
            ("self.size(-1)", array.shape[-1]),
            ("self.storage_offset()", input.storage_offset()),
            *((f"self.stride({dim})", each) for dim, each in enumerate(steps)),
        ):
            if count * given % wanted:
                raise RuntimeError(
                    f"{where}: {name} must be divisible by {wanted // given}, got {count}"
                )
    return wrap(array.view(dtype), input._storage)


def _try_view(input: "Tensor", shape: tuple[int, ...]) -> "Tensor | None":
    if not input._array.flags.c_contiguous:
        try:
            input._array.reshape(shape, copy=False)
        except ValueError:
            return None
    return View.apply(input, shape=shape)


def reshape(input: "Tensor", *one_by_one: Any, shape: Any = None) -> "Tensor":
    """Return the elements in another shape: a view where possible, else a copy."""
    given = given_once(one_by_one, shape, "reshape", "shape")
    return reshape_to(input, sizes(given, "reshape"), "reshape")


def reshape_to(input: "Tensor", shape: tuple[int, ...], where: str) -> "Tensor":
    """Return `reshape` of `input` for the operation `where`, which errors name."""
    target = _resolve(shape, check_tensor(input, where), where)
    result = _try_view(input, target)
    return UnsafeView.apply(input, shape=target) if result is None else result


def flatten(input: "Tensor", start_dim: int = 0, end_dim: int = -1) -> "Tensor":
    """Return `input` with dimensions `start_dim` to `end_dim` merged; itself if that is one."""
    shape = check_tensor(input, "flatten")._array.shape
    if not shape:
        return reshape(input, 1)
    first = normalize_dim(start_dim, len(shape), "flatten")
    last = normalize_dim(end_dim, len(shape), "flatten")
    if last < first:
        raise RuntimeError(f"flatten: start_dim cannot come after end_dim, got {first} and {last}")
    if first == last:
        return input
    return reshape(input, (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]))


def ravel(input: "Tensor") -> "Tensor":
    """Return the elements as a vector without gaps: a view of a contiguous tensor, else a copy."""
    is_empty = not check_tensor(input, "ravel")._array.size
    return reshape(contiguous(input), 0 if is_empty else -1)


@with_numpy_names
def unflatten(input: "Tensor", dim: int, sizes: Sequence[int]) -> "Tensor":
    """Return a view with dimension `dim` split into several of `sizes`; one may be -1.

    Raises:
        RuntimeError: if the sizes do not multiply to that of the dimension.
    """
    shape = check_tensor(input, "unflatten")._array.shape
    axis = normalize_dim(dim, len(shape), "unflatten")
    parts = integers(sizes, "unflatten", "sizes")
    if not parts or not shape:
        raise RuntimeError(
            f"unflatten: a dimension and at least one size are needed, got sizes {list(parts)} for "
            f"a {describe(input)}"
        )
    known = prod(size for size in parts if size != -1)
    if parts.count(-1) == 1 and known > 0 and shape[axis] % known == 0:
        parts = tuple(shape[axis] // known if size == -1 else size for size in parts)
    if min(parts) < 0 or prod(parts) != shape[axis]:
        raise RuntimeError(
            f"unflatten: Provided sizes {list(parts)} don't multiply up to the size of dim {axis}, "
            f"{shape[axis]}; one may be -1"
        )
    return view(input, *shape[:axis], *parts, *shape[axis + 1 :])


@with_numpy_names
def squeeze(input: "Tensor", dim: int | Sequence[int] | None = None) -> "Tensor":
    """Return a view without dimensions of size 1: all of them, or those of `dim` that have it."""
    ndim = check_tensor(input, "squeeze")._array.ndim
    if dim is None:
        return Squeeze.apply(input)
    if is_integer(dim):
        return SqueezeDim.apply(input, dim=normalize_dim(dim, ndim, "squeeze"))  # type: ignore[arg-type]
    dims = normalize_dims(dim, ndim, "squeeze") if dim != () else ()
    return SqueezeDims.apply(input, dim=dims)


@with_numpy_names
def unsqueeze(input: "Tensor", dim: int) -> "Tensor":
    """Return a view with a dimension of size 1 inserted at `dim`."""
    ndim = check_tensor(input, "unsqueeze")._array.ndim
    return Unsqueeze.apply(input, dim=normalize_dim(dim, ndim + 1, "unsqueeze"))


def atleast_1d(*tensors: Any) -> Any:
    """Return each tensor with at least one dimension."""
    return _each(lambda x: x if x.ndim else reshape(x, 1), tensors)


def atleast_2d(*tensors: Any) -> Any:
    """Return each tensor with at least two dimensions; a vector becomes a row."""
    return _each(
        lambda x: x if x.ndim > 1 else unsqueeze(x, 0) if x.ndim else reshape(x, 1, 1), tensors
    )


def atleast_3d(*tensors: Any) -> Any:
    """Return each tensor with at least three dimensions: [N] as [1, N, 1], [N, M] as [N, M, 1]."""

    def with_3_dims(x: "Tensor") -> "Tensor":
        if x.ndim > 2:
            return x
        if x.ndim == 2:
            return unsqueeze(x, -1)
        return unsqueeze(unsqueeze(x, 0), -1) if x.ndim else reshape(x, 1, 1, 1)

    return _each(with_3_dims, tensors)


def _each(function: Any, tensors: tuple[Any, ...]) -> Any:
    """Apply `function` to one tensor, or to each of a sequence; return a tuple then."""
    if len(tensors) == 1:
        if isinstance(tensors[0], TensorBase):
            return function(tensors[0])
        tensors = tuple(tensors[0])
    return tuple(function(check_tensor(each, "atleast")) for each in tensors)


def contiguous(input: "Tensor", memory_format: Any = contiguous_format) -> "Tensor":
    """Return `input` itself if its memory is in the order, without gaps, else a copy in it."""
    array = metadata(check_tensor(input, "contiguous"))
    if memory_format is contiguous_format:
        return input if array.flags.c_contiguous else Clone.apply(input)
    if is_in_order(array, memory_format, "contiguous"):
        return input
    return Clone.apply(input, order=order_of(array, memory_format, "contiguous"))


def clone(input: "Tensor", *, memory_format: Any = None) -> "Tensor":
    """Return a copy, whose dimensions lie in memory as those of `input` if that has no gaps."""
    array = check_tensor(input, "clone")._array
    if memory_format is None and array.flags.c_contiguous:
        return Clone.apply(input)
    return Clone.apply(input, order=order_of(array, memory_format, "clone"))


def detach(input: "Tensor") -> "Tensor":
    """Return a tensor that shares the memory and is not part of the graph."""
    return alias(check_tensor(input, "detach"))
