from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._dropout import _dropout_numpy
from offgrad.kernels._fastmath import random_bits, stream_key


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(0,), (1,), (), (3, 7), (2, 100_003)])
def test_numba_and_numpy_draw_the_same_bits(
    shape: tuple[int, ...], p: float, dtype: Any, rng: np.random.Generator
) -> None:
    x = np.asarray(rng.normal(size=shape)).astype(dtype)
    out, expected = np.empty_like(x), np.empty_like(x)
    kernels.dropout(x, out, p, seed=-3, offset=2**64 - 5)
    _dropout_numpy(x, expected, p, -3, 2**64 - 5)
    np.testing.assert_array_equal(out, expected)
    kept = kernels.dropout_mask(shape, p, -3, 2**64 - 5)
    np.testing.assert_array_equal(out != 0, kept)


def test_the_stream_is_splitmix64s() -> None:
    # The first outputs of SplitMix64 from state 0, as published with xoshiro's reference code.
    counters = np.arange(1, 4, dtype=np.uint64)
    bits = random_bits(np.uint64(0), counters)
    assert [hex(b) for b in bits.tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]
    assert stream_key(0) == bits[0]


def test_offset_continues_the_stream(backend: str) -> None:
    ones = np.ones(1000, np.float32)
    whole, part = np.empty_like(ones), np.empty(300, np.float32)
    kernels.dropout(ones, whole, 0.4, 9, 50)
    kernels.dropout(ones[:300], part, 0.4, 9, 750)
    np.testing.assert_array_equal(whole[700:], part)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_frequencies_and_independence(p: float) -> None:
    count = 400_000
    masks = [kernels.dropout_mask((count,), p, seed) for seed in range(4)]
    deviation = 5 * np.sqrt(p * (1 - p) / count)
    both = 5 * np.sqrt(1 / count)
    for i, mask in enumerate(masks):
        assert abs(mask.mean() - (1 - p)) < deviation
        for lag in (1, 2, 7, 64, 1024):
            assert abs(np.mean(mask[lag:] & mask[:-lag]) - (1 - p) ** 2) < both
        for other in masks[:i]:
            assert abs(np.mean(mask & other) - (1 - p) ** 2) < both


def test_kept_elements_are_scaled_and_dropped_infinities_become_0(dtype: Any, backend: str) -> None:
    x = np.array([2.0, np.inf, np.nan, -1.0] * 200, dtype=dtype)
    out = np.empty_like(x)
    kernels.dropout(x, out, 0.25, 4)
    kept = kernels.dropout_mask(x.shape, 0.25, 4)
    np.testing.assert_array_equal(out[~kept], 0)
    np.testing.assert_allclose(out[kept], x[kept] / 0.75, rtol=1e-6)
    kernels.dropout(x, out, 1.0, 4)
    np.testing.assert_array_equal(out, 0)


def test_backward_is_the_same_call(rng: np.random.Generator, backend: str) -> None:
    x = rng.normal(size=500).astype(np.float32)
    kernels.dropout(x, x, 0.3, 11, 6)
    assert np.array_equal(x != 0, kernels.dropout_mask((500,), 0.3, 11, 6))


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_errors(p: float) -> None:
    with pytest.raises(ValueError, match="probability, 0 to 1"):
        kernels.dropout(np.zeros(3), np.zeros(3), p, 0)
