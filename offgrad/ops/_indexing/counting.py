"""Counts of values, runs of equal values, membership; none is differentiable."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.dims import integer, normalize_dim
from offgrad.ops._core.dtypes import category, check_tensor, real_floating
from offgrad.ops._core.results import result
from offgrad.ops._indexing.searching import Unique2

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "bincount",
    "histc",
    "histogram",
    "histogramdd",
    "isin",
    "nonzero_static",
    "unique_consecutive",
    "unravel_index",
]


def bincount(input: "Tensor", weights: "Tensor | None" = None, minlength: int = 0) -> "Tensor":
    """Return how often each number from 0 on occurs in a vector of integers.

    Args:
        input: a vector of integers, not negative.
        weights: what each element counts instead of 1.
        minlength: the least length of the result.

    Raises:
        RuntimeError: for negative numbers or lengths, or shapes that do not fit.
        NotImplementedError: for other dtypes.
    """
    array = check_tensor(input, "bincount")._array
    if integer(minlength, "bincount", "minlength") < 0:
        raise RuntimeError(f"bincount: minlength should be >= 0, got {minlength}")
    if array.dtype.kind not in "iu":
        raise NotImplementedError(f"bincount needs integers, got a {describe(input)}")
    if array.ndim != 1 or (array.size and array.min() < 0):
        raise RuntimeError(
            "bincount only supports 1-d non-negative integral inputs, got a "
            f"{describe(input)}" + (f" with {array.min()}" if array.size else "")
        )
    if weights is None:
        return wrap(np.bincount(array, minlength=minlength))
    values = check_tensor(weights, "bincount")._array
    if values.shape != array.shape:
        raise RuntimeError(
            "bincount: weights should be 1-d and have the same length as input, got a "
            f"{describe(weights)} for a {describe(input)}"
        )
    dtype = np.float32 if values.dtype == np.float32 else np.float64
    return wrap(np.bincount(array, values, minlength).astype(dtype))


def histc(input: "Tensor", bins: int = 100, min: Any = 0, max: Any = 0) -> "Tensor":
    """Return how many elements lie in each of `bins` equal parts from `min` to `max`.

    If these are equal, they are the least and the largest element. Elements outside do not count.

    Raises:
        RuntimeError: for bins or bounds that make no parts.
        NotImplementedError: for other dtypes than floating point.
    """
    x = check_tensor(input, "histc")
    array = x._array
    if category(array.dtype) not in (1, 2):
        raise NotImplementedError(f'"histogram_cpu" not implemented for {array.dtype.name}')
    if bins <= 0:
        raise RuntimeError(f"histc: bins must be > 0, but got {bins}")
    low, high = float(min), float(max)
    if low == high and array.size:
        low, high = float(array.min()), float(array.max())
    if low == high:
        low, high = low - 1, high + 1
    if not (np.isfinite(low) and np.isfinite(high)):
        raise RuntimeError(f"histc: range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError(f"histc: min must not be above max, got {low} and {high}")
    counts, _ = np.histogram(array.astype(np.float64), bins, (low, high))
    return wrap(counts.astype(array.dtype))


@result("histogram")
class Histogram(NamedTuple):
    """Counts or densities, and the edges of the bins."""

    hist: "Tensor"
    bin_edges: "Tensor"


@result("histogramdd")
class HistogramDD(NamedTuple):
    """Counts or densities, and the edges of the bins in each dimension."""

    hist: "Tensor"
    bin_edges: "tuple[Tensor, ...]"


def histogram(
    input: "Tensor",
    bins: Any = 100,
    *,
    range: Sequence[float] | None = None,
    weight: "Tensor | None" = None,
    density: bool = False,
) -> Histogram:
    """Return how many elements lie in each bin, and the edges of the bins.

    Args:
        input: floating point numbers of any shape.
        bins: their number, or an ascending vector of edges; an edge belongs to the bin above, the
            last one to the last bin.
        range: the first and the last edge, for a number of bins; the least and largest element by
            default.
        weight: what each element counts instead of 1.
        density: whether to divide by the sum and the widths, so that the integral is 1.

    Raises:
        RuntimeError: if arguments do not fit.
    """
    x = real_floating(input, "histogram")._array.reshape(-1)
    edges = bins._array if isinstance(bins, TensorBase) else bins
    limits = None if range is None else (float(range[0]), float(range[1]))
    if limits is not None and limits[0] > limits[1]:
        raise RuntimeError(f"histogram: the range must ascend, got {limits}")
    if not isinstance(edges, np.ndarray):
        edges = _equal_edges(x, integer(bins, "histogram", "bins"), limits)
    values = None if weight is None else weight._array.reshape(-1)
    counts, _ = np.histogram(x, edges, weights=values, density=density)
    return Histogram(wrap(counts.astype(x.dtype)), wrap(np.asarray(edges, x.dtype)))


def _equal_edges(x: Array, count: int, limits: tuple[float, float] | None) -> Array:
    if count <= 0:
        raise RuntimeError(f"histogram: bins must be > 0, but got {count}")
    low, high = limits or ((float(x.min()), float(x.max())) if x.size else (0.0, 1.0))
    if low == high:
        low, high = low - (0.5 if limits is None else 0), high + (0.5 if limits is None else 1)
    return np.linspace(low, high, count + 1, dtype=x.dtype)


def histogramdd(
    input: "Tensor",
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: "Tensor | None" = None,
    density: bool = False,
) -> HistogramDD:
    """Return how many points [..., D] lie in each cell of a grid, and its edges.

    Arguments are those of `histogram`, `bins` one for each dimension or a number for all, `range` a
    pair for each dimension, one after another.
    """
    x = real_floating(input, "histogramdd")._array
    points = x.reshape(-1, x.shape[-1])
    dims = points.shape[1]
    each = [bins] * dims if not isinstance(bins, (tuple, list)) else list(bins)
    if len(each) != dims:
        raise RuntimeError(
            "histogramdd: The size of bins must be equal to the innermost dimension of the input, "
            f"{dims}, got {bins}"
        )
    edges = []
    for axis, one in enumerate(each):
        limits = None if range is None else (float(range[2 * axis]), float(range[2 * axis + 1]))
        is_vector = isinstance(one, TensorBase)
        edges.append(one._array if is_vector else _equal_edges(points[:, axis], one, limits))
    values = None if weight is None else weight._array.reshape(-1)
    counts, _ = np.histogramdd(points, edges, weights=values, density=density)
    return HistogramDD(
        wrap(counts.astype(x.dtype)), tuple(wrap(np.asarray(e, x.dtype)) for e in edges)
    )


def unique_consecutive(
    input: "Tensor",
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Return `input` with one element, or entry along `dim`, for each run of equal ones.

    Args:
        input: the tensor; without `dim` it is flattened.
        return_inverse: also return the index in the result of each element of `input`.
        return_counts: also return the length of each run.
        dim: the dimension of entries; None for elements.
    """
    array = check_tensor(input, "unique_consecutive")._array
    if type(array) is MetaArray:
        raise NotImplementedError(
            "unique_consecutive of meta tensors: the shape of the result depends on values"
        )
    axis = None if dim is None else normalize_dim(dim, array.ndim, "unique_consecutive")
    rows = array.reshape(-1) if axis is None else np.moveaxis(array, axis, 0)
    starts = np.ones(len(rows), np.bool_)
    differs = rows[1:] != rows[:-1]
    starts[1:] = differs.reshape(len(differs), prod(differs.shape[1:])).any(1)
    values = rows[starts]
    values = values if axis is None else np.moveaxis(values, 0, axis)
    result = Unique2.named("UniqueConsecutiveBackward0").apply(
        input, values=np.ascontiguousarray(values)
    )
    inverse = np.cumsum(starts) - 1
    counts = np.diff(np.append(np.flatnonzero(starts), len(rows)))
    extra = [wrap(inverse.reshape(array.shape) if axis is None else inverse)] * return_inverse
    extra += [wrap(counts)] * return_counts
    return (result, *extra) if extra else result


def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> "Tensor":
    """Return which elements are among others, as bool; one of both may be a number.

    `assume_unique` is accepted; `invert` asks which are not.
    """
    if not isinstance(elements, TensorBase) and not isinstance(test_elements, TensorBase):
        raise TypeError("isin: elements or test_elements must be a tensor, got two numbers")
    sought, among = (
        each._array if isinstance(each, TensorBase) else np.asarray(each)
        for each in (elements, test_elements)
    )
    return wrap(np.asarray(np.isin(sought, among, invert=invert)))


def unravel_index(indices: "Tensor", shape: Any) -> "tuple[Tensor, ...]":
    """Return for positions in a flattened tensor of `shape` the int64 index along each dimension.

    Raises:
        TypeError: if the positions are no integers.
        ValueError: for negative sizes.
    """
    given = check_tensor(indices, "unravel_index")._array
    if given.dtype.kind not in "iu":
        raise TypeError(f"expected 'indices' to be integer, got a {describe(indices)}")
    array = given.astype(np.int64, copy=False)
    sizes = (
        tuple(shape) if isinstance(shape, Sequence) else (integer(shape, "unravel_index", "shape"),)
    )
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape must not have negative sizes, got {sizes}")
    steps = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    pairs = zip(sizes, steps, strict=True)
    return tuple([wrap(np.asarray(array // step % size)) for size, step in pairs])


def nonzero_static(input: "Tensor", *, size: int, fill_value: int = -1) -> "Tensor":
    """Return the indices of the first `size` elements that are not 0, filled up with a value."""
    found = np.argwhere(check_tensor(input, "nonzero_static")._array)[:size]
    out = np.full((size, found.shape[1]), fill_value, np.int64)
    out[: len(found)] = found
    return wrap(out)


def one_hot(tensor: "Tensor", num_classes: int = -1) -> "Tensor":
    """Return for each class a vector of zeros with a one at the class, int64.

    Args:
        tensor: classes from 0 on, int64.
        num_classes: their number, the size of the last dimension; by default the largest plus 1.

    Raises:
        RuntimeError: for another dtype, or classes out of range.
    """
    array = check_tensor(tensor, "one_hot")._array
    if array.dtype != np.int64:
        raise RuntimeError(f"one_hot takes indices of dtype int64, got a {describe(tensor)}")
    if not array.size:
        if num_classes <= 0:
            raise RuntimeError(
                "one_hot: an empty tensor does not tell the number of classes: give num_classes"
            )
        return wrap(np.zeros((*array.shape, num_classes), np.int64))
    if array.min() < 0:
        raise RuntimeError(f"Class values must be non-negative, got {array.min()}")
    count = int(array.max()) + 1 if num_classes == -1 else num_classes
    if count < 1:
        raise RuntimeError(f"num_classes should be positive, got {num_classes}")
    if array.max() >= count:
        raise RuntimeError(f"Class values must be smaller than {count}, got {array.max()}")
    return wrap((array[..., None] == np.arange(count)).astype(np.int64))
