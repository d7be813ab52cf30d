"""All combinations of elements."""

from typing import TYPE_CHECKING

import numpy as np

from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.dims import integer
from offgrad.ops._core.dtypes import check_tensor
from offgrad.ops._shape.joining import meshgrid, stack

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["cartesian_prod", "combinations"]


def cartesian_prod(*tensors: "Tensor") -> "Tensor":
    """Return all combinations of an element of each vector as rows, the last varying fastest.

    Raises:
        RuntimeError: for tensors that are no vectors.
    """
    for each in tensors:
        if check_tensor(each, "cartesian_prod")._array.ndim != 1:
            raise RuntimeError(f"cartesian_prod: each input must be 1D, got a {describe(each)}")
    if len(tensors) == 1:
        return tensors[0]
    return stack([each.reshape(-1) for each in meshgrid(*tensors, indexing="ij")], 1)


def combinations(input: "Tensor", r: int = 2, with_replacement: bool = False) -> "Tensor":
    """Return all combinations of `r` elements of a vector as rows, in its order.

    Raises:
        RuntimeError: if `input` is no vector, or `r` negative.
    """
    x = check_tensor(input, "combinations")
    if x._array.ndim != 1:
        raise RuntimeError(f"combinations: the input must be 1D, got a {describe(x)}")
    if integer(r, "combinations", "r") < 0:
        raise RuntimeError(f"combinations: r must not be negative, got {r}")
    if r == 0:
        return x.new_empty((0,))
    return x[wrap(_rows_of_combinations(x._array.size, r, not with_replacement))]


def _rows_of_combinations(size: int, r: int, step: bool) -> Array:
    """Return all increasing rows of `r` numbers below `size`, strictly so with `step`, in order."""
    rows = np.arange(size)[:, None]
    for _ in range(r - 1):
        first = rows[:, -1] + step
        counts = size - first
        ends = np.cumsum(counts)
        numbers = np.arange(counts.sum()) + np.repeat(first - (ends - counts), counts)
        rows = np.concatenate([np.repeat(rows, counts, 0), numbers[:, None]], 1)
    return rows
