"""Numbers of all kinds, and distances from exact results in units of the last place."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-40, 3.4e38, -3.4e38, 1.0, -1.0]


def ulps(actual: Array, exact: Array) -> Array:
    """The distances of results from exact ones; 0 for equal infinities and for NaN."""
    nearest = exact.astype(actual.dtype)
    size = np.where(np.isfinite(nearest), np.abs(nearest), 1)
    distance = np.abs(actual.astype(np.float64) - exact) / np.spacing(size)
    same = (actual == nearest) | (np.isnan(actual) & np.isnan(nearest))
    return np.where(same, 0, np.where(np.isnan(distance), np.inf, distance))


def numbers(rng: np.random.Generator, *limits: float) -> Array:
    """float32 numbers of all sizes, signs and kinds, those up to limits most densely."""
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = [rng.uniform(-limit, limit, 20_000) for limit in limits]
    return np.concatenate([SPECIAL, *dense, bits.astype(np.float64)]).astype(np.float32)
