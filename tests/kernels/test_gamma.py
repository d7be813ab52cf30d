from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import offgrad
from offgrad import kernels
from offgrad.kernels._special import FEW
from tests.kernels.ulps import numbers, ulps

Array = npt.NDArray[Any]

NAMES = ("lgamma", "digamma", "trigamma")
ULPS = {"lgamma": 0.6, "digamma": 1.2, "trigamma": 0.6}
ENDS = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.0, -1e30, 1e-45, -1e-45, 3e38, 1.0, 2.0]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Ignore floating point errors, as operations do."""
    with np.errstate(all="ignore"):
        yield


def _exact(name: str, x: Array) -> Array:
    from scipy import special

    x = x.astype(np.float64)
    if name != "trigamma":
        result: Array = special.gammaln(x) if name == "lgamma" else special.psi(x)
        return result
    is_low = x < 0.5
    above: Array = special.polygamma(1, np.where(is_low, 1 - x, x))
    return np.where(is_low, (np.pi / np.sin(np.pi * (x - np.rint(x)))) ** 2 - above, above)


def _computed(name: str, *arrays: Array) -> Array:
    out = np.empty(arrays[-1].shape, arrays[-1].dtype)
    getattr(kernels, name)(*arrays, out)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_positive_numbers(name: str, rng: np.random.Generator) -> None:
    zeros: list[float] = {"lgamma": [1.0, 2.0], "digamma": [1.4616321], "trigamma": [0.5, 2.5]}[
        name
    ]  # or seams
    beside = [each + 1e-3 * rng.normal(size=9000) for each in zeros]
    neighbours = [
        np.nextafter(np.float32(each), np.float32(far)) for each in zeros for far in (0, 9)
    ]
    x = np.abs(np.concatenate([numbers(rng, 0.5, 1, 3, 30), neighbours, *beside]))
    x = x[x > 0].astype(np.float32)
    exact = _exact(name, x)
    assert ulps(_computed(name, x), exact).max() <= ULPS[name]
    assert ulps(_computed(name, x[:500]), exact[:500]).max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_negative_numbers(name: str, rng: np.random.Generator) -> None:
    x = -np.abs(np.concatenate([rng.uniform(-limit, 0, 20_000) for limit in (1, 3, 10, 1e4)]))
    x = np.concatenate([x, [-1e-45, -1e-30], -np.arange(1, 99)]).astype(np.float32)
    result, exact = _computed(name, x), _exact(name, x)
    beside_zero = np.abs(exact) < 0.1
    np.testing.assert_allclose(result[beside_zero], exact[beside_zero], rtol=6e-8, atol=2e-9)
    assert ulps(result[~beside_zero], exact[~beside_zero]).max() <= ULPS[name]


@pytest.mark.parametrize("size", [len(ENDS), FEW + 9])
def test_ends(size: int, dtype: Any, backend: str) -> None:
    x = np.full(size, 1.5, dtype)
    x[: len(ENDS)] = ENDS
    logarithms, slopes, second = (_computed(name, x)[: len(ENDS)] for name in NAMES)
    infinite = [0, 1, 2, 3, 5, 6, 7]
    np.testing.assert_array_equal(logarithms[infinite], np.inf)
    assert np.isnan(logarithms[4])
    exact = _exact("lgamma", x[8 : len(ENDS)]).astype(dtype)
    np.testing.assert_allclose(logarithms[8:], exact, rtol=2e-7)
    assert not np.signbit(logarithms[-2:]).any()
    np.testing.assert_array_equal(slopes[:3], [-np.inf, np.inf, np.inf])
    assert np.isnan(slopes[3:8]).all()
    exact = _exact("digamma", x[8 : len(ENDS)]).astype(dtype)
    np.testing.assert_allclose(slopes[8:], exact, rtol=2e-7)
    np.testing.assert_array_equal(second[:8], [np.inf] * 2 + [0, np.nan, np.nan] + [np.inf] * 3)
    exact = _exact("trigamma", x[8 : len(ENDS)]).astype(dtype)
    np.testing.assert_allclose(second[8:], exact, rtol=2e-7)


def test_gradients_are_products(dtype: Any, backend: str, rng: np.random.Generator) -> None:
    x, grad = (4 * rng.normal(size=(2, 40, 60))).astype(dtype)
    x[0, : len(ENDS)] = ENDS
    expected = grad * _computed("digamma", x)
    np.testing.assert_array_equal(_computed("lgamma_backward", grad, x), expected)
    row = _computed("lgamma_backward", np.broadcast_to(grad[:1], x.shape), x.T.copy().T)
    np.testing.assert_array_equal(row, grad[:1] * _computed("digamma", x))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_16_bit_floats_are_computed_in_float32(name: str, kind: str) -> None:
    x = offgrad.linspace(-9, 9, 3 * FEW).to(getattr(offgrad, kind)).requires_grad_()
    wide = x.detach().float().requires_grad_()
    results = []
    for each in (x, wide):
        y = offgrad.polygamma(1, each) if name == "trigamma" else getattr(offgrad, name)(each)
        results.append((y, *offgrad.autograd.grad(y.sum(), each)))
    for narrow, exact in zip(*results, strict=True):
        np.testing.assert_array_equal(
            narrow.detach().float().numpy(), exact.detach().to(x.dtype).float().numpy()
        )


@pytest.mark.parametrize("name", [*NAMES, "lgamma_backward"])
def test_threads_give_the_same_bits(name: str, rng: np.random.Generator) -> None:
    arrays = (9 * rng.normal(size=(2, 300_007))).astype(np.float32)
    results = []
    for threads in (1, 2):
        kernels.set_num_threads(threads)
        results.append(_computed(name, *arrays[: 1 + name.endswith("d")]).tobytes())
    assert results[0] == results[1]


def test_second_derivatives_of_many_elements() -> None:
    points = offgrad.tensor([-2.5, -0.5, 0.25, 1.0, 7.0])

    def derivatives(x: Any) -> Any:
        y = offgrad.lgamma(x)
        first = offgrad.autograd.grad(y.sum(), x, create_graph=True)[0]
        return first.detach(), offgrad.autograd.grad(first.sum(), x)[0]

    few = derivatives(points.double().requires_grad_())
    many = derivatives(points.repeat(FEW).requires_grad_())
    for have, want in zip(many, few, strict=True):
        np.testing.assert_allclose(have[:5].numpy(), want.numpy(), rtol=1e-5)
