from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from offgrad import kernels
from offgrad.kernels._fastmath import normal_cdf
from offgrad.kernels._gelu import _gelu_backward_numpy, _gelu_numpy, _normal_cdf_numpy

Array = npt.NDArray[Any]
Agree = Callable[..., None]
SHAPES = [(0,), (1,), (), (7, 3), (33, 65), (3, 50_001)]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e20, -1e20, 40.0, -40.0, 1e-30, -9.0, 9.0, -13.5]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shape", SHAPES)
def test_numba_equals_numpy(
    shape: tuple[int, ...], approximate: Any, dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    x = np.asarray(rng.normal(size=shape) * 3).astype(dtype)
    grad = np.asarray(rng.normal(size=shape)).astype(dtype)
    out, expected = np.empty_like(x), np.empty_like(x)
    kernels.gelu(x, out, approximate)
    _gelu_numpy(x, expected, approximate)
    agree(out, expected)
    kernels.gelu_backward(grad, x, out, approximate)
    _gelu_backward_numpy(grad, x, expected, approximate)
    agree(out, expected)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_special_values(approximate: Any, dtype: Any, backend: str) -> None:
    x = np.array(SPECIAL, dtype=dtype)
    out = np.empty_like(x)
    kernels.gelu(x, out, approximate)
    big = dtype.type(1e20)
    np.testing.assert_array_equal(out[:2], 0)
    assert out[2] == np.inf
    assert np.isnan(out[3:5]).all()
    np.testing.assert_array_equal(out[5:9], [big, 0, 40, 0])
    kernels.gelu_backward(np.ones_like(x), x, out, approximate)
    np.testing.assert_array_equal(out[5:9], [1, 0, 1, 0])
    assert np.isnan(out[4])


@pytest.mark.parametrize("function", ["loop", "reference"])
def test_normal_cdf_is_accurate_in_both_tails(function: str) -> None:
    x = np.linspace(-9, 9, 20_001).astype(np.float32)
    exact = np.array([normal_cdf(float(a)) for a in x])
    if function == "loop":
        ones = np.empty_like(x)
        kernels.gelu(x, ones)  # x * cdf
        approximate = ones[x != 0].astype(np.float64) / x[x != 0]
        exact = exact[x != 0]
    else:
        approximate = _normal_cdf_numpy(x).astype(np.float64)
    # exp(-z^2) has the relative error of rounding z^2: up to 40 ulps for large z.
    assert np.max(np.abs(approximate / exact - 1)) < 1e-5
    near = np.abs(x[x != 0] if function == "loop" else x) < 3
    assert np.max(np.abs(approximate / exact - 1)[near]) < 1.2e-6


def test_float64_is_the_c_librarys(rng: np.random.Generator) -> None:
    x = rng.normal(size=100) * 4
    out = np.empty_like(x)
    kernels.gelu(x, out)
    expected = [a * 0.5 * math.erfc(-a / math.sqrt(2)) for a in x]
    np.testing.assert_allclose(out, expected, rtol=2e-14)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_against_torch(
    approximate: Any, dtype: Any, rng: np.random.Generator, agree: Agree, backend: str
) -> None:
    torch = pytest.importorskip("torch")
    x = (rng.normal(size=(31, 17)) * 3).astype(dtype)
    grad = rng.normal(size=x.shape).astype(dtype)
    tensor = torch.from_numpy(x).requires_grad_()
    result = torch.nn.functional.gelu(tensor, approximate=approximate)
    result.backward(torch.from_numpy(grad))
    out = np.empty_like(x)
    kernels.gelu(x, out, approximate)
    agree(out, result.detach().numpy())
    kernels.gelu_backward(grad, x, out, approximate)
    agree(out, tensor.grad.numpy())


def test_float16_is_computed_in_float32(agree: Agree) -> None:
    x = np.linspace(-5, 5, 100).astype(np.float16)
    out = np.empty_like(x)
    wide = np.empty(100, np.float32)
    kernels.gelu(x, out)
    kernels.gelu(x.astype(np.float32), wide)
    np.testing.assert_array_equal(out, wide.astype(np.float16))


def test_errors() -> None:
    x = np.zeros((4, 6), np.float32)
    with pytest.raises(ValueError, match="'none' or 'tanh', got 'erf'"):
        kernels.gelu(x, x.copy(), "erf")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"one shape, got x \(4, 6\), out \(6, 4\)"):
        kernels.gelu(x, np.empty((6, 4), np.float32))


def test_a_transposed_input(rng: np.random.Generator) -> None:
    x = rng.normal(size=(500, 300)).astype(np.float32)
    out, expected = np.empty((300, 500), np.float32), np.empty_like(x)
    kernels.gelu(x.T, out)
    kernels.gelu(x, expected)
    np.testing.assert_array_equal(out, expected.T)
