"""Maxima of windows and weighted sums along axes: loops equal their references, on any threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.ops._nn.average_pooling import _means, adaptive_means
from offgrad.ops._nn.interpolation import _cubic, _linear, _nearest
from offgrad.ops._nn.windows import adaptive, sliding, with_dims

Agree = Callable[..., None]

WINDOWS = {
    "pairs": (sliding(10, 2, 2, 0, 1, 5), sliding(12, 2, 2, 0, 1, 6)),
    "pairs of odd sizes": (sliding(11, 2, 2, 0, 1, 5), sliding(13, 2, 2, 0, 1, 6)),
    "overlapping": (sliding(9, 3, 2, 1, 1, 5), sliding(11, 3, 1, 1, 1, 11)),
    "dilated": (sliding(9, 3, 3, 2, 2, 3), sliding(11, 2, 1, 0, 4, 7)),
    "adaptive": (adaptive(9, 4), adaptive(11, 6)),
    "of volumes": (adaptive(5, 3), sliding(9, 2, 3, 1, 1, 4), sliding(7, 7, 1, 0, 1, 1)),
    "more than a byte": (adaptive(30, 1), adaptive(20, 2)),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("special", [False, True])
def test_max_pool(name: str, special: bool, dtype: Any, rng: np.random.Generator) -> None:
    windows = with_dims(WINDOWS[name])
    sizes = [int((w.starts + (w.counts - 1) * w.dilation).max()) + 1 for w in windows]
    x = rng.integers(-9, 9, (700, *sizes)).astype(dtype)
    if special:
        x[rng.random(x.shape) < 0.2] = np.nan
        x[rng.random(x.shape) < 0.2] = -np.inf
    shape = (len(x), *(len(each.starts) for each in windows))
    grad = rng.integers(-9, 9, shape).astype(dtype)
    results = []
    for backend, threads in (("numba", 1), ("numba", 3), ("numpy", 1)):
        kernels.set_backend(backend)
        kernels.set_num_threads(threads)
        out, dx = np.empty(shape, dtype), np.full_like(x, np.nan)
        codes = np.empty(shape, kernels.code_dtype(windows))
        kernels.max_pool(x, windows, out, codes)
        kernels.max_pool_backward(grad, codes, windows, dx)
        alone = np.empty_like(out)
        kernels.max_pool(x, windows, alone, None)
        np.testing.assert_array_equal(alone, out)
        results.append((out, codes, dx))
    for other in results[1:]:
        for have, want in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(have, want)
    out, codes, _ = results[0]
    places = kernels.places(codes, windows, x.shape[1:]).reshape(len(x), -1)
    picked = np.take_along_axis(x.reshape(len(x), -1), places, 1)
    np.testing.assert_array_equal(picked, out.reshape(len(x), -1))


TAPS: dict[str, tuple[kernels.Taps | None, ...]] = {
    "rows first": (_means(12, 2, 2, 0, 6, True, 0), _means(9, 3, 2, 1, 5, False, 0)),
    "columns first": (
        _linear(5, 12, None, False, np.float64),
        _cubic(4, 9, None, True, np.float64),
    ),
    "nearest": (_nearest(5, 10, 2.0, False), _nearest(6, 4, None, True)),
    "along the last": (adaptive_means(11, 4),),
    "rows alone": (adaptive_means(7, 3), None),
    "columns alone": (None, _means(8, 3, 1, 1, 8, True, 0)),
    "smaller volume": (adaptive_means(5, 2), _nearest(3, 6, None, False), None),
    "larger volume": (_linear(2, 5, None, True, np.float64), None, adaptive_means(6, 1)),
    "uneven": (
        None,
        kernels.Taps(3, np.array([[0, 0, 0, 0, 0, 0, 1, 2]]), np.ones((1, 8))).transposed,
    ),
}


def _matrix(taps: kernels.Taps) -> Any:
    matrix = np.zeros((taps.outputs, taps.size))
    for index, weight in zip(taps.index, taps.weight, strict=True):
        np.add.at(matrix, (np.arange(taps.outputs), index), weight)
    return matrix / taps.divisors(np.dtype(np.float64))[:, None]


@pytest.mark.parametrize("name", TAPS)
@pytest.mark.parametrize("transposed", [False, True])
def test_resample(
    name: str, transposed: bool, dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    taps = TAPS[name]
    matrices = [None if each is None else _matrix(each) for each in taps]
    if transposed:
        taps = tuple(None if each is None else each.transposed for each in taps)
        matrices = [None if each is None else each.T for each in matrices]
    x = rng.normal(size=(300, *(7 if each is None else each.size for each in taps)))
    expected = x
    for axis, each in enumerate(matrices, 1):
        if each is not None:
            expected = np.moveaxis(np.tensordot(expected, each, (axis, 1)), -1, axis)
    x = x.astype(dtype)
    results = []
    for backend, threads in (("numba", 1), ("numba", 3), ("numpy", 1)):
        kernels.set_backend(backend)
        kernels.set_num_threads(threads)
        out = np.full(expected.shape, np.nan, dtype)
        kernels.resample(x, taps, out)
        agree(out, expected, 4)
        results.append(out)
    assert results[0].tobytes() == results[1].tobytes()
