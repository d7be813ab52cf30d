"""Quantiles, the median of numbers, and the most frequent element."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.broadcasting import wide
from offgrad.ops._core.dims import normalize_dim
from offgrad.ops._core.dtypes import check_not_bool, check_ordered, check_tensor
from offgrad.ops._core.numpy_names import with_numpy_names
from offgrad.ops._core.results import Extreme
from offgrad.ops._indexing.sorting import sort
from offgrad.ops._reduction.extrema import Amax, Selection, not_empty

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["mode", "nanmedian", "nanquantile", "quantile"]

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


@with_numpy_names
@full_precision
def quantile(
    input: "Tensor",
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> "Tensor":
    """Return the quantiles `q` of all elements, or along `dim`; NaN if an element is NaN.

    Args:
        input: float32 or float64.
        q: a number from 0 to 1, or a vector of them: then its dimension is the first of the result.
        dim: the dimension to reduce; None for all.
        keepdim: whether to keep reduced dimensions with size 1.
        interpolation: between the two nearest elements: "linear", "lower", "higher", "midpoint" or
            "nearest".

    Raises:
        RuntimeError: for another dtype or interpolation, or an empty dimension.
    """
    return _quantile(input, q, dim, keepdim, interpolation, "quantile")


@with_numpy_names
@full_precision
def nanquantile(
    input: "Tensor",
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> "Tensor":
    """Return the quantiles `q` of the elements that are not NaN; arguments as of `quantile`."""
    return _quantile(input, q, dim, keepdim, interpolation, "nanquantile")


def _quantile(
    input: "Tensor", q: Any, dim: int | None, keepdim: bool, interpolation: str, where: str
) -> "Tensor":
    x = check_tensor(input, where)
    dtype, ndim = x._array.dtype, x._array.ndim
    if dtype not in (np.float32, np.float64):
        raise RuntimeError(
            f"{where}() input tensor must be either float or double dtype, got a {describe(x)}"
        )
    if interpolation not in _INTERPOLATIONS:
        raise RuntimeError(
            f"{where}() interpolation must be one of {', '.join(_INTERPOLATIONS)}, got "
            f"{interpolation!r}"
        )
    if isinstance(q, TensorBase):
        if q._array.ndim > 1 or q._array.dtype != dtype:
            raise RuntimeError(
                f"{where}(): q must be a number, or a 1D tensor of the input's dtype, got a "
                f"{describe(q)} for a {describe(x)}"
            )
    elif not 0 <= q <= 1:
        raise RuntimeError(f"{where}() q must be in the range [0, 1] but got {q}")
    fractions: Any = q if isinstance(q, TensorBase) else wrap(np.asarray(q, dtype))
    if not ((fractions._array >= 0) & (fractions._array <= 1)).all():
        raise RuntimeError(
            f"{where}() q values must be in the range [0, 1], got {fractions.tolist()}"
        )
    axis = None if dim is None else normalize_dim(dim, ndim, where)
    flat = x.reshape(-1) if axis is None else x.movedim(axis, -1) if ndim else x.reshape(1)
    if not flat._array.size:
        raise RuntimeError(f"{where}() input tensor must be non-empty, got a {describe(x)}")
    found = _at_fractions(sort(flat).values, fractions.reshape(-1), interpolation, where)
    if keepdim:
        kept = tuple(
            [1 if axis in (None, each) else size for each, size in enumerate(x._array.shape)]
        )
        found = found.reshape(fractions._array.size, *kept)
    return found if fractions._array.ndim else found.squeeze(0)


def _at_fractions(
    ordered: "Tensor", fractions: "Tensor", interpolation: str, where: str
) -> "Tensor":
    """Return the elements [fractions, ...] at fractions of the length of rows in order."""
    array = ordered._array
    last = array.shape[-1] - 1
    nan_count = np.isnan(array).sum(-1, keepdims=True)
    if where == "quantile":  # of a row with a NaN the last, which is NaN
        length, first = np.where(nan_count > 0, 0, last), np.where(nan_count > 0, last, 0)
    else:
        length, first = np.maximum(last - nan_count, 0), np.zeros_like(nan_count)
    fractions = fractions.to(ordered.device)
    places = fractions * wrap(length.astype(array.dtype)) + wrap(first.astype(array.dtype))
    ranks = places._array
    if interpolation in ("lower", "higher", "nearest"):
        ranks = {"lower": np.floor, "higher": np.ceil, "nearest": np.rint}[interpolation](ranks)
    below = np.floor(ranks)
    is_linear = interpolation == "linear"
    weights = places - wrap(below) if is_linear else wrap(np.full_like(ranks, 0.5))
    result = ordered.gather(-1, wrap(below.astype(np.int64)))
    if interpolation in ("linear", "midpoint"):
        above = ordered.gather(-1, wrap(np.ceil(ranks).astype(np.int64)))
        result = result.lerp(above, weights)
    return result.movedim(-1, 0)


def _nanmedian_index(x: Array, axis: int) -> Array:
    """Return the index of the lower median of the elements that are not NaN; 0 if all are."""
    order = np.argsort(wide(x), axis=axis, kind="stable")
    count = x.shape[axis] - np.isnan(x).sum(axis, keepdims=True)
    return np.take_along_axis(order, np.maximum(count - 1, 0) // 2, axis)


def _nanmedian(x: Array, out: Array) -> None:
    values = x[~np.isnan(x)]
    out[...] = (
        np.partition(values, (values.size - 1) // 2)[(values.size - 1) // 2]
        if values.size
        else np.nan
    )


@with_numpy_names
def nanmedian(input: "Tensor", dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the median of the elements that are not NaN; along `dim`, ``(values, indices)``.

    Of two middle elements it is the lower one; it is NaN if all elements are.
    """
    check_ordered(check_tensor(input, "nanmedian"), "nanmedian")
    check_not_bool(input, "nanmedian")
    if dim is None:
        name = "NanmedianBackward0"
        return Amax.named(name).apply(input, dim=(), keepdim=False, reduce=_nanmedian)
    axis = normalize_dim(dim, input._array.ndim, "nanmedian")
    not_empty(input, (axis,) if input._array.ndim else (), "nanmedian", IndexError)
    run = Selection.named("NanmedianBackward1").apply_all
    return Extreme.of("nanmedian", *run(input, dim=axis, find=_nanmedian_index, keepdim=keepdim))


def _mode_index(x: Array, axis: int) -> Array:
    """Return the last index of the most frequent element, of several the smallest."""
    rows = np.moveaxis(wide(x), axis, -1)
    order = np.argsort(rows, axis=-1, kind="stable")
    ordered = np.take_along_axis(rows, order, -1)
    place = np.arange(rows.shape[-1])
    is_first = np.ones(rows.shape, np.bool_)
    is_first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    # How often each element came before: most in the last of the longest run.
    run = place - np.maximum.accumulate(np.where(is_first, place, 0), -1)
    last = np.argmax(run, axis=-1)[..., None]
    return np.moveaxis(np.take_along_axis(order, last, -1), -1, axis)


@with_numpy_names
def mode(input: "Tensor", dim: int = -1, keepdim: bool = False) -> Extreme:
    """Return ``(values, indices)`` of the most frequent elements along `dim`.

    Of several it is the smallest, at the last of its indices.

    Raises:
        IndexError: if the dimension is empty.
    """
    check_ordered(check_tensor(input, "mode"), "mode")
    axis = normalize_dim(dim, input._array.ndim, "mode")
    not_empty(input, (axis,) if input._array.ndim else (), "mode", IndexError)
    run = Selection.named("ModeBackward0").apply_all
    return Extreme.of("mode", *run(input, dim=axis, find=_mode_index, keepdim=keepdim))
