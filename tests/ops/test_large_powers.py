"""Gradients of powers of large arrays, which take one pass over the memory."""

from typing import Any

import numpy as np
import pytest

import offgrad


@pytest.mark.parametrize("dtype", [offgrad.float32, offgrad.float64])
@pytest.mark.parametrize("exponent", [-1, -0.5, 0.5, 1, 1.5, 2, 3, 4, 2.5])
@pytest.mark.parametrize("shape", [(600, 500), (500, 600)])
def test_the_gradient_is_that_of_the_recorded_operations(
    exponent: Any, dtype: Any, shape: Any
) -> None:
    generator = offgrad.Generator().manual_seed(3)
    x = offgrad.rand(600, 500, generator=generator, dtype=dtype) + 0.1
    x[0, :4] = offgrad.tensor([0.0, offgrad.inf, offgrad.nan, -1.0], dtype=dtype)
    grad = offgrad.randn(*shape, generator=generator, dtype=dtype)
    found = []
    for is_recorded in (False, True):
        leaf = x.clone().requires_grad_()
        y = (leaf if shape == (600, 500) else leaf.mT) ** exponent
        found += offgrad.autograd.grad(y, leaf, grad, create_graph=is_recorded)
    np.testing.assert_array_equal(found[0].numpy(), found[1].detach().numpy())
    wanted = grad.numpy() if shape == (600, 500) else grad.numpy().T
    base = x.numpy()
    with np.errstate(all="ignore"):
        wanted = wanted * (exponent * base ** (exponent - 1.0))
    np.testing.assert_allclose(found[0].numpy()[1:], wanted[1:], rtol=1e-5)
