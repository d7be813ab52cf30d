from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import offgrad
from offgrad import kernels
from offgrad.kernels._special import FEW
from tests.kernels.ulps import SPECIAL, numbers, ulps

Array = npt.NDArray[Any]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Ignore floating point errors, as operations do."""
    with np.errstate(all="ignore"):
        yield


def _exact_xlogy(a: Any, b: Any) -> Array:
    from scipy import special

    result: Array = special.xlogy(a.astype(np.float64), b.astype(np.float64))
    return result


def _xlogy(a: Array, b: Array) -> Array:
    out = np.empty(np.broadcast_shapes(a.shape, b.shape), a.dtype)
    kernels.xlogy(a, b, out)
    return out


def _entr(x: Array) -> Array:
    out = np.empty_like(x)
    kernels.entr(x, out)
    return out


def _slopes(x: Array) -> Array:
    out = np.empty_like(x)
    kernels.entr_backward(np.ones_like(x), x, out)
    return out


def test_entropy_is_accurate(rng: np.random.Generator) -> None:
    from scipy import special

    x = numbers(rng, 1e-3, 1, 10, 1e4)
    exact = special.entr(x.astype(np.float64))
    assert ulps(_entr(x), exact).max() <= 0.6
    slopes, exact = _slopes(x), -1 - np.log(x.astype(np.float64))
    near_0 = np.abs(exact) < 0.1
    np.testing.assert_allclose(slopes[near_0], exact[near_0], rtol=6e-8, atol=6e-9)
    assert ulps(slopes[~near_0], exact[~near_0]).max() <= 0.6


@pytest.mark.parametrize("size", [len(SPECIAL), FEW + 9])
def test_entropy_of_special_numbers(size: int, dtype: Any, backend: str) -> None:
    from scipy import special

    x = np.ones(size, dtype)
    x[: len(SPECIAL)] = SPECIAL
    np.testing.assert_allclose(_entr(x), special.entr(x), rtol=3e-7)
    np.testing.assert_allclose(_slopes(x), -1 - np.log(x), rtol=3e-7)


def test_xlogy_is_accurate(rng: np.random.Generator) -> None:
    special = np.array(SPECIAL, np.float32)
    x = np.concatenate([np.tile(special, special.size), numbers(rng, 1, 10, 1e4)])
    y = np.concatenate([np.repeat(special, special.size), rng.permutation(x[special.size**2 :])])
    for a, b in ((x, y), *((x, special[i : i + 1]) for i in range(special.size)), (x, x[9:10])):
        assert ulps(_xlogy(a, b), _exact_xlogy(a, b)).max() <= 0.6
        assert ulps(_xlogy(b, a), _exact_xlogy(b, a)).max() <= 0.6
    few = _exact_xlogy(x, y)[:300].astype(np.float32)
    np.testing.assert_allclose(_xlogy(x[:300], y[:300]), few, rtol=3e-7)


def test_xlogy_broadcasts(dtype: Any, backend: str, rng: np.random.Generator) -> None:
    a, b = np.abs(rng.normal(size=(2, 40, 60))).astype(dtype) + 1
    a[0, 0] = 0
    one = np.full((1, 1), 2.5, dtype)
    for x, y in ((a, b[:1]), (a.T, b[:1].T), (a[:, :1], b), (a, one[0, 0]), (one, b), (one[0], b)):
        x, y = np.asarray(x), np.asarray(y)
        np.testing.assert_allclose(_xlogy(x, y), _exact_xlogy(x, y), rtol=1e-6)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_16_bit_floats_are_computed_in_float32(kind: str) -> None:
    x = offgrad.linspace(-1, 9, 3 * FEW).to(getattr(offgrad, kind)).requires_grad_()
    wide = x.detach().float().requires_grad_()
    results = []
    for each in (x, wide):
        y = offgrad.special.entr(each)
        first = offgrad.autograd.grad(y.sum(), each)
        products = each * 0 + offgrad.xlogy(each, 2.5), offgrad.xlogy(2.5, each)
        results.append((y, *first, *products, offgrad.xlogy(each, each)))
    for narrow, exact in zip(*results, strict=True):
        np.testing.assert_array_equal(
            narrow.detach().float().numpy(), exact.detach().to(x.dtype).float().numpy()
        )


def test_threads_give_the_same_bits(rng: np.random.Generator) -> None:
    x, y = (9 * rng.normal(size=(2, 300_007))).astype(np.float32)
    results = []
    for threads in (1, 2):
        kernels.set_num_threads(threads)
        arrays = _entr(x), _slopes(x), _xlogy(x, y), _xlogy(x, y[:1]), _xlogy(y[:1], x)
        results.append([each.tobytes() for each in arrays])
    assert results[0] == results[1]


@pytest.mark.parametrize("number", [2.5, 0.0, -1.0, float("inf"), float("nan")])
def test_gradients_of_xlogy_with_a_number(number: float) -> None:
    """Few and many elements have the same gradients, whatever the number."""

    def gradients(x: Any) -> Any:
        x = x.requires_grad_()
        of_first = offgrad.autograd.grad(offgrad.xlogy(x, number).sum(), x)[0]
        return of_first, offgrad.autograd.grad(offgrad.xlogy(number, x).sum(), x)[0]

    points = offgrad.tensor([-3.0, 0.0, 0.25, 1.0, float("nan")])
    for few, many in zip(gradients(points), gradients(points.repeat(FEW)), strict=True):
        np.testing.assert_allclose(many[:5].numpy(), few.numpy(), rtol=1e-6)
    few, many = (offgrad.xlogy(each.detach(), number) for each in (points, points.repeat(FEW)))
    np.testing.assert_allclose(many[:5].numpy(), few.numpy(), rtol=1e-6)
