from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels

from .conftest import Array

SHAPES = [
    (2, 3, 5, 7, 24),
    (1, 1, 1, 1, 4),
    (1, 2, 1, 9, 5),
    (2, 0, 3, 3, 4),
    (0, 2, 3, 3, 4),
    (1, 2, 3, 3, 0),
]


def _run(backend: str, arrays: tuple[Array, ...], sampling: Any) -> list[Array]:
    kernels.set_backend(backend)
    x, grid, grad = arrays
    out, dx, dgrid = (np.full_like(each, np.nan) for each in (grad, x, grid))
    kernels.grid_sample(x, grid, sampling, out)
    kernels.grid_sample_backward(grad, x, grid, sampling, dx, dgrid)
    return [out, dx, dgrid]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_loops_agree_with_numpy(
    shape: tuple[int, ...],
    mode: str,
    padding: str,
    align_corners: bool,
    dtype: Any,
    rng: Any,
    agree: Any,
) -> None:
    count, channels, height, width, places = shape
    x = rng.normal(size=(count, channels, height, width)).astype(dtype)
    grid = (1.5 * rng.normal(size=(count, places, 2))).astype(dtype)
    grad = rng.normal(size=(count, channels, places)).astype(dtype)
    arrays = x, grid, grad
    sampling = kernels.Sampling(mode, padding, align_corners)
    found = [_run(each, arrays, sampling) for each in ("numba", "numpy")]
    for mine, expected in zip(*found, strict=True):
        agree(mine, expected, 30, 1)


def test_a_corner_is_its_element(backend: str, dtype: Any) -> None:
    x = np.arange(12, dtype=dtype).reshape(1, 1, 3, 4)
    grid = np.array([[[-1, -1], [1, -1], [-1, 1], [1, 1], [3, 0]]], dtype)
    out = np.empty((1, 1, 5), dtype)
    kernels.grid_sample(x, grid, kernels.Sampling("bilinear", "zeros", True), out)
    np.testing.assert_array_equal(out[0, 0], [0, 3, 8, 11, 0])


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_places_far_outside_read_no_other_memory(backend: str, dtype: Any, padding: str) -> None:
    x = np.ones((1, 1, 2, 2), dtype)
    x[0, 0, 0, 0] = np.inf
    far = [[[np.inf, 0], [np.nan, 0], [1e30, -1e30], [-4e9, 4e9], [1, 1]]]
    grid, out = np.array(far, dtype), np.empty((1, 1, 5), dtype)
    kernels.grid_sample(x, grid, kernels.Sampling("bilinear", padding, True), out)
    assert out[0, 0, 4] == 1
    if padding == "zeros":
        np.testing.assert_array_equal(out[0, 0], [np.nan, np.nan, 0, 0, 1])
