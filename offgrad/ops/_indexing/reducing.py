"""Elements of a source combined at an index: sums, products, means, extremes."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.broadcasting import wide_dtype
from offgrad.ops._core.dims import normalize_dim
from offgrad.ops._core.dtypes import cast, category, check_tensor
from offgrad.ops._core.updates import Update
from offgrad.ops._indexing.along_dim import check_entries, check_source
from offgrad.ops._indexing.scattering import (
    ScatterAdd,
    check_index,
    fitting,
    scatter,
    scatter_add,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["index_reduce", "scatter_reduce"]

_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


class ScatterSum(ScatterAdd):
    """x with a source added at an index along a dimension; keeps the index."""

    torch_name = "ScatterReduceBackward0"
    in_place_name = "scatter_reduce_"


class ScatterReduce(Update):
    """x combined at an index along a dimension with a source, by a product or an extreme.

    Keeps both, the index and the result. Equal extremes share the gradient.
    """

    in_place_name = "scatter_reduce_"
    saves_changed = True

    def forward(
        self, x: Array, index: Array, source: Array, dim: int, reduce: str, include_self: bool
    ) -> Array:
        out = memory.copy(x)
        self.setup_context(x, index, source, dim, reduce, include_self)
        self.save(self=x, index=index, src=source, result=out)
        self.change(out, index, source, dim, reduce, include_self)
        return out

    def setup_context(
        self, x: Array, index: Array, source: Array, dim: int, reduce: str, include_self: bool
    ) -> None:
        self.dim, self.reduce, self.include_self = dim, reduce, include_self

    def change(
        self, out: Array, index: Array, source: Array, dim: int, reduce: str, include_self: bool
    ) -> None:
        part = source[tuple(slice(size) for size in index.shape)]
        kernels.scatter_reduce(out, index, memory.contiguous(part), dim, reduce)

    def backward(self, grad: "Tensor") -> Any:
        dim, index = self.dim, self.saved("index")
        x, source, result = self.saved("self"), self.saved("src"), self.saved("result")
        part = source[tuple(slice(size) for size in index._array.shape)]
        if self.reduce == "prod":
            grad_x, grad_part = self._of_product(grad, x, part, result)
        else:
            is_x = (x == result).to(grad.dtype)
            if not self.include_self:  # x is infinite there, as the result may be
                is_x = scatter(is_x, dim, index, 0)
            is_part = (part == result.gather(dim, index)).to(grad.dtype)
            # None equals NaN: 0/0 is its gradient.
            share = grad / scatter_add(is_x, dim, index, is_part)
            grad_x, grad_part = is_x * share, is_part * share.gather(dim, index)
        if part._array.shape != source._array.shape:
            padding: list[int] = []
            for size, used in zip(source._array.shape, part._array.shape, strict=True):
                padding[:0] = [0, size - used]
            whole = source.new_zeros(source._array.shape)
            where = tuple(slice(size) for size in part._array.shape)
            whole[where] = grad_part
            grad_part = whole
        return grad_x, None, grad_part

    def _of_product(
        self, grad: "Tensor", x: "Tensor", part: "Tensor", result: "Tensor"
    ) -> "tuple[Tensor, Tensor]":
        """Multiply by the product of the other factors: the result over each, but for zeros."""
        dim, index = self.dim, self.saved("index")
        if np.all(x._array) and np.all(part._array):
            total = grad * result
            return total / x, total.gather(dim, index) / part
        is_x, is_part = x == 0, part == 0
        count = scatter_add(is_x.long(), dim, index, is_part.long())
        nonzero_x, nonzero_part = x.masked_fill(is_x, 1), part.masked_fill(is_part, 1)
        product = scatter_reduce(nonzero_x, dim, index, nonzero_part, "prod")
        zero_x, zero_part = x.masked_fill(~is_x, 0), part.masked_fill(~is_part, 0)
        sums = scatter_add(zero_x, dim, index, zero_part)
        others = product / nonzero_x * _zeros_product(count - is_x.long(), sums - zero_x)
        others_of_part = (
            product.gather(dim, index)
            / nonzero_part
            * _zeros_product(
                count.gather(dim, index) - is_part.long(), sums.gather(dim, index) - zero_part
            )
        )
        return grad * others, grad.gather(dim, index) * others_of_part


def _zeros_product(count: "Tensor", total: "Tensor") -> "Tensor":
    """Return the product of `count` zeros whose sum is `total`, with its first derivatives.

    With the gradient of the product of all factors, that gives second derivatives.
    """
    return total.masked_fill(count > 1, 0).masked_fill(count == 0, 1)


def _identity(dtype: np.dtype[Any], reduce: str) -> Any:
    """Return the number that changes no result."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if category(dtype) == 2:
        return float("-inf") if reduce == "amax" else float("inf")
    if dtype == np.bool_:
        return reduce == "amin"
    limits = np.iinfo(dtype)
    return int(limits.min if reduce == "amax" else limits.max)


def scatter_reduce(
    input: "Tensor",
    dim: int,
    index: "Tensor",
    src: "Tensor",
    reduce: str,
    *,
    include_self: bool = True,
) -> "Tensor":
    """Return `input` combined with the elements of `src` at `index` along `dim`.

    Args:
        input: the tensor.
        dim: the dimension that the index chooses along.
        index: int64, of as many dimensions as `input`, no size larger than that of `src`.
        src: of the dtype of `input`.
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: whether the elements of `input` take part; those without an index stay.

    Raises:
        RuntimeError: if dtypes, shapes or indices do not fit, or for another reduction.
    """
    x, source = check_tensor(input, "scatter_reduce"), check_tensor(src, "scatter_reduce")
    if reduce not in _REDUCTIONS:
        raise RuntimeError(
            f"reduce argument must be one of {', '.join(_REDUCTIONS)}, got {reduce!r}"
        )
    if x._array.dtype != source._array.dtype:
        raise RuntimeError(
            f"scatter(): the input and src must have the same dtype, got a {describe(x)} and a "
            f"{describe(source)}"
        )
    axis = normalize_dim(dim, x._array.ndim, "scatter_reduce")
    if category(x._array.dtype) == 3 and reduce in ("amax", "amin"):
        raise NotImplementedError(
            f"scatter_reduce: complex numbers have no order, so no {reduce}, got a {describe(x)}"
        )
    start = x
    if not include_self:
        # It checks the index, too.
        start = scatter(x, axis, index, _identity(x._array.dtype, reduce))
    if reduce == "mean":
        total = scatter_add(start, axis, index, source)
        return _mean(total, x, axis, index, include_self)
    if reduce == "sum":
        check_index(x, axis, index, "scatter", x, source)
        return ScatterSum.apply(start, index, fitting(source, index), dim=axis)
    options = {"reduce": reduce, "include_self": include_self}
    if not index._array.size and index._array.ndim != x._array.ndim:
        return start.clone() if start is x else start
    check_index(x, axis, index, "scatter", x, source)
    if x._array.ndim <= 1:  # beside vectors, numbers are vectors of one
        flat = start.reshape(-1), index.reshape(-1), source.reshape(-1)
        result = ScatterReduce.apply(*flat, dim=0, **options)
        return result if x._array.ndim else result.reshape(())
    return ScatterReduce.apply(start, index, source, dim=axis, **options)


def _mean(total: "Tensor", x: "Tensor", axis: int, index: "Tensor", include_self: bool) -> "Tensor":
    dtype = wide_dtype(x._array.real.dtype)
    ones = x.new_ones(x._array.shape, dtype=dtype)
    start = ones if include_self else scatter(ones, axis, index, 0)
    added = x.new_ones(index._array.shape, dtype=dtype)
    counts = scatter_add(start, axis, index, added).clamp(min=1)
    if category(dtype) >= 2:
        return cast(total / counts, x._array.dtype)
    return total.div(counts, rounding_mode="floor")


def index_reduce(
    input: "Tensor",
    dim: int,
    index: "Tensor",
    source: "Tensor",
    reduce: str,
    *,
    include_self: bool = True,
) -> "Tensor":
    """Return `input` combined with the entries of `source` at a vector `index` along `dim`.

    Args:
        input: the tensor.
        dim: the dimension of entries.
        index: a vector of integers.
        source: an entry for each index.
        reduce: "prod", "mean", "amax" or "amin".
        include_self: whether the entries of `input` take part; those without an index stay.

    Raises:
        RuntimeError: if dtypes or shapes do not fit, or for another reduction.
        IndexError: for an index that is no vector of entries.
    """
    x, values = check_tensor(input, "index_reduce"), check_tensor(source, "index_reduce")
    if reduce not in _REDUCTIONS[1:]:
        raise RuntimeError(
            f"index_reduce(): reduce must be one of {', '.join(_REDUCTIONS[1:])}, got {reduce!r}"
        )
    axis = normalize_dim(dim, x._array.ndim, "index_reduce")
    check_entries(x, dim, index, "index_reduce")
    values = check_source(x, axis, index, values, "index_reduce")
    if not values._array.ndim and not x._array.ndim:
        entries = values.reshape(1), reduce
        combined = index_reduce(x.reshape(1), 0, index, *entries, include_self=include_self)
        return combined.reshape(())
    shape = values._array.shape
    spread = np.broadcast_to(
        index._array.reshape(-1, *(1,) * (len(shape) - axis - 1)).astype(np.int64), shape
    )
    return scatter_reduce(x, axis, wrap(spread), values, reduce, include_self=include_self)
