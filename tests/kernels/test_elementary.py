from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from offgrad import kernels
from offgrad.kernels._elementary import LOOPS
from offgrad.kernels._elementary_math import MAX_ANGLE
from offgrad.kernels._special import FEW
from tests.kernels.ulps import SPECIAL, ulps

Array = npt.NDArray[Any]

BORDERS = [88.7, 88.8, -87.4, -103.9, -104.0, 127.9, -149.5, 0.5, -0.5, 0.99999994, 1.0000001, 1e6]
SUMS = (np.logaddexp, np.logaddexp2)


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Ignore floating point errors, as operations do."""
    with np.errstate(all="ignore"):
        yield


def _numbers(rng: np.random.Generator) -> Array:
    """Numbers of all sizes, signs and kinds, those up to 1, 10 and 100 most densely."""
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = [rng.uniform(-limit, limit, 20_000) for limit in (1e-3, 1, 10, 100)]
    return np.concatenate([SPECIAL, BORDERS, *dense, bits]).astype(np.float32)


def _operands(ufunc: np.ufunc, rng: np.random.Generator) -> list[Array]:
    x = _numbers(rng)
    if ufunc.nin == 1:
        return [x]
    y = rng.permutation(x)
    special = np.array(SPECIAL, np.float32)
    pairs = np.tile(special, special.size), np.repeat(special, special.size)
    return [np.concatenate(each) for each in zip(pairs, (x, y), strict=True)]


@pytest.mark.parametrize("ufunc", LOOPS, ids=lambda each: each.__name__)
def test_results_are_accurate(ufunc: Any, rng: np.random.Generator) -> None:
    arrays = _operands(ufunc, rng)
    out = np.empty_like(arrays[0])
    kernels.elementary(ufunc, *arrays, out=out)
    exact = ufunc(*[each.astype(np.float64) for each in arrays])
    distances = ulps(out, exact)
    if ufunc is np.tan:  # larger angles are NumPy's, and so are those that share a block with them
        small = np.abs(arrays[0]) <= MAX_ANGLE
        alone = np.empty(small.sum(), np.float32)
        kernels.elementary(ufunc, arrays[0][small], out=alone)
        assert ulps(alone, exact[small]).max() <= 0.6
    elif ufunc in SUMS:
        near_0 = np.abs(exact) <= 0.1
        distances = np.where(near_0, 0, distances)
        np.testing.assert_allclose(out[near_0], exact[near_0], rtol=1e-7, atol=2e-9)
    assert distances.max() <= 0.6
    if ufunc not in SUMS:
        signed = ~np.isnan(exact)
        np.testing.assert_array_equal(np.signbit(out[signed]), np.signbit(exact[signed]))


@pytest.mark.parametrize("ufunc", LOOPS, ids=lambda each: each.__name__)
def test_other_dtypes_and_few_elements_are_numpys(ufunc: Any, rng: np.random.Generator) -> None:
    for size, dtype in ((FEW, np.float32), (FEW + 1, np.float64)):
        arrays = [rng.normal(size=size).astype(dtype) for _ in range(ufunc.nin)]
        out = np.empty_like(arrays[0])
        kernels.elementary(ufunc, *arrays, out=out)
        np.testing.assert_array_equal(out, ufunc(*arrays))


def test_strides_broadcasting_and_float16(rng: np.random.Generator) -> None:
    x = rng.normal(size=(40, 60)).astype(np.float32)
    row = rng.normal(size=60).astype(np.float32)
    exact = np.arctan2(x.astype(np.float64), row)
    for out in (np.empty((40, 60), np.float32), np.empty((60, 40), np.float32).T):
        kernels.elementary(np.arctan2, x[::-1], row, out=out)
        np.testing.assert_allclose(out, exact[::-1], rtol=3e-7)
    half = np.empty(x.shape, np.float16)
    kernels.elementary(np.tan, x.astype(np.float16), out=half)
    wide = np.tan(x.astype(np.float16).astype(np.float64))
    np.testing.assert_allclose(half, wide, rtol=6e-4)


def test_rsqrt(rng: np.random.Generator, backend: str) -> None:
    x = np.abs(_numbers(rng))
    out = np.empty_like(x)
    kernels.rsqrt(x, out)
    assert ulps(out, 1 / np.sqrt(x.astype(np.float64))).max() <= 2
