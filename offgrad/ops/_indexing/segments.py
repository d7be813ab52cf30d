"""Reductions of adjacent entries, by the lengths of segments."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.dims import normalize_dim
from offgrad.ops._core.dtypes import real_floating
from offgrad.ops._indexing.reducing import index_reduce

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["segment_reduce"]

_IDENTITIES = {"sum": 0, "mean": 0, "prod": 1, "max": float("-inf"), "min": float("inf")}


def segment_reduce(
    data: "Tensor",
    reduce: str,
    *,
    lengths: "Tensor | None" = None,
    indices: "Tensor | None" = None,
    offsets: "Tensor | None" = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> "Tensor":
    """Return the reduction of each segment of adjacent entries along `axis`.

    Args:
        data: floating point numbers.
        reduce: "sum", "mean", "prod", "max" or "min".
        lengths: of the segments, shape [*data.shape[:axis], segments]; or
        offsets: where they begin, and where the last one ends.
        indices: not supported, as in PyTorch.
        axis: the dimension of entries.
        unsafe: accepted; lengths are always checked.
        initial: what takes part in each segment.

    Raises:
        RuntimeError: if the lengths do not fit, or for another reduction.
    """
    x = real_floating(data, "segment_reduce")
    if reduce not in _IDENTITIES:
        raise RuntimeError(
            f"segment_reduce: reduce must be one of {', '.join(_IDENTITIES)}, got {reduce!r}"
        )
    if indices is not None or (lengths is None) == (offsets is None):
        raise RuntimeError("segment_reduce(): pass lengths or offsets, one of them")
    dim = normalize_dim(axis, x._array.ndim, "segment_reduce")
    given = lengths if lengths is not None else offsets
    assert given is not None
    counts = given._array if lengths is not None else np.diff(given._array, axis=-1)
    shape = x._array.shape
    if counts.ndim != dim + 1 or counts.shape[:-1] != shape[:dim]:
        raise RuntimeError(
            f"segment_reduce: lengths need a row for each of {list(shape[:dim])}, got a "
            f"{describe(given)} for a {describe(x)}"
        )
    if counts.size and (counts.min() < 0 or (counts.sum(-1) != shape[dim]).any()):
        raise RuntimeError(
            "segment_reduce(): lengths must not be negative, and each row must sum to the data's "
            f"size {shape[dim]}, got {counts.tolist()}"
        )
    flat_counts = counts.reshape(-1)
    rows = x.reshape(prod(shape[: dim + 1]), *shape[dim + 1 :])
    index = wrap(np.repeat(np.arange(flat_counts.size), flat_counts))
    start = _IDENTITIES[reduce] if initial is None else initial
    out = rows.new_full((flat_counts.size, *shape[dim + 1 :]), start)
    if reduce in ("sum", "mean"):
        out = out.index_add(0, index, rows)
    else:
        kind = reduce if reduce == "prod" else f"a{reduce}"
        out = index_reduce(out, 0, index, rows, kind)
    if reduce == "mean":
        divisors = np.where((flat_counts == 0) & (initial is not None), 1, flat_counts)
        column = divisors.reshape(-1, *(1,) * (len(shape) - dim - 1))
        out = out / wrap(column.astype(x._array.dtype))
    return out.reshape(*counts.shape, *shape[dim + 1 :])
