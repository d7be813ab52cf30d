"""The gradients of convolutions as functions."""

from typing import Any

import pytest

import offgrad
from offgrad import nn


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("of_weight", [False, True])
def test_gradients_of_convolutions(dims: int, of_weight: bool) -> None:
    options: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2}
    x = offgrad.randn(2, 4, *[5] * dims, requires_grad=True)
    weight = offgrad.randn(6, 2, *[3] * dims, requires_grad=True)
    result = getattr(nn.functional, f"conv{dims}d")(x, weight, None, **options)
    grad = offgrad.randn(result.shape)
    expected = offgrad.autograd.grad(result, [x, weight], grad)[of_weight]
    name = f"conv{dims}d_{'weight' if of_weight else 'input'}"
    arguments = (x.detach(), weight.shape) if of_weight else (x.shape, weight.detach())
    found = getattr(nn.grad, name)(*arguments, grad, **options)
    assert offgrad.allclose(found, expected, atol=1e-5)
    assert not found.requires_grad
    assert getattr(nn.grad, name)(*arguments, grad.requires_grad_(), **options).requires_grad
