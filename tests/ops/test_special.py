"""torch.special at its edges, and those functions that PyTorch cannot differentiate."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import func
from offgrad.ops._elementwise.bessel_functions import FUNCTIONS
from offgrad.ops._elementwise.orthogonal_polynomials import _FAMILIES

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

POINTS = [-30.0, -2, -1, -0.5, -0.0, 0, 1e-8, 0.3, 1, 2.5, 30, np.inf, -np.inf, np.nan]
POLYNOMIALS = [*_FAMILIES, *(f"shifted_{name}" for name in _FAMILIES if "chebyshev" in name)]


def same(mine: Any, theirs: Any) -> None:
    assert mine.numpy().dtype == theirs.numpy().dtype
    tolerance = 1e-5 if mine.numpy().dtype == np.float32 else 1e-9
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), tolerance, tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("name", [*FUNCTIONS, "gammaln", "digamma"])
def test_values(name: str, dtype: str) -> None:
    points = [0, 1, 2, 3] if dtype == "int64" else POINTS
    same(
        getattr(offgrad.special, name)(offgrad.tensor(points, dtype=getattr(offgrad, dtype))),
        getattr(torch.special, name)(torch.tensor(points, dtype=getattr(torch, dtype))),
    )


@pytest.mark.parametrize("name", ["gammainc", "gammaincc", "xlog1py", "zeta"])
def test_values_of_two(name: str) -> None:
    a, b = [0.5, 2, 0, 3, 1.5], [1.0, 0.1, 2, 0, 4]
    same(
        getattr(offgrad.special, name)(offgrad.tensor(a), offgrad.tensor(b)),
        getattr(torch.special, name)(torch.tensor(a), torch.tensor(b)),
    )


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str) -> None:
    x = [0.1, 0.3, 0.5, 0.9]
    mine, theirs = getattr(offgrad.special, name), getattr(torch.special, name)
    for n in range(5):
        same(mine(offgrad.tensor(x), n), theirs(torch.tensor(x), n))
    same(mine(offgrad.tensor(x), offgrad.arange(4)), theirs(torch.tensor(x), torch.arange(4)))


def test_gradients_that_are_not_known_raise() -> None:
    a = offgrad.tensor([1.5], requires_grad=True)
    for result in (offgrad.igamma(a, offgrad.ones(1)), offgrad.special.zeta(a, offgrad.ones(1))):
        with pytest.raises(RuntimeError, match="not implemented"):
            result.backward()


def test_in_place_forms() -> None:
    for name in ("lgamma", "digamma", "i0"):
        x = offgrad.tensor([1.5, 2.5])
        expected = getattr(offgrad, name)(x)
        assert getattr(x, f"{name}_")() is x
        assert offgrad.equal(x, expected)


def test_negative_degrees_of_polygamma() -> None:
    with pytest.raises(RuntimeError, match="0 or more"):
        offgrad.polygamma(-1, offgrad.ones(1))


@pytest.mark.parametrize("dtype", [offgrad.float16, offgrad.bfloat16])
@pytest.mark.parametrize("name", ["ndtri", "bessel_j0", "modified_bessel_k1", "log_ndtr"])
def test_many_16_bit_floats(name: str, dtype: Any) -> None:
    function = getattr(offgrad.special, name)
    x = (offgrad.rand(200_000) * 0.8 + 0.1).to(dtype)
    few = offgrad.cat([function(each) for each in x.split(1000)])
    np.testing.assert_array_equal(function(x).float().numpy(), few.float().numpy())


@pytest.mark.parametrize("size", [3, 3000])
def test_the_slope_of_erfcx_keeps_its_digits_in_forward_mode(size: int) -> None:
    x, ones = offgrad.full((size,), 1000.0), offgrad.ones(size)
    expected = -1 / (1000.0**2 * np.sqrt(np.pi))  # but for 1.5e-6
    backward = func.grad(lambda a: offgrad.special.erfcx(a).sum())(x)
    _, forward = func.jvp(offgrad.special.erfcx, (x,), (ones,))
    for slope in (backward, forward):
        np.testing.assert_allclose(slope.numpy(), expected, rtol=3e-6)
