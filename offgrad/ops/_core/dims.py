"""Dimensions as arguments, counted from the front."""

import builtins
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Dim: TypeAlias = int | Sequence[int] | None


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
    """Return the dimensions `dim` as counted from the front; None and () mean all."""
    if dim is None:
        return tuple(range(ndim))
    if isinstance(dim, int | np.integer):
        axis = normalize_dim(int(dim), ndim, where)
        return (axis,) if ndim else ()
    dims = tuple(normalize_dim(int(each), ndim, where) for each in dim)
    if len(set(dims)) != len(dims):
        raise RuntimeError(f"{where}: a dimension must be given once, got dim={tuple(dim)}")
    return dims if dims and ndim else tuple(range(ndim))
