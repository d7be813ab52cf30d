from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._batch_norm import _batch_norm_backward_numpy, _batch_norm_numpy
from offgrad.kernels._group_norm import _group_norm_backward_numpy, _group_norm_numpy

Agree = Callable[..., None]
SHAPES = [(0, 4), (5, 3), (40, 33), (2, 3, 0), (1, 1, 1), (3, 5, 7), (3, 4, 5000), (600, 700)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm_equals_numpy(
    shape: tuple[int, ...], affine: bool, training: bool, dtype: Any,
    rng: np.random.Generator, agree: Agree,
) -> None:  # fmt: skip
    x = (rng.normal(size=shape) * 3 + 1).astype(dtype)
    grad = rng.normal(size=shape).astype(dtype)
    channels = shape[1]
    weight, bias = rng.normal(size=(2, channels)).astype(dtype) if affine else (None, None)
    found = []
    for run, back in (
        (kernels.batch_norm, kernels.batch_norm_backward),
        (_batch_norm_numpy, _batch_norm_backward_numpy),
    ):
        out, dx = np.zeros_like(x), np.zeros_like(x)
        mean, invstd, variance, dweight, dbias = np.full((5, channels), 0.5, dtype)
        run(x, weight, bias, 1e-5, out, mean, invstd, variance if training else None)
        back(grad, x, weight, mean, invstd, dx, dweight, dbias, training)
        found.append([out, mean, invstd, variance, dx, dweight, dbias])
    for one, other in zip(*found, strict=True):
        agree(one, other, 20, floor=1)


def test_large_means_and_outliers(dtype: Any, backend: str) -> None:
    """The variance keeps its digits."""
    x = np.random.default_rng(0).standard_normal((64, 2, 50)).astype(dtype)
    x[:, 1] += 1000
    x[0, 0] = 30
    expected = x.astype(np.float64).var((0, 2))
    for each in (x, np.ascontiguousarray(np.moveaxis(x, 1, -1)).reshape(-1, 2)):
        mean, invstd, variance = np.empty((3, 2), dtype)
        kernels.batch_norm(each, None, None, 0, np.empty_like(each), mean, invstd, variance)
        np.testing.assert_allclose(variance, expected, 2e-5)


@pytest.mark.parametrize("wanted", range(8))
@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3)])
def test_only_requested_gradients_are_written(
    shape: tuple[int, ...], wanted: int, rng: np.random.Generator, backend: str
) -> None:
    x, grad = rng.normal(size=(2, *shape)).astype(np.float32)
    weight, mean, invstd = rng.normal(size=(3, 5)).astype(np.float32)
    everything: tuple[Any, Any, Any] = np.empty_like(x), *np.empty((2, 5), np.float32)
    kernels.batch_norm_backward(grad, x, weight, mean, invstd, *everything, True)
    first, second, third = (
        np.empty_like(each) if wanted >> i & 1 else None for i, each in enumerate(everything)
    )
    some = first, second, third
    kernels.batch_norm_backward(grad, x, weight, mean, invstd, *some, True)
    for array, expected in zip(some, everything, strict=True):
        if array is not None:
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 3, 2, 1), (3, 2, 4, 5000), (1, 1, 1, 9)])
def test_group_norm_equals_numpy(
    shape: tuple[int, ...], affine: bool, dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    x = (rng.normal(size=shape) * 3 + 1).astype(dtype)
    grad = rng.normal(size=shape).astype(dtype)
    channels = shape[1] * shape[2]
    weight, bias = rng.normal(size=(2, channels)).astype(dtype) if affine else (None, None)
    found = []
    for run, back in (
        (kernels.group_norm, kernels.group_norm_backward),
        (_group_norm_numpy, _group_norm_backward_numpy),
    ):
        out, dx, (mean, rstd) = np.zeros_like(x), np.zeros_like(x), np.ones((2, *shape[:2]), dtype)
        dweight, dbias = np.empty((2, channels), dtype)
        run(x, weight, bias, 1e-5, out, mean, rstd)
        back(grad, x, weight, mean, rstd, dx, dweight, dbias)
        back(grad, x, weight, mean, rstd, dx, None, None)
        found.append([out, mean, rstd, dx, dweight, dbias])
    for one, other in zip(*found, strict=True):
        agree(one, other, 20, floor=1)


def test_errors() -> None:
    x, row = np.zeros((2, 3, 4), np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match=r"one element per channel \(3\), got \(4,\)"):
        kernels.batch_norm(x, row, None, 1e-5, x.copy(), row, row, None)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.batch_norm(x.T, None, None, 1e-5, x.T.copy(), row[:3], row[:3], None)
    groups, pair = x[None], np.zeros((1, 2), np.float32)
    with pytest.raises(ValueError, match=r"one element per channel \(6\), got \(4,\)"):
        kernels.group_norm(groups, row, None, 1e-5, groups.copy(), pair, pair)
    with pytest.raises(ValueError, match="one element per group"):
        kernels.group_norm(groups, None, None, 1e-5, groups.copy(), row, row)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.group_norm(x, None, None, 1e-5, x.copy(), row, row)
