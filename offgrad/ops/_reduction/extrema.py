"""Maxima and minima over dimensions, with or without their indices."""

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, numpy_dtype, wrap
from offgrad.ops._core.dims import (
    Dim,
    normalize_dim,
    normalize_dims,
)
from offgrad.ops._core.dtypes import check_not_bool, check_ordered, check_tensor
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._core.results import Extreme, result
from offgrad.ops._reduction.sums import (
    Reduction,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "amax",
    "amin",
    "aminmax",
    "argmax",
    "argmin",
    "max",
    "min",
]


@result("aminmax")
class Range(NamedTuple):
    """The smallest and the largest."""

    min: "Tensor"
    max: "Tensor"


class Amax(Reduction):
    """The largest, smallest or median over dimensions; keeps x and the result.

    Ties share the gradient. If the result is NaN, NaNs share it in max, min and median; amax and
    amin give NaN to all elements, as in PyTorch.
    """

    def forward(
        self,
        x: Array,
        dim: tuple[int, ...],
        keepdim: bool,
        reduce: Callable[..., Any],
    ) -> Array:
        shape = self.reduced_shape(x, dim or tuple(range(x.ndim)), keepdim)
        self.dim = dim
        out = memory.empty(shape, x.dtype)
        if isinstance(reduce, np.ufunc):
            kernels.reduce_axes(reduce.reduce, x, self.dims, out)
        else:  # of parts there is no median
            reduce(x, out)
        self.save(self=x, result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Share the gradient among the elements that attain the extremum."""
        x, result = self.saved("self")._array, self.with_reduced_dims(self.saved("result"))._array
        counts_nan = not self.name().startswith("Am")
        shares = _shares(x, result, self.dims, counts_nan, numpy_dtype(grad))
        return self.expanded(grad) * wrap(shares)


def _shares(
    x: Array, result: Array, dims: tuple[int, ...], counts_nan: bool, dtype: np.dtype[Any]
) -> Array:
    """Return each element's share of the gradient: 1 over the number of ties, or 0.

    `result` has size 1 in the reduced dimensions.
    """
    out = memory.empty(x.shape, dtype)

    def attained(part: Array, extreme: Array) -> Array:
        mask = np.asarray(part == extreme)
        if counts_nan and np.isnan(extreme).any():
            mask |= np.isnan(part) & np.isnan(extreme)
        return mask

    def share(index: tuple[Any, ...]) -> None:
        mask = attained(x[index], result[index])
        ties = np.count_nonzero(mask, axis=dims, keepdims=True) if dims else mask
        with np.errstate(all="ignore"):
            np.divide(mask, np.asarray(ties), out=out[index], casting="unsafe")

    if not kernels.is_large(x.size):
        share((...,))
        return out
    if len(dims) < x.ndim or not x.flags.c_contiguous:
        kernels.in_parts(share, x, dims)
        return out
    flat, shares, extreme = x.reshape(-1), out.reshape(-1), result.reshape(())
    ties: list[int] = []
    kernels.in_chunks(
        lambda a, b: ties.append(int(np.count_nonzero(attained(flat[a:b], extreme)))), x.size
    )
    with np.errstate(divide="ignore"):
        each = np.asarray(np.float64(1) / builtins.sum(ties)).astype(dtype)
    kernels.in_chunks(
        lambda a, b: np.multiply(
            attained(flat[a:b], extreme), each, out=shares[a:b], casting="unsafe"
        ),
        x.size,
    )
    return out


class Selection(Op):
    """Elements picked along one dimension, and their indices; keeps the indices."""

    def forward(
        self,
        x: Array,
        dim: int,
        find: Callable[[Array, int], Array],
        keepdim: bool = True,
    ) -> tuple[Array, Array]:
        """Return the elements at the indices ``find(x, dim)``, and those indices.

        Without `keepdim` the dimension, then of size 1, is dropped.
        """
        self.dim, self.keepdim = dim, keepdim
        self.self_sym_sizes = x.shape
        if not x.ndim:
            return memory.copy(x), np.zeros((), np.int64)
        indices = np.asarray(find(x, dim), np.int64)
        values = memory.empty(indices.shape, x.dtype)
        kernels.gather(x, indices, dim, values)
        if not keepdim:
            values, indices = values.squeeze(dim), indices.squeeze(dim)
        self.save(indices=indices)
        return values, indices

    def backward(self, grad: "Tensor | None", _: Any = None) -> Any:
        """Pass the gradient to the elements picked."""
        if grad is None or not self.self_sym_sizes:
            return grad
        indices = self.saved("indices")
        if not self.keepdim:
            grad, indices = grad.unsqueeze(self.dim), indices.unsqueeze(self.dim)
        return Scattered.apply(grad, indices, dim=self.dim, shape=self.self_sym_sizes)


class Scattered(Op):
    """Zeros with a tensor added at an index tensor along a dimension; keeps the index."""

    torch_name = "ScatterAddBackward0"

    def forward(self, source: Array, index: Array, dim: int, shape: tuple[int, ...]) -> Array:
        self.dim = dim
        self.save(index=index)
        out = memory.empty(shape, source.dtype)
        kernels.elementwise(_fill_with_zeros, out)
        target, at = np.atleast_1d(out), np.atleast_1d(index)
        kernels.scatter_add(target, at, memory.contiguous(source).reshape(at.shape), dim)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Gather the gradient."""
        return grad.gather(self.dim, self.saved("index")), None


def _fill_with_zeros(out: Array) -> None:
    out[...] = 0


def not_empty(input: "Tensor", dims: tuple[int, ...], where: str, kind: type[Exception]) -> None:
    """Raise `kind` if a dimension of `dims` is empty."""
    if builtins.any(input._array.shape[axis] == 0 for axis in dims):
        raise kind(f"{where}(): {_of_none(input._array, dims)}")


def _of_none(array: Array, dims: tuple[int, ...]) -> str:
    """Return what is wrong with reducing dimensions of which one is empty."""
    axis = next(axis for axis in dims if array.shape[axis] == 0)
    if len(dims) == array.ndim:
        return (
            "Expected reduction dim to be specified for input.numel() == 0: at least one element "
            f"is needed, or a dim to have non-zero size, got shape {list(array.shape)}"
        )
    return f"Expected reduction dim {axis} to have non-zero size, got shape {list(array.shape)}"


def _extreme(input: "Tensor", dim: Dim, keepdim: bool, ufunc: Any, where: str) -> "Tensor":
    dims = normalize_dims(dim, check_tensor(input, where)._array.ndim, where)
    check_ordered(input, where)
    not_empty(input, dims, where, RuntimeError if dim is None else IndexError)
    name = where.capitalize() + ("Backward0" if where.startswith("a") else "Backward1")
    return Amax.named(name).apply(
        input,
        dim=dims if dim is not None else (),
        keepdim=keepdim,
        reduce=ufunc,
    )


@with_numpy_names
def amax(input: "Tensor", dim: Dim = None, keepdim: bool = False) -> "Tensor":
    """Return the maximum over `dim`, all dimensions by default; ties share the gradient."""
    return _extreme(input, dim, keepdim, np.maximum, "amax")


@with_numpy_names
def amin(input: "Tensor", dim: Dim = None, keepdim: bool = False) -> "Tensor":
    """Return the minimum over `dim`, all dimensions by default; ties share the gradient."""
    return _extreme(input, dim, keepdim, np.minimum, "amin")


@with_numpy_names
def aminmax(input: "Tensor", *, dim: int | None = None, keepdim: bool = False) -> Range:
    """Return ``(min, max)`` along `dim`, of all elements by default; ties share the gradient."""
    normalize_dims(dim, check_tensor(input, "aminmax")._array.ndim, "aminmax")
    check_ordered(input, "aminmax")
    return Range(amin(input, dim, keepdim), amax(input, dim, keepdim))


def _find_extreme(find: Any, x: Array, axis: int) -> Array:
    """Return the indices of np.argmax or np.argmin, `find`, with the dimension of size 1."""
    if not kernels.is_large(x.size):
        return np.asarray(find(x, axis=axis, keepdims=True))
    # NumPy searches contiguous rows.
    table = memory.contiguous(np.moveaxis(x, axis, -1))
    return np.expand_dims(kernels.arg_extreme(find, table), axis)


def _argmax(x: Array, axis: int) -> Array:
    return _find_extreme(np.argmax, x, axis)


def _argmin(x: Array, axis: int) -> Array:
    return _find_extreme(np.argmin, x, axis)


def _max_or_min(input: "Tensor", dim: Any, keepdim: bool, where: str) -> "Tensor | Extreme":
    largest = where == "max"
    if dim is None:
        return _extreme(input, None, False, np.maximum if largest else np.minimum, where)
    if isinstance(dim, TensorBase):
        check_tensor(input, where)
        return input.maximum(dim) if largest else input.minimum(dim)  # type: ignore[arg-type]
    axis = normalize_dim(dim, check_tensor(input, where)._array.ndim, where)
    check_ordered(input, where, RuntimeError)
    not_empty(input, (axis,) if input._array.ndim else (), where, IndexError)
    find = _argmax if largest else _argmin
    name = f"{where.capitalize()}Backward0"
    run = Selection.named(name).apply_all
    return Extreme.of(where, *run(input, dim=axis, find=find, keepdim=keepdim))


def _second(dim: Any, keepdim: bool, other: "Tensor | None", where: str) -> Any:
    """Return the second argument: a dimension or the other tensor."""
    if other is None:
        return dim
    if dim is not None or keepdim or not isinstance(other, TensorBase):
        raise TypeError(f"{where} takes either dim and keepdim, or another tensor")
    return other


@with_numpy_names
def max(
    input: "Tensor", dim: Any = None, keepdim: bool = False, *, other: "Tensor | None" = None
) -> Any:
    """Return the maximum; along `dim` ``(values, indices)``; of two tensors the elementwise one."""
    return _max_or_min(input, _second(dim, keepdim, other, "max"), keepdim, "max")


@with_numpy_names
def min(
    input: "Tensor", dim: Any = None, keepdim: bool = False, *, other: "Tensor | None" = None
) -> Any:
    """Return the minimum; along `dim` ``(values, indices)``; of two tensors the elementwise one."""
    return _max_or_min(input, _second(dim, keepdim, other, "min"), keepdim, "min")


def _arg_extreme(
    find: Any, input: "Tensor", dim: int | None, keepdim: bool, where: str
) -> "Tensor":
    array = check_tensor(input, where)._array
    check_ordered(input, where, RuntimeError)
    check_not_bool(input, where, RuntimeError)
    axis = None if dim is None else normalize_dim(dim, array.ndim, where)
    if not (array.size if axis is None or not array.ndim else array.shape[axis]):
        dims = tuple(range(array.ndim)) if axis is None else (axis,)
        raise IndexError(f"{where}(): {_of_none(array, dims)}")
    if axis is None or not array.ndim:
        return wrap(find(array, axis=axis if array.ndim else None, keepdims=keepdim))
    found = _find_extreme(find, array, axis)
    return wrap(found if keepdim else found.squeeze(axis))


@with_numpy_names
def argmax(input: "Tensor", dim: int | None = None, keepdim: bool = False) -> "Tensor":
    """Return the index of the largest element along `dim`, or in the flattened tensor."""
    return _arg_extreme(np.argmax, input, dim, keepdim, "argmax")


@with_numpy_names
def argmin(input: "Tensor", dim: int | None = None, keepdim: bool = False) -> "Tensor":
    """Return the index of the smallest element along `dim`, or in the flattened tensor."""
    return _arg_extreme(np.argmin, input, dim, keepdim, "argmin")
