"""Reductions over dimensions."""

import builtins
from collections.abc import Sequence
from math import prod as product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap
from offgrad.ops.convert import (
    cast,
    category,
    check_ordered,
    check_tensor,
)

if TYPE_CHECKING:
    from offgrad.tensor import Tensor

Dim: TypeAlias = int | Sequence[int] | None


class Extreme(NamedTuple):
    """The values and their indices along a dimension."""

    values: "Tensor"
    indices: "Tensor"


def normalize_dim(dim: int, ndim: int, where: str) -> int:
    """Return `dim` counted from the front.

    Raises:
        IndexError: if there is no such dimension.
    """
    bound = builtins.max(ndim, 1)
    if not -bound <= dim < bound:
        raise IndexError(
            f"{where}: dim must be from {-bound} to {bound - 1} for a tensor of {ndim} dimensions, "
            f"got {dim}"
        )
    return dim % bound


def normalize_dims(dim: Dim, ndim: int, where: str) -> tuple[int, ...]:
    """Return the dimensions meant by `dim`, counted from the front; None and () mean all."""
    if dim is None:
        return tuple(range(ndim))
    if isinstance(dim, int | np.integer):
        axis = normalize_dim(int(dim), ndim, where)
        return (axis,) if ndim else ()
    dims = tuple(normalize_dim(int(each), ndim, where) for each in dim)
    if len(set(dims)) != len(dims):
        raise RuntimeError(f"{where}: a dimension must be given once, got dim={tuple(dim)}")
    return dims if dims and ndim else tuple(range(ndim))


class _Reduction(Op):
    """A reduction over dimensions."""

    dims: tuple[int, ...]
    shape: tuple[int, ...]
    keepdim: bool

    def reduced_shape(self, x: Array, dims: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
        """Remember the geometry; return the shape of the result."""
        self.shape, self.dims, self.keepdim = x.shape, dims, keepdim
        if keepdim:
            return tuple(1 if axis in dims else size for axis, size in enumerate(x.shape))
        return tuple(size for axis, size in enumerate(x.shape) if axis not in dims)

    def expanded(self, reduced: "Tensor") -> "Tensor":
        """Return a tensor of the result's shape as a view that broadcasts to the input's."""
        if not self.keepdim:
            kept = [1 if axis in self.dims else size for axis, size in enumerate(self.shape)]
            reduced = reduced.reshape(kept)
        return reduced.expand(self.shape)

    @property
    def count(self) -> int:
        """How many elements go into one."""
        return product(self.shape[axis] for axis in self.dims)


class Sum(_Reduction):
    """The sum over dimensions; keeps nothing."""

    def forward(self, x: Array, dims: tuple[int, ...], keepdim: bool, dtype: Any) -> Array:
        """Return the sum."""
        out = memory.empty(self.reduced_shape(x, dims, keepdim), dtype)
        np.sum(x, axis=dims, keepdims=keepdim, dtype=dtype, out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Give every summand the gradient."""
        return self.expanded(grad)


class Mean(_Reduction):
    """The mean over dimensions; keeps nothing."""

    def forward(self, x: Array, dims: tuple[int, ...], keepdim: bool) -> Array:
        """Return the mean; NaN over nothing."""
        out = memory.empty(self.reduced_shape(x, dims, keepdim), x.dtype)
        np.sum(x, axis=dims, keepdims=keepdim, out=out)
        np.divide(out, x.dtype.type(self.count), out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Give every element its share."""
        return self.expanded(grad / self.count)


class Amax(_Reduction):
    """The largest or smallest over dimensions; keeps x and the result. Ties share the gradient."""

    def name(self) -> str:
        """Return PyTorch's name."""
        return "AmaxBackward0" if self.ufunc is np.maximum else "AminBackward0"

    def forward(self, x: Array, dims: tuple[int, ...], keepdim: bool, ufunc: Any) -> Array:
        """Return the extremum."""
        self.ufunc = ufunc
        out = memory.empty(self.reduced_shape(x, dims, keepdim), x.dtype)
        ufunc.reduce(x, axis=dims, keepdims=keepdim, out=out)
        self.save(self=x, result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Share the gradient among those that attain the extremum."""
        mask = (self.saved("self") == self.expanded(self.saved("result"))).to(grad.dtype)
        ties = mask.sum(self.dims, keepdim=True) if self.dims else mask
        return self.expanded(grad) * (mask / ties)


class MaxDim(_Reduction):
    """The largest or smallest along one dimension, with its index; keeps the index."""

    def name(self) -> str:
        """Return PyTorch's name."""
        return "MaxBackward0" if self.largest else "MinBackward0"

    def forward(self, x: Array, dim: int, keepdim: bool, largest: bool) -> tuple[Array, Array]:
        """Return values and the first indices that attain them."""
        self.largest, self.dim = largest, dim
        self.reduced_shape(x, (dim,) if x.ndim else (), keepdim)
        if not x.ndim:
            return x.copy(), np.zeros((), np.int64)
        index = (np.argmax if largest else np.argmin)(x, axis=dim, keepdims=True)
        values = np.take_along_axis(x, index, dim)
        self.save(indices=index)
        return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))

    def backward(self, grad: "Tensor | None", _: Any = None) -> Any:
        """Give the gradient to the element found."""
        from offgrad.ops.index import scatter_add

        if grad is None or not self.shape:
            return grad
        if not self.keepdim:
            grad = grad.unsqueeze(self.dim)
        return scatter_add(grad.new_zeros(self.shape), self.dim, self.saved("indices"), grad)


class Prod(_Reduction):
    """The product over dimensions; keeps x and the result."""

    def forward(self, x: Array, dims: tuple[int, ...], keepdim: bool, dtype: Any) -> Array:
        """Return the product."""
        shape = self.reduced_shape(x, dims, keepdim)
        result = np.asarray(np.prod(x, axis=dims, keepdims=keepdim, dtype=dtype)).reshape(shape)
        self.save(self=x, result=result)
        return result

    def backward(self, grad: "Tensor") -> Any:
        """Multiply by the product of the others."""
        x = self.saved("self")
        if np.all(x._array):
            return self.expanded(grad * self.saved("result").conj()) / x.conj()
        return self.expanded(grad) * self._others(x).conj()

    def _others(self, x: "Tensor") -> "Tensor":
        """Return for each element the product of the others, which a zero does not stop."""
        from offgrad.ops.join import cat

        order = [axis for axis in range(x.ndim) if axis not in self.dims] + list(self.dims)
        moved = x.permute(order)
        flat = moved.reshape(-1, self.count)
        columns = [
            prod(cat([flat[:, :column], flat[:, column + 1 :]], 1), 1, keepdim=True)
            for column in range(self.count)
        ]
        return cat(columns, 1).reshape(moved.shape).permute(np.argsort(order).tolist())


class Cumsum(Op):
    """The running sum along a dimension; keeps nothing."""

    def forward(self, x: Array, dim: int) -> Array:
        """Return the running sum."""
        self.dim = dim
        out = memory.empty(x.shape, x.dtype)
        np.cumsum(x, axis=dim, out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Sum from the other end."""
        return grad.flip(self.dim).cumsum(self.dim).flip(self.dim)


def _sum_dtype(input: "Tensor", dtype: Any) -> np.dtype[Any]:
    if dtype is not None:
        chosen: np.dtype[Any] = np.dtype(dtype)
        return chosen
    return input._array.dtype if category(input._array.dtype) >= 2 else np.dtype(np.int64)


def sum(input: "Tensor", dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> "Tensor":
    """Return the sum over `dim`, all dimensions by default; of integers and bools as int64."""
    check_tensor(input, "sum")
    result = _sum_dtype(input, dtype)
    if result != input._array.dtype and category(result) >= 2:
        input = cast(input, result)
    dims = normalize_dims(dim, input._array.ndim, "sum")
    return Sum.apply(input, dims=dims, keepdim=keepdim, dtype=result)


def mean(input: "Tensor", dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> "Tensor":
    """Return the mean over `dim`, all dimensions by default.

    Raises:
        RuntimeError: for integers and bools without a floating point `dtype`.
    """
    if dtype is not None:
        input = cast(check_tensor(input, "mean"), dtype)
    if category(check_tensor(input, "mean")._array.dtype) < 2:
        raise RuntimeError(
            "mean is defined for floating point and complex tensors, got "
            f"{input._array.dtype.name}; pass dtype=offgrad.float32"
        )
    dims = normalize_dims(dim, input._array.ndim, "mean")
    return Mean.apply(input, dims=dims, keepdim=keepdim)


def _extreme(input: "Tensor", dim: Dim, keepdim: bool, ufunc: Any, where: str) -> "Tensor":
    dims = normalize_dims(dim, check_tensor(input, where)._array.ndim, where)
    check_ordered(input, where)
    if input._array.size == 0 and builtins.any(input._array.shape[axis] == 0 for axis in dims):
        kind = RuntimeError if dim is None else IndexError
        raise kind(f"{where}: there is none of no elements, got shape {list(input.shape)}")
    return Amax.apply(input, dims=dims, keepdim=keepdim, ufunc=ufunc)


def amax(input: "Tensor", dim: Dim = None, keepdim: bool = False) -> "Tensor":
    """Return the largest over `dim`, all dimensions by default; ties share the gradient."""
    return _extreme(input, dim, keepdim, np.maximum, "amax")


def amin(input: "Tensor", dim: Dim = None, keepdim: bool = False) -> "Tensor":
    """Return the smallest over `dim`, all dimensions by default; ties share the gradient."""
    return _extreme(input, dim, keepdim, np.minimum, "amin")


def _max_or_min(
    input: "Tensor", dim: Any, keepdim: bool, largest: bool, where: str
) -> "Tensor | Extreme":
    from offgrad.autograd.tensor_base import TensorBase
    from offgrad.ops.arithmetic import maximum, minimum

    if dim is None:
        return _extreme(input, None, False, np.maximum if largest else np.minimum, where)
    if isinstance(dim, TensorBase):
        return (maximum if largest else minimum)(input, dim)  # type: ignore[arg-type]
    axis = normalize_dim(dim, check_tensor(input, where)._array.ndim, where)
    check_ordered(input, where)
    if input._array.ndim and input._array.shape[axis] == 0:
        raise IndexError(f"{where}: there is none of no elements, got shape {list(input.shape)}")
    return Extreme(*MaxDim.apply_all(input, dim=axis, keepdim=keepdim, largest=largest))


def max(input: "Tensor", dim: Any = None, keepdim: bool = False) -> Any:
    """Return the largest element; or, along `dim`, ``(values, indices)``; or of two tensors."""
    return _max_or_min(input, dim, keepdim, True, "max")


def min(input: "Tensor", dim: Any = None, keepdim: bool = False) -> Any:
    """Return the smallest element; or, along `dim`, ``(values, indices)``; or of two tensors."""
    return _max_or_min(input, dim, keepdim, False, "min")


def _arg_extreme(
    find: Any, input: "Tensor", dim: int | None, keepdim: bool, where: str
) -> "Tensor":
    array = check_tensor(input, where)._array
    check_ordered(input, where)
    axis = None if dim is None else normalize_dim(dim, array.ndim, where)
    if not (array.size if axis is None or not array.ndim else array.shape[axis]):
        raise IndexError(f"{where}: there is none of no elements, got shape {list(array.shape)}")
    return wrap(np.asarray(find(array, axis=axis if array.ndim else None, keepdims=keepdim)))


def argmax(input: "Tensor", dim: int | None = None, keepdim: bool = False) -> "Tensor":
    """Return the index of the largest element along `dim`, or in the flattened tensor."""
    return _arg_extreme(np.argmax, input, dim, keepdim, "argmax")


def argmin(input: "Tensor", dim: int | None = None, keepdim: bool = False) -> "Tensor":
    """Return the index of the smallest element along `dim`, or in the flattened tensor."""
    return _arg_extreme(np.argmin, input, dim, keepdim, "argmin")


def _truth(reduce: Any, input: "Tensor", dim: Dim, keepdim: bool, where: str) -> "Tensor":
    array = check_tensor(input, where)._array
    result = np.asarray(
        reduce(array, axis=normalize_dims(dim, array.ndim, where), keepdims=keepdim)
    )
    # PyTorch's answer for uint8, which were its bools once.
    return wrap(result.astype(np.uint8) if array.dtype == np.uint8 else result)


def all(input: "Tensor", dim: Dim = None, keepdim: bool = False) -> "Tensor":
    """Return whether all elements over `dim` are nonzero, as bool."""
    return _truth(np.all, input, dim, keepdim, "all")


def any(input: "Tensor", dim: Dim = None, keepdim: bool = False) -> "Tensor":
    """Return whether any element over `dim` is nonzero, as bool."""
    return _truth(np.any, input, dim, keepdim, "any")


def prod(input: "Tensor", dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> "Tensor":
    """Return the product over `dim`, all dimensions by default; of integers and bools as int64."""
    check_tensor(input, "prod")
    result = _sum_dtype(input, dtype)
    if result != input._array.dtype and category(result) >= 2:
        input = cast(input, result)
    dims = normalize_dims(dim, input._array.ndim, "prod")
    return Prod.apply(input, dims=dims, keepdim=keepdim, dtype=result)


def cumsum(input: "Tensor", dim: int) -> "Tensor":
    """Return the running sum along `dim`."""
    axis = normalize_dim(dim, check_tensor(input, "cumsum")._array.ndim, "cumsum")
    input = cast(input, _sum_dtype(input, None))
    if not input._array.ndim:
        return input.clone()
    return Cumsum.apply(input, dim=axis)


def sum_to_size(input: "Tensor", shape: Sequence[int]) -> "Tensor":
    """Return `input` summed to `shape`, which must broadcast to its shape."""
    shape = tuple(shape)
    given = input._array.shape
    if given == shape:
        return input
    lead = len(given) - len(shape)
    dims = tuple(range(lead)) + tuple(
        lead + axis for axis, size in enumerate(shape) if size == 1 and given[lead + axis] != 1
    )
    if lead < 0 or not np.broadcast_shapes(shape, given) == given:
        raise RuntimeError(
            f"sum_to_size: the size must broadcast to the tensor's shape {list(given)}, "
            f"got {list(shape)}"
        )
    result = sum(input, dims, keepdim=True) if dims else input
    return result.reshape(shape)
