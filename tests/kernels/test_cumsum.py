from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels

SHAPES = [(5,), (3, 0), (0, 3), (4, 5, 6), (300_000,), (700, 301), (2, 300, 401), (6, 61, 3, 301)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum(
    shape: tuple[int, ...], reverse: bool, dtype: Any, rng: np.random.Generator, backend: str
) -> None:
    x = rng.normal(size=shape).astype(dtype)
    wide = np.float64 if dtype == np.float32 else dtype
    for dim in range(len(shape)):
        out, turned = np.empty_like(x), np.flip(x, dim) if reverse else x
        kernels.cumsum(x, out, dim, reverse)
        expected = np.add.accumulate(turned, axis=dim, dtype=wide).astype(dtype)
        # Both add one after the other in the wider dtype: equal bit for bit.
        np.testing.assert_array_equal(out, np.flip(expected, dim) if reverse else expected)
        kernels.cumsum(np.asfortranarray(x), out, dim, reverse)
        np.testing.assert_array_equal(out, np.flip(expected, dim) if reverse else expected)


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.complex64])
def test_other_dtypes(dtype: Any) -> None:
    x = np.ones((3, 70_000), dtype)
    out = np.empty_like(x)
    kernels.cumsum(x, out, 1)
    np.testing.assert_array_equal(out[:, 999], 1000)


def test_nan_stays_behind_its_place(backend: str) -> None:
    x = np.ones((300, 1000), np.float32)
    x[7, 500] = np.nan
    out = np.empty_like(x)
    kernels.cumsum(x, out, 1)
    np.testing.assert_array_equal(np.isnan(out[7]), np.arange(1000) >= 500)
    assert np.isfinite(np.delete(out, 7, 0)).all()
