"""What the Bessel and the normal functions share: 16-bit floats, threads and second derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import kernels
from offgrad.kernels._special import FEW
from tests.kernels import test_bessel, test_normal

NAMES = (*test_bessel.NAMES, *test_normal.NAMES)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_16_bit_floats_are_computed_in_float32(name: str, kind: str) -> None:
    x = offgrad.linspace(-9, 9, 3 * FEW).to(getattr(offgrad, kind)).requires_grad_()
    wide = x.detach().float().requires_grad_()
    results = []
    for each in (x, wide):
        y = getattr(offgrad.special, name)(each)
        results.append((y, *offgrad.autograd.grad(y.sum(), each)))
    for narrow, exact in zip(*results, strict=True):
        np.testing.assert_array_equal(
            narrow.detach().float().numpy(), exact.detach().to(x.dtype).float().numpy()
        )


@pytest.mark.parametrize("name", NAMES)
def test_threads_give_the_same_bits(name: str, rng: np.random.Generator) -> None:
    x, grad = (9 * rng.normal(size=(2, 300_007))).astype(np.float32)
    results = []
    for threads in (1, 2):
        kernels.set_num_threads(threads)
        out, slopes = np.empty_like(x), np.empty_like(x)
        with np.errstate(all="ignore"):
            getattr(kernels, name)(x, out)
            getattr(kernels, f"{name}_backward")(grad, x, slopes)
        results.append([out.tobytes(), slopes.tobytes()])
    assert results[0] == results[1]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_many_elements_have_derivatives(name: str) -> None:
    """They are those of few elements in float64."""
    points = offgrad.tensor([-3.0, -0.5, 0.25, 1.0, 7.0])

    def derivatives(x: Any) -> Any:
        y = getattr(offgrad.special, name)(x)
        first = offgrad.autograd.grad(y.sum(), x, create_graph=True)[0]
        return first.detach(), offgrad.autograd.grad(first.sum(), x)[0]

    few = derivatives(points.double().requires_grad_())
    many = derivatives(points.repeat(FEW).requires_grad_())
    tolerance = 1e-5 if name in test_bessel.NAMES else 1e-4
    for have, want in zip(many, few, strict=True):
        np.testing.assert_allclose(have[:5].numpy(), want.numpy(), tolerance, tolerance / 10)
