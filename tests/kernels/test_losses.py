from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels import PairLoss

Agree = Callable[..., None]
SIZES = [(), (0,), (3,), (40, 50), (3, 50_001), (300, 1111)]


def _softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


def _huber(d: Any, delta: float) -> Any:
    return np.where(np.abs(d) < delta, d * d / 2, delta * (np.abs(d) - delta / 2))


# Of each loss: its kernel, value and slope in plain NumPy.
LOSSES: dict[str, tuple[PairLoss, Any, Any]] = {
    "mse": (kernels.mse(), lambda x, t: (x - t) ** 2, lambda x, t: 2 * (x - t)),
    "huber": (
        kernels.huber(0.7),
        lambda x, t: _huber(x - t, 0.7),
        lambda x, t: np.clip(x - t, -0.7, 0.7),
    ),
    "smooth_l1": (
        kernels.smooth_l1(0.7),
        lambda x, t: _huber(x - t, 0.7) / 0.7,
        lambda x, t: np.clip((x - t) / 0.7, -1, 1),
    ),
    "soft_margin": (
        kernels.soft_margin(),
        lambda x, t: _softplus(-t * x),
        lambda x, t: -t / (1 + np.exp(t * x)),
    ),
    "bce": (
        kernels.binary_cross_entropy(),
        lambda x, t: -t * np.log(x) - (1 - t) * np.log1p(-x),
        lambda x, t: (x - t) / (x * (1 - x)),
    ),
    "bce_with_logits": (
        kernels.binary_cross_entropy_with_logits(),
        lambda x, t: _softplus(x) - t * x,
        lambda x, t: 1 / (1 + np.exp(-x)) - t,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", SIZES)
def test_values_and_slopes(
    name: str, shape: Any, dtype: Any, rng: np.random.Generator, agree: Agree, backend: str
) -> None:
    loss, value, slope = LOSSES[name]
    x = np.asarray(rng.random(shape) if name == "bce" else rng.normal(size=shape) * 3).astype(dtype)
    target, grad = (np.asarray(rng.random(shape)).astype(dtype) for _ in "tg")
    exact = value(x.astype(np.float64), target.astype(np.float64))
    slopes = slope(x.astype(np.float64), target.astype(np.float64))
    out = np.empty_like(x)
    loss.values(x, target, out)
    agree(out, exact, 4)
    total = loss.total(x, target)
    np.testing.assert_allclose(total, exact.sum(), 1e-6 if dtype == np.float32 else 1e-14)
    loss.slopes(x, target, dtype.type(0.25), out)
    agree(out, slopes * 0.25, 4)
    loss.slopes(x, target, grad, out)
    agree(out, slopes * grad, 4)


@pytest.mark.parametrize("size", [10, 200_000])
def test_special_values(size: int, dtype: Any, backend: str) -> None:
    x, zero = np.zeros(size, dtype), np.zeros(size, dtype)
    out = np.empty_like(x)
    x[:4] = np.nan, np.inf, -np.inf, 100
    for loss, at_100, slope_of_inf in (
        (kernels.mse(), 10_000, np.inf),
        (kernels.huber(2.0), 198, 2),
        (kernels.smooth_l1(2.0), 99, 1),
    ):
        loss.values(x, zero, out)
        np.testing.assert_array_equal(out[:5], [np.nan, np.inf, np.inf, at_100, 0])
        assert np.isnan(loss.total(x, zero))
        assert loss.total(x[1:], zero[1:]) == np.inf
        loss.slopes(x, zero, dtype.type(1), out)
        np.testing.assert_array_equal(out[[0, 1, 2, 4]], [np.nan, slope_of_inf, -slope_of_inf, 0])


@pytest.mark.parametrize("size", [10, 200_000])
def test_cross_entropies_do_not_overflow(size: int, dtype: Any) -> None:
    one, out = np.ones(size, dtype), np.empty(size, dtype)
    x = np.full(size, -200, dtype)
    loss = kernels.binary_cross_entropy_with_logits()
    loss.values(x, one, out)
    np.testing.assert_array_equal(out, 200)
    loss.slopes(x, one, dtype.type(1), out)
    np.testing.assert_array_equal(out, -1)
    kernels.binary_cross_entropy().values(one, 0 * one, out)
    np.testing.assert_array_equal(out, 100)  # the limit of logarithms
    kernels.binary_cross_entropy().values(one, one, out)
    np.testing.assert_array_equal(out, 0)


def test_a_long_sum_keeps_its_digits(backend: str) -> None:
    x = np.full(3_000_000, 1.1, np.float32)
    exact = float(np.float64(np.float32(1.1)) ** 2 * x.size)
    assert abs(kernels.mse().total(x, np.zeros_like(x)) / exact - 1) < 1e-6


def test_are_probabilities() -> None:
    for size in (0, 10, 300_000):
        x = np.linspace(0, 1, size, dtype=np.float32)
        assert kernels.are_probabilities(x)
        for wrong in (-1e-6, 1.001, np.nan):
            if size:
                x[size // 2] = wrong
                assert not kernels.are_probabilities(x)
