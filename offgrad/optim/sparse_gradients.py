"""Steps of optimizers on the rows that a sparse gradient has."""

from typing import Any

import numpy as np

from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import metadata
from offgrad.ops._core.sparse_data import SparseArray

Array = np.ndarray[Any, Any]


def has_sparse_gradient(param: Tensor) -> bool:
    """Return whether the gradient of a parameter is sparse."""
    grad: Any = param._grad
    layout: Any = metadata(grad)
    return isinstance(layout, SparseArray)


def elements(grad: Any) -> tuple[tuple[Array, ...], Array]:
    """Return which elements a sparse gradient has, each once, as an index, and their values."""
    coalesced = grad.detach().coalesce()
    return tuple(coalesced._indices()._array), coalesced._values()._array


def add_at(param: Tensor, index: tuple[Array, ...], change: Array, operation: str) -> None:
    """Add `change` to elements of a parameter, none of which `index` has twice, in place."""
    param._storage.write(operation)
    param._array[index] += change.astype(param._array.dtype, copy=False)
