"""Downsampling that keeps extremes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def extremes(values: NDArray[Any], bins: int) -> NDArray[np.intp]:
    """Return the indices, ascending, of the minimum and maximum in each of `bins` equal parts.

    The first and the last index are always included.
    """
    size = values.size
    if size <= 2 * bins + 2:
        return np.arange(size)
    length = -(-size // bins)
    whole = size // length * length
    table = values[:whole].reshape(-1, length)
    starts = np.arange(0, whole, length)
    # Not np.unique, which imports a module: in a child forked meanwhile it would hang.
    is_chosen = np.zeros(size, np.bool_)
    is_chosen[[0, size - 1]] = True
    is_chosen[starts + table.argmin(axis=1)] = True
    is_chosen[starts + table.argmax(axis=1)] = True
    if whole < size:
        rest = values[whole:]
        is_chosen[[whole + rest.argmin(), whole + rest.argmax()]] = True
    return np.flatnonzero(is_chosen)
