from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._cross_entropy import _cross_entropy_backward_numpy, _cross_entropy_numpy

Agree = Callable[..., None]
SHAPES = [(0, 4), (1, 1), (5, 3), (40, 257), (9, 40_001)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_numba_equals_numpy(
    shape: tuple[int, int],
    weighted: bool,
    smoothing: float,
    dtype: Any,
    rng: np.random.Generator,
    agree: Agree,
) -> None:
    count, classes = shape
    logits = (rng.normal(size=shape) * 3).astype(dtype)
    target = rng.integers(0, classes, count)
    target[1::4] = -7
    weight = rng.random(classes).astype(dtype) if weighted else None
    grad = rng.normal(size=count).astype(dtype)
    rest = (weight, -7, smoothing)
    losses, lse, dx = np.empty(count, dtype), np.empty(count, dtype), np.empty_like(logits)
    losses_, lse_, dx_ = np.empty_like(losses), np.empty_like(lse), np.empty_like(dx)
    kernels.cross_entropy(logits, target, losses, lse, *rest)
    _cross_entropy_numpy(logits, target, losses_, lse_, *rest)
    agree(losses, losses_)
    agree(lse, lse_)
    kernels.cross_entropy_backward(grad, logits, target, lse_, dx, *rest)
    _cross_entropy_backward_numpy(grad, logits, target, lse_, dx_, *rest)
    agree(dx, dx_)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_against_torch_with_the_callers_mean(
    weighted: bool,
    smoothing: float,
    dtype: Any,
    rng: np.random.Generator,
    agree: Agree,
    backend: str,
) -> None:
    torch = pytest.importorskip("torch")
    logits = (rng.normal(size=(12, 33)) * 3).astype(dtype)
    target = rng.integers(0, 33, 12)
    target[[2, 5]] = -100
    weight = rng.random(33).astype(dtype) if weighted else None
    tensor = torch.from_numpy(logits).requires_grad_()
    options = {
        "weight": None if weight is None else torch.from_numpy(weight),
        "label_smoothing": smoothing,
    }
    function = torch.nn.functional.cross_entropy
    each = function(tensor, torch.from_numpy(target), reduction="none", **options)
    mean = function(tensor, torch.from_numpy(target), **options)
    mean.backward()
    losses, lse, dx = np.empty(12, dtype), np.empty(12, dtype), np.empty_like(logits)
    rest = (weight, -100, smoothing)
    kernels.cross_entropy(logits, target, losses, lse, *rest)
    agree(losses, each.detach().numpy())
    total = kernels.cross_entropy_total_weight(target, weight)
    assert losses.sum() / total == pytest.approx(mean.item(), rel=1e-5)
    grad = np.full(12, 1 / total, dtype)
    kernels.cross_entropy_backward(grad, logits, target, lse, dx, *rest)
    agree(dx, tensor.grad.numpy())


def test_masked_and_nan_logits(dtype: Any, backend: str) -> None:
    inf, nan = np.inf, np.nan
    logits = np.array(
        [[-inf, 0, 0], [-inf, 0, 0], [-inf] * 3, [nan, 0, 0], [nan, 0, 0], [1e4, 0, -1e4]],
        dtype=dtype,
    )
    target = np.array([1, 0, 0, 1, -100, 0])
    losses, lse, dx = np.empty(6, dtype), np.empty(6, dtype), np.empty_like(logits)
    kernels.cross_entropy(logits, target, losses, lse)
    np.testing.assert_allclose(losses, [np.log(2), inf, nan, nan, 0, 0], rtol=1e-6)
    kernels.cross_entropy_backward(np.ones(6, dtype), logits, target, lse, dx)
    np.testing.assert_allclose(dx[0], [0, -0.5, 0.5], rtol=1e-6)
    assert np.isnan(dx[2:4]).any(axis=1).all()
    np.testing.assert_array_equal(dx[4:], 0)


def test_the_gradient_adds_up_to_zero(dtype: Any, rng: np.random.Generator) -> None:
    logits = rng.normal(size=(6, 1000)).astype(dtype)
    target, losses, lse = rng.integers(0, 1000, 6), np.empty(6, dtype), np.empty(6, dtype)
    dx = np.empty_like(logits)
    kernels.cross_entropy(logits, target, losses, lse)
    kernels.cross_entropy_backward(np.ones(6, dtype), logits, target, lse, dx)
    np.testing.assert_allclose(dx.sum(axis=1), 0, atol=2e-5 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("bad", [-1, 3, 10**12])
def test_a_target_out_of_range_is_named(bad: int, backend: str) -> None:
    logits, losses, lse = np.zeros((3, 3), np.float32), np.zeros(3, np.float32), np.zeros(3)
    target = np.array([0, bad, 5])
    with pytest.raises(IndexError, match=rf"Target {bad} is out of bounds in row 1: with 3 cl"):
        kernels.cross_entropy(logits, target, losses, lse.astype(np.float32))


def test_errors() -> None:
    logits, one = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
    target = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(3,\)"):
        kernels.cross_entropy(logits, np.zeros(3, np.int64), one, one)
    with pytest.raises(ValueError, match="integers; got float32"):
        kernels.cross_entropy(logits, one, one, one)
    with pytest.raises(ValueError, match=r"one element per class \(3\), got \(2,\)"):
        kernels.cross_entropy(logits, target, one, one, one)
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        kernels.cross_entropy(logits, target, one, one, None, -100, 1.5)
