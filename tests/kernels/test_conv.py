"""Convolutions by every algorithm: right within stated errors, for shapes at the edges of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels import (
    Steps,
    _conv_columns,
    _conv_direct,
    _conv_numpy,
    _conv_shifted,
    _conv_winograd,
)

Shape = tuple[int, ...]

# N, C, O, the space of the input, and the padding.
WINOGRAD = [
    (6, 16, 16, (12, 12), 1),
    (2, 70, 33, (29, 26), 0),
    (64, 17, 65, (4, 3), 1),
    (7, 16, 16, (9, 11), 2),
    (2, 130, 16, (21, 30), 1),
    (1, 16, 70, (20, 20), 1),
]


# N, C, O, the space of the input, the kernel, stride, padding, dilation and groups.
COLUMNS: list[tuple[Any, ...]] = [
    (9, 5, 20, (41,), (4,), (3,), (2,), (2,), 1),
    (2, 3, 40, (13, 15), (7, 5), (2, 1), (3, 0), (1, 2), 1),
    (40, 18, 4, (5, 4), (3, 3), (2, 2), (1, 1), (1, 1), 2),
    (9, 20, 24, (7, 6), (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (9, 20, 24, (7, 6), (1, 1), (2, 3), (1, 0), (1, 1), 2),
    (2, 18, 6, (4, 5, 6), (2, 3, 2), (1, 2, 1), (0, 1, 1), (2, 1, 1), 2),
    (1, 300, 20, (6, 8), (3, 3), (1, 1), (2, 2), (2, 2), 1),
    (1, 20, 18, (40, 40), (3, 3), (1, 1), (1, 1), (1, 1), 2),
    (1, 9, 8, (4, 60), (2, 3), (2, 2), (1, 40), (1, 1), 1),
]


# As above.
DIRECT: list[tuple[Any, ...]] = [
    (3, 6, 6, (11,), (4,), (3,), (2,), (2,), 3),
    (2, 6, 12, (13, 15), (7, 5), (2, 1), (3, 0), (1, 2), 6),
    (10, 16, 8, (9, 17), (3, 3), (2, 2), (1, 1), (1, 1), 2),
    (2, 4, 6, (4, 5, 12), (2, 3, 2), (1, 2, 3), (0, 1, 1), (2, 1, 1), 2),
    (1, 3, 3, (4, 5), (3, 3), (1, 1), (1, 6), (1, 2), 3),
    (2, 3, 3, (4, 5), (1, 1), (1, 1), (0, 0), (1, 1), 3),
]


# As above.
SHIFTED: list[tuple[Any, ...]] = [
    (5, 16, 24, (51,), (4,), (3,), (2,), (2,), 1),
    (9, 70, 16, (23, 29), (3, 5), (2, 1), (3, 0), (1, 1), 1),
    (2, 32, 140, (19, 27), (3, 3), (2, 2), (1, 1), (1, 1), 2),
    (2, 17, 16, (14, 5, 36), (2, 1, 2), (1, 2, 3), (0, 1, 1), (2, 1, 1), 1),
    (1, 16, 16, (14, 25), (3, 3), (1, 1), (1, 3), (1, 2), 1),
]


def _arrays(rng: np.random.Generator, x: Shape, weight: Shape, out: Shape, dtype: Any) -> Any:
    """Return x, weight and gradient, so that results have a standard deviation of about 1."""
    scales = 1, np.prod(weight[1:]) ** -0.5, np.prod([out[0], *out[2:]]) ** -0.5
    return [
        (rng.normal(size=shape) * scale).astype(dtype)
        for shape, scale in zip((x, weight, out), scales, strict=True)
    ]


def _out_shape(x: Shape, weight: Shape, steps: Steps) -> Shape:
    space = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(
            x[2:], weight[2:], steps.stride, steps.padding, steps.dilation, strict=True
        )
    ]
    return (x[0], weight[0], *space)


def _bias(count: int) -> Any:
    return np.arange(count) / count


def _all_three(arrays: list[Any], steps: Steps) -> list[Any]:
    """Return the results of the three kernels."""
    x, weight, grad = arrays
    results = [np.full_like(each, np.nan) for each in (grad, x, weight)]
    bias = _bias(len(weight)).astype(x.dtype)
    kernels.convolve(x, weight, results[0], steps, bias)
    bias = _bias(x.shape[1]).astype(x.dtype)
    kernels.convolve_transposed(grad, weight, results[1], steps, bias)
    kernels.convolve_weight(grad, x, results[2], steps)
    return results


def _expected(arrays: list[Any], steps: Steps) -> list[Any]:
    """Return the same in float64 from the reference."""
    x, weight, grad = (each.astype(np.float64) for each in arrays)
    results = [np.empty_like(each) for each in (grad, x, weight)]
    _conv_numpy.convolve_numpy(x, weight, results[0], steps)
    _conv_numpy.convolve_transposed_numpy(grad, weight, results[1], steps)
    _conv_numpy.convolve_weight_numpy(grad, x, results[2], steps)
    for each in results[:2]:
        each += _bias(each.shape[1]).reshape(-1, *[1] * (each.ndim - 2))
    return results


@pytest.mark.parametrize("sizes", WINOGRAD, ids=str)
def test_winograd(sizes: Any, rng: np.random.Generator) -> None:
    n, c, o, space, padding = sizes
    steps = Steps((1, 1), (padding, padding), (1, 1))
    x, weight = (n, c, *space), (o, c, 3, 3)
    arrays = _arrays(rng, x, weight, _out_shape(x, weight, steps), np.float32)
    if kernels.backend() == "numba":
        assert _conv_winograd.usable(arrays[2], arrays[0], (3, 3), steps)
        has_few = sizes[0] == 1
        of_weight = _conv_winograd.usable(arrays[2], arrays[0], (3, 3), steps, of_weight=True)
        assert of_weight != has_few
    for have, want in zip(_all_three(arrays, steps), _expected(arrays, steps), strict=True):
        error = have - want
        assert np.sqrt((error**2).mean()) < 2e-6
        assert np.abs(error).max() < 3e-5


@pytest.mark.parametrize("sizes", COLUMNS, ids=str)
def test_columns(sizes: Any, dtype: Any, rng: np.random.Generator, agree: Any) -> None:
    n, c, o, space, kernel, *numbers = sizes
    steps = Steps(*numbers)
    x, weight = (n, c, *space), (o, c // steps.groups, *kernel)
    arrays = _arrays(rng, x, weight, _out_shape(x, weight, steps), dtype)
    assert _conv_columns.usable(arrays[2], arrays[0], kernel) == (kernels.backend() == "numba")
    for have, want in zip(_all_three(arrays, steps), _expected(arrays, steps), strict=True):
        agree(have, want, 4)


@pytest.mark.parametrize("sizes", DIRECT, ids=str)
def test_direct(sizes: Any, dtype: Any, rng: np.random.Generator, agree: Any) -> None:
    n, c, o, space, kernel, *numbers = sizes
    steps = Steps(*numbers)
    x, weight = (n, c, *space), (o, c // steps.groups, *kernel)
    arrays = _arrays(rng, x, weight, _out_shape(x, weight, steps), dtype)
    assert _conv_direct.usable(arrays[2], arrays[0], kernel, steps) == (
        kernels.backend() == "numba"
    )
    for have, want in zip(_all_three(arrays, steps), _expected(arrays, steps), strict=True):
        agree(have, want, 4)


@pytest.mark.parametrize("sizes", SHIFTED, ids=str)
def test_shifted(sizes: Any, dtype: Any, rng: np.random.Generator, agree: Any) -> None:
    n, c, o, space, kernel, *numbers = sizes
    steps = Steps(*numbers)
    x, weight = (n, c, *space), (o, c // steps.groups, *kernel)
    arrays = _arrays(rng, x, weight, _out_shape(x, weight, steps), dtype)
    has_loops = kernels.backend() == "numba"
    assert _conv_shifted.usable(arrays[2], arrays[0], kernel, steps) == has_loops
    for have, want in zip(_all_three(arrays, steps), _expected(arrays, steps), strict=True):
        agree(have, want, 4)


def test_winograd_is_for_large_float32_alone() -> None:
    steps = Steps((1, 1), (1, 1), (1, 1))
    x = np.zeros((5, 16, 12, 12), np.float32)
    for each, kernel, how in (
        (x.astype(np.float64), (3, 3), steps),
        (x, (3, 2), steps),
        (x, (3, 3), steps._replace(stride=(1, 2))),
        (x, (3, 3), steps._replace(dilation=(2, 1))),
        (x, (3, 3), steps._replace(groups=2)),
        (x[:1], (3, 3), steps),
        (x[:, :3], (3, 3), steps),
    ):
        assert not _conv_winograd.usable(each, each, kernel, how)
