from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels


def _expected(x: Any, descending: bool) -> Any:
    if not descending:
        return np.argsort(x, -1, kind="stable")
    if np.isnan(x).any():
        x = np.where(np.isnan(x), np.inf, x)  # the tests have no infinities besides
    return np.argsort(-x, -1, kind="stable")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.float16])
@pytest.mark.parametrize(
    "shape", [(0,), (1,), (5,), (3, 0), (40, 3), (9, 20), (300, 1001), (90_001,)]
)
@pytest.mark.parametrize("descending", [False, True])
def test_order(dtype: Any, shape: Any, descending: bool, rng: np.random.Generator) -> None:
    x = (rng.normal(size=shape) * 50).astype(dtype)  # of integers many are equal
    order = kernels.sorted_indices(x, descending)
    np.testing.assert_array_equal(order, _expected(x, descending))
    length = shape[-1]
    for first, last in (
        (0, min(3, length)),
        (0, length // 8),
        (length // 2, min(length // 2 + 1, length)),
        (1, length),
    ):
        if first <= last:
            part = kernels.sorted_indices(x, descending, first, last)
            np.testing.assert_array_equal(part, order[..., first:last])


@pytest.mark.parametrize("descending", [False, True])
def test_zeros_are_equal_and_nan_is_largest(descending: bool) -> None:
    x = np.array([[0.0, -0.0, 1.0, -1.0, 0.0, -0.0] * 5, [1.0, np.nan, -1.0, np.nan, 2.0, 0.0] * 5])
    x = x.astype(np.float32)
    x[1, 1] = -np.nan
    order = kernels.sorted_indices(x, descending)
    np.testing.assert_array_equal(order[0], _expected(x[0], descending))
    np.testing.assert_array_equal(order[1], _expected(x[1], descending))
    for first, last in ((0, 1), (14, 15), (0, 4)):
        part = kernels.sorted_indices(x, descending, first, last)
        np.testing.assert_array_equal(part, order[:, first:last])


def test_infinities() -> None:
    x = np.tile(np.array([np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-45, 0], np.float32), 9)
    order = kernels.sorted_indices(x, False)
    np.testing.assert_array_equal(order, np.argsort(x, kind="stable"))
