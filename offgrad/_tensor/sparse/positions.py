"""Indices of sparse tensors as positions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def positions(index: Array, shape: tuple[int, ...]) -> Array:
    """Return the position of each column of `index` [d, n] in C order."""
    flat: Array = np.zeros(index.shape[1], np.int64)
    for row, size in zip(index, shape, strict=True):
        flat = flat * size + row
    return flat
