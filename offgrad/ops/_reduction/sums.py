"""Sums, means and products over dimensions."""

from math import prod as product
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad._dtype import type_name
from offgrad.autograd.node import Gradients, as_tensors
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap
from offgrad.memory.meta import MetaArray, as_meta
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dims import Dim, normalize_dims, sizes
from offgrad.ops._core.dtypes import (
    cast,
    category,
    check_ordered,
    check_tensor,
)
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "all",
    "any",
    "count_nonzero",
    "mean",
    "nanmean",
    "nansum",
    "prod",
    "sum",
    "sum_to_size",
]


class Reduction(Op):
    """A reduction over dimensions."""

    # PyTorch's names for the input's sizes and the dimensions; None: all, by default.
    self_sym_sizes: tuple[int, ...]
    dim: tuple[int, ...] | int | None
    keepdim: bool
    dims: tuple[int, ...]

    def reduced_shape(
        self, x: Array, dim: tuple[int, ...] | None, keepdim: bool
    ) -> tuple[int, ...]:
        """Record the geometry; return the shape of the result."""
        self.self_sym_sizes, self.dim, self.keepdim = x.shape, dim, keepdim
        self.dims = tuple(range(x.ndim)) if dim is None else dim
        if keepdim:
            return tuple([1 if axis in self.dims else size for axis, size in enumerate(x.shape)])
        if dim is None:
            return ()
        return tuple([size for axis, size in enumerate(x.shape) if axis not in dim])

    def with_reduced_dims(self, reduced: "Tensor") -> "Tensor":
        """Return a tensor of the result's shape with the reduced dimensions restored as size 1."""
        if self.keepdim:
            return reduced
        return reduced.reshape(
            [1 if axis in self.dims else size for axis, size in enumerate(self.self_sym_sizes)]
        )

    def expanded(self, reduced: "Tensor") -> "Tensor":
        """Return a tensor of the result's shape as a view that broadcasts to the input's.

        In a `backward` that runs on arrays, return an array of its own.
        """
        if self._on_arrays:
            array: Any = np.asarray(reduced)
            if not self.keepdim and array.ndim:
                array = np.expand_dims(array, self.dims)
            out: Any = memory.empty(self.self_sym_sizes, array.dtype)
            out[...] = array
            return out  # type: ignore[no-any-return]
        return self.with_reduced_dims(reduced).expand(self.self_sym_sizes)

    def run_unrecorded(self, grads: Gradients) -> Gradients:
        """Run `backward` on arrays where the gradient is small; a large one is better a view."""
        dtype = self.output_metadata[0][1]
        is_small = product(self.self_sym_sizes) * dtype.itemsize < memory.POOL_THRESHOLD
        # Counts have too many digits for 16 bits.
        if is_small and not kernels.is_half(dtype):
            return super().run_unrecorded(grads)
        return self.run(as_tensors(grads))

    @property
    def count(self) -> int:
        """The number of elements reduced to one."""
        return product(self.self_sym_sizes[axis] for axis in self.dims)


class Sum(Reduction):
    """The sum over dimensions; keeps nothing."""

    backward_takes_arrays = True

    @classmethod
    def with_samples(cls, size: int, parameters: dict[str, Any]) -> dict[str, Any] | None:
        """Return the parameters for an input with a further first dimension."""
        if not parameters["dim"]:  # all dimensions
            return None
        dims = tuple([each if each < 0 else each + 1 for each in parameters["dim"]])
        return {**parameters, "dim": dims}

    def forward(
        self, x: Array, dim: tuple[int, ...] | None, keepdim: bool, dtype: np.dtype[Any]
    ) -> Array:
        out = memory.empty(self.reduced_shape(x, dim, keepdim), dtype)
        kernels.sum_axes(x, self.dims, keepdim, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return self.expanded(grad)


class Nansum(Reduction):
    """The sum over dimensions of the elements that are not NaN; keeps x."""

    def forward(
        self, x: Array, dim: tuple[int, ...] | None, keepdim: bool, dtype: np.dtype[Any]
    ) -> Array:
        self.save(self=x)
        out = memory.empty(self.reduced_shape(x, dim, keepdim), dtype)
        numbers = memory.empty(x.shape, x.dtype)
        kernels.nan_to_zero(memory.contiguous(x), numbers)
        kernels.sum_axes(numbers, self.dims, keepdim, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Pass the gradient to every element but NaN.

        A product, so that a gradient that is not finite, as that of the mean of no numbers, gives
        NaN.
        """
        return self.expanded(grad) * wrap(~np.isnan(self.saved("self")._array))


class Mean(Reduction):
    """The mean over dimensions; keeps nothing."""

    backward_takes_arrays = True

    def forward(self, x: Array, dim: tuple[int, ...] | None, keepdim: bool) -> Array:
        """Return the mean; NaN over no elements."""
        out = memory.empty(self.reduced_shape(x, dim, keepdim), x.dtype)
        self.self_sym_numel = x.size
        total = out
        if kernels.is_half(x.dtype):
            total = memory.empty(out.shape, np.float32)
        kernels.sum_axes(x, self.dims, keepdim, total)
        np.divide(total, total.dtype.type(self.count), out=total)
        if total is not out:
            kernels.convert(total, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        return self.expanded(grad / self.count)


class Prod(Reduction):
    """The product over dimensions; keeps x and the result."""

    def forward(
        self, x: Array, dim: tuple[int, ...] | None, keepdim: bool, dtype: np.dtype[Any]
    ) -> Array:
        out = memory.empty(self.reduced_shape(x, dim, keepdim), dtype)
        self.dim = (
            dim[0] if dim is not None and len(dim) == 1 else dim
        )  # PyTorch's type of `_saved_dim`
        kernels.prod_axes(x, self.dims, keepdim, out)
        self.save(self=x, result=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Multiply by the product of the others."""
        x = self.saved("self")
        if not x.ndim:
            return grad
        if np.all(x._array):
            return self.expanded(grad * self.saved("result").conj()) / x.conj()
        return self.expanded(grad) * self._products_of_others(x).conj()

    def _products_of_others(self, x: "Tensor") -> "Tensor":
        """Return for each element the product of all others, without division."""
        order = [axis for axis in range(x.ndim) if axis not in self.dims] + list(self.dims)
        permuted = x.permute(order)
        flat = permuted.reshape(-1, self.count)
        one = flat.new_ones(flat.shape[0], 1)
        before = cat([one, flat[:, :-1]], 1).cumprod(1)
        after = cat([one, flat[:, 1:].flip(1)], 1).cumprod(1).flip(1)
        return (before * after).reshape(permuted.shape).permute(np.argsort(order).tolist())


def _dims(dim: Dim, input: "Tensor", where: str) -> tuple[int, ...] | None:
    """Return the dimensions counted from the front, None if `dim` is None or empty."""
    return None if dim is None else normalize_dims(dim, input._array.ndim, where)


def accumulation_dtype(input: "Tensor", dtype: Any) -> np.dtype[Any]:
    """Return the dtype to add up and multiply in: `dtype`, else int64 for integers and bools."""
    if dtype is not None:
        chosen: np.dtype[Any] = np.dtype(dtype)
        return chosen
    return input._array.dtype if category(input._array.dtype) >= 2 else np.dtype(np.int64)


def _named(cls: Any, dims: tuple[int, ...] | None) -> Any:
    # PyTorch's node names depend on whether dimensions were given.
    return cls if dims is None or cls is Nansum else cls.named(cls.__name__.replace("0", "1"))


def _accumulate(
    cls: Any, where: str, input: "Tensor", dim: Dim, keepdim: bool, dtype: Any
) -> "Tensor":
    check_tensor(input, where)
    result = accumulation_dtype(input, dtype)
    if result != input._array.dtype and category(result) >= 2:
        input = cast(input, result)
    dims = _dims(dim, input, where)
    tensor: Tensor = _named(cls, dims).apply(input, dim=dims, keepdim=keepdim, dtype=result)
    return tensor


@with_numpy_names
def sum(input: "Tensor", dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> "Tensor":
    """Return the sum over `dim`, all dimensions by default; of integers and bools as int64."""
    return _accumulate(Sum, "sum", input, dim, keepdim, dtype)


@with_numpy_names
def nansum(
    input: "Tensor", dim: Dim = None, keepdim: bool = False, *, dtype: Any = None
) -> "Tensor":
    """Return the sum over `dim`, all dimensions by default, of elements that are not NaN."""
    check_ordered(check_tensor(input, "nansum"), "nansum")
    cls = Nansum if category(input._array.dtype) == 2 else Sum
    return _accumulate(cls, "nansum", input, dim, keepdim, dtype)


@with_numpy_names
@full_precision
def prod(input: "Tensor", dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> "Tensor":
    """Return the product over `dim`, all dimensions by default; of integers and bools as int64."""
    return _accumulate(Prod, "prod", input, dim, keepdim, dtype)


@with_numpy_names
def mean(input: "Tensor", dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> "Tensor":
    """Return the mean over `dim`, all dimensions by default.

    Raises:
        RuntimeError: for integers and bools without a floating point `dtype`.
    """
    if dtype is not None:
        input = cast(check_tensor(input, "mean"), dtype)
    if category(check_tensor(input, "mean")._array.dtype) < 2:
        raise RuntimeError(
            "mean: could not infer output dtype: it must be either a floating point or complex "
            f"dtype, got {type_name(input._array.dtype)}; pass dtype=offgrad.float32"
        )
    dims = _dims(dim, input, "mean")
    tensor: Tensor = _named(Mean, dims).apply(input, dim=dims, keepdim=keepdim)
    return tensor


@with_numpy_names
def nanmean(
    input: "Tensor", dim: Dim = None, keepdim: bool = False, *, dtype: Any = None
) -> "Tensor":
    """Return the mean over `dim`, all dimensions by default, of elements that are not NaN.

    Raises:
        RuntimeError: for integers, bools and complex numbers.
    """
    if category(check_tensor(input, "nanmean")._array.dtype) != 2:
        raise RuntimeError(
            f"nanmean is defined for floating point tensors, got {input._array.dtype.name}"
        )
    normalize_dims(dim, input._array.ndim, "nanmean")
    numbers = sum(wrap(~np.isnan(input._array)), dim, keepdim)
    total = nansum(input, dim, keepdim, dtype=dtype)
    if total._array.dtype == np.float16:  # which cannot count beyond 2048
        return (total.to(np.float32) / numbers).to(np.float16)
    return total / numbers


@with_numpy_names
def count_nonzero(input: "Tensor", dim: Dim = None) -> "Tensor":
    """Return how many elements over `dim`, all dimensions by default, are not zero."""
    axes = normalize_dims(dim, check_tensor(input, "count_nonzero")._array.ndim, "count_nonzero")
    found = np.count_nonzero(input._array, axis=axes)
    return wrap(found if type(found) is MetaArray else np.asarray(found, np.int64))


def _truth(reduce: Any, input: "Tensor", dim: Dim, keepdim: bool, where: str) -> "Tensor":
    array = check_tensor(input, where)._array
    # As PyTorch: no dimension at all is none here, although it is all for `sum`.
    none = isinstance(dim, (tuple, list)) and not dim
    axes = () if none else normalize_dims(dim, array.ndim, where)
    result = np.asanyarray(reduce(array, axis=axes, keepdims=keepdim))
    if type(array) is MetaArray:
        return wrap(as_meta(result))
    # PyTorch returns uint8 for uint8, its former bools.
    return wrap(result.astype(np.uint8) if array.dtype == np.uint8 else result)


@with_numpy_names
def all(input: "Tensor", dim: Dim = None, keepdim: bool = False) -> "Tensor":
    """Return whether all elements over `dim` are nonzero, as bool."""
    return _truth(np.all, input, dim, keepdim, "all")


@with_numpy_names
def any(input: "Tensor", dim: Dim = None, keepdim: bool = False) -> "Tensor":
    """Return whether any element over `dim` is nonzero, as bool."""
    return _truth(np.any, input, dim, keepdim, "any")


def sum_to_size(input: "Tensor", *size: Any) -> "Tensor":
    """Return `input` summed to a shape, which must broadcast to its own."""
    shape = sizes(size, "sum_to_size")
    input_shape = input._array.shape
    if input_shape == shape:
        return input
    try:
        broadcast = np.broadcast_shapes(shape, input_shape)
    except ValueError:
        broadcast = None
    if broadcast != input_shape:
        raise RuntimeError(
            f"sum_to_size: size {list(shape)} is not expandable to size {list(input_shape)}, "
            "the tensor's shape"
        )
    extra = len(input_shape) - len(shape)
    dims = tuple(range(extra)) + tuple(
        extra + axis
        for axis, size in enumerate(shape)
        if size == 1 and input_shape[extra + axis] != 1
    )
    result = sum(input, dims, keepdim=True) if dims else input
    return result if result._array.shape == shape else result.reshape(shape)
