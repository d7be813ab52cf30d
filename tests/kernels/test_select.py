from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels

SHAPES = [
    [(500, 400)] * 3,
    [(500, 400), (), (500, 400)],
    [(500, 1), (400,), ()],
    [(400,), (500, 400), (1, 400)],
    [(3, 2)] * 3,
    [(0, 4)] * 3,
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int64, np.complex128])
@pytest.mark.parametrize("shapes", SHAPES)
def test_select(shapes: Any, dtype: Any, rng: np.random.Generator, backend: str) -> None:
    condition = rng.random(shapes[0]) < 0.5
    a, b = ((rng.normal(size=shape) * 100).astype(dtype) for shape in shapes[1:])
    out = np.empty(np.broadcast_shapes(*shapes), dtype)
    kernels.select(np.asarray(condition), np.asarray(a), np.asarray(b), out)
    np.testing.assert_array_equal(out, np.where(condition, a, b))


def test_each_bit_of_nan_stays() -> None:
    payload = np.full(300_000, 0x7F800123, np.uint32).view(np.float32)
    out = np.zeros_like(payload)
    kernels.select(np.ones(payload.shape, np.bool_), payload, out.copy(), out)
    np.testing.assert_array_equal(out.view(np.uint32), payload.view(np.uint32))
    transposed = np.ones((600, 500), np.float32).T
    out = np.zeros(transposed.shape, np.float32)
    kernels.select(transposed > 0, transposed, out.copy(), out)
    assert (out == 1).all()


@pytest.mark.parametrize("shape", [(7,), (300_000,), (500, 400)])
def test_nan_to_zero(
    shape: tuple[int, ...], dtype: Any, rng: np.random.Generator, backend: str
) -> None:
    x = rng.normal(size=shape).astype(dtype)
    x.reshape(-1)[::3] = np.nan
    x.reshape(-1)[1] = np.inf
    out = np.empty_like(x)
    kernels.nan_to_zero(x, out)
    np.testing.assert_array_equal(out, np.where(np.isnan(x), 0, x))
