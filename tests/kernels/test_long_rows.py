"""Sums of millions of numbers in float32 keep its digits: against float64, to 1e-6."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor, kernels

LENGTH = 9_000_000


def numbers(*shape: int, seed: int = 0) -> Any:
    """Return normal numbers of mean 1, whose sums grow, as float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) + 1


def check(actual: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    wide = np.result_type(actual.dtype, np.float64)
    error = np.max(np.abs(actual.astype(wide) - expected)) / np.max(np.abs(expected))
    assert error < 1e-6


def test_layer_norm(backend: str) -> None:
    x, grad, weight = numbers(1, LENGTH), numbers(1, LENGTH, seed=1), numbers(LENGTH, seed=2)
    out, mean, rstd = np.empty_like(x), np.empty(1, np.float32), np.empty(1, np.float32)
    kernels.layer_norm(x, weight, weight, 1e-5, out, mean, rstd)
    centred = x.astype(np.float64) - np.mean(x, dtype=np.float64)
    scale = 1 / np.sqrt(np.mean(centred**2) + 1e-5)
    normal = centred * scale
    check(rstd, np.array([scale]))
    check(out, normal * weight + weight)
    outputs = np.empty_like(x), np.empty_like(weight), np.empty_like(weight)
    kernels.layer_norm_backward(grad, x, weight, mean, rstd, *outputs)
    h = grad.astype(np.float64) * weight
    check(outputs[0], scale * (h - h.mean() - normal * (h * normal).mean()))
    check(outputs[1], (grad * normal)[0])
    check(outputs[2], grad[0])


def test_layer_norm_of_many_short_rows(backend: str) -> None:
    x = numbers(LENGTH // 8, 2)
    out, mean, rstd = np.empty_like(x), np.empty(len(x), np.float32), np.empty(len(x), np.float32)
    kernels.layer_norm(x, None, None, 1e-5, out, mean, rstd)
    normal = (x - mean[:, None]) * rstd[:, None]
    # The products have one sign, so that no digits cancel.
    grad = np.abs(numbers(LENGTH // 8, 2, seed=1)) * normal
    dweight, dbias = np.empty(2, np.float32), np.empty(2, np.float32)
    kernels.layer_norm_backward(grad, x, None, mean, rstd, None, dweight, dbias)
    kernels.layer_norm_backward(np.abs(grad), x, None, mean, rstd, None, None, dbias)
    check(dbias, np.abs(grad).sum(0, dtype=np.float64))
    check(dweight, (grad * normal).sum(0, dtype=np.float64))


def test_softmax(backend: str) -> None:
    x, grad = numbers(1, LENGTH), numbers(1, LENGTH, seed=1)
    powers = np.exp(x.astype(np.float64))
    share = powers / powers.sum()
    out, dx = np.empty_like(x), np.empty_like(x)
    kernels.softmax(x, out)
    check(out, share)
    kernels.softmax_backward(grad, out, dx)
    check(dx, share * (grad - (share * grad).sum()))
    kernels.log_softmax(x, out)
    check(out, np.log(share))
    # The gradient of a number of this size has its rounding, times the sum of the gradients.
    kernels.log_softmax_backward(grad, np.log(share).astype(np.float32), dx)
    check(dx, grad - share * grad.sum(dtype=np.float64))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_cross_entropy(label_smoothing: float, backend: str) -> None:
    x, target = numbers(1, LENGTH), np.array([5])
    losses, lse = np.empty(1, np.float32), np.empty(1, np.float32)
    kernels.cross_entropy(x, target, losses, lse, None, -100, label_smoothing)
    expected = np.log(np.exp(x.astype(np.float64)).sum())
    check(lse, np.array([expected]))
    mean = expected - x.mean(dtype=np.float64)
    loss = (1 - label_smoothing) * (expected - x[0, 5]) + label_smoothing * mean
    check(losses, np.array([loss]))


def test_sum_rows(backend: str) -> None:
    for shape in [(LENGTH, 1), (LENGTH // 2, 3), (2000, 1000)]:
        x = numbers(*shape)
        out = np.empty(shape[1], np.float32)
        kernels.sum_rows(x, out)
        check(out, x.sum(0, dtype=np.float64))


LAYOUTS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "columns": (lambda: numbers(LENGTH // 2, 3), (0,)),
    "few columns more than blocks": (lambda: numbers(2049, 5), (0,)),
    "the middle": (lambda: numbers(3, LENGTH // 8, 2), (1,)),
    "all but the middle": (lambda: numbers(LENGTH // 8, 2, 3), (0, 2)),
    "a view": (lambda: numbers(LENGTH // 4, 4)[:, ::2], (0, 1)),
    "backwards": (lambda: numbers(LENGTH // 4, 2)[::-1], (0,)),
    "rows": (lambda: numbers(2, LENGTH // 2), (1,)),
    "all": (lambda: numbers(LENGTH), (0,)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_sum_axes(name: str) -> None:
    make, axes = LAYOUTS[name]
    x = make()
    expected = x.sum(axes, dtype=np.float64)
    check(kernels.sum_axes(x, axes), expected)
    check(kernels.sum_axes(x, axes, keepdims=True), x.sum(axes, dtype=np.float64, keepdims=True))
    out = np.empty(expected.shape, np.float32)
    assert kernels.sum_axes(x, axes, out=out) is out
    check(out, expected)
    check(kernels.sum_axes(x.astype(np.complex64) * 1j, axes), expected * 1j)


def test_sum_axes_keeps_nan_and_infinity() -> None:
    x = numbers(5000, 4)
    x[1, 0], x[4999, 1], x[17, 2] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(kernels.sum_axes(x, (0,))[:3], [np.nan, np.inf, -np.inf])


REDUCTIONS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Any]]] = {
    "sum": (lambda x: x.sum(0), lambda x: x.sum(0)),
    "mean": (lambda x: x.mean(0), lambda x: x.mean(0)),
    "nansum": (lambda x: x.nansum(0), lambda x: x.sum(0)),
    "var": (lambda x: x.var(0), lambda x: x.var(0, ddof=1)),
    "std": (lambda x: x.std(0), lambda x: x.std(0, ddof=1)),
    "norm": (lambda x: x.norm(2, 0), lambda x: np.sqrt((x**2).sum(0))),
    "norm 1": (lambda x: x.norm(1, 0), lambda x: np.abs(x).sum(0)),
    "norm 3": (lambda x: x.norm(3, 0), lambda x: (np.abs(x) ** 3).sum(0) ** (1 / 3)),
    "logsumexp": (lambda x: x.logsumexp(0), lambda x: np.log(np.exp(x).sum(0))),
    "cumsum": (lambda x: x.cumsum(0)[-1], lambda x: x.sum(0)),
    "softmax": (lambda x: x.softmax(0), lambda x: np.exp(x) / np.exp(x).sum(0)),
    "sum_to_size": (lambda x: x.sum_to_size(1, 2), lambda x: x.sum(0, keepdims=True)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_a_long_first_dimension(name: str) -> None:
    reduce, expected = REDUCTIONS[name]
    x = numbers(LENGTH // 4, 2)
    check(reduce(offgrad.from_numpy(x)).numpy(), expected(x.astype(np.float64)))


def test_long_scans() -> None:
    x = numbers(100_000)
    found = offgrad.from_numpy(x).logcumsumexp(0).numpy()
    check(found, np.logaddexp.accumulate(x.astype(np.float64)))
    factors = np.float32(1) + np.float32(1e-5) * (x - 1)
    check(offgrad.from_numpy(factors).cumprod(0).numpy(), np.cumprod(factors, dtype=np.float64))
