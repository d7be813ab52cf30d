"""Gradients of sums and means: arrays of their own where they are small, else views."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor

DIMS: list[Any] = [None, 0, -1, (0, 2), (0, 1, 2), 1]


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 1), (2, 0, 3), (40, 50, 60)], ids=str)
@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_recorded_pass_gives_the_same_bits(
    shape: tuple[int, ...], dim: Any, keepdim: bool, name: str, dtype: str
) -> None:
    kind = getattr(offgrad, dtype)
    x = offgrad.rand(shape).to(kind).requires_grad_()
    result: Tensor = getattr(x, name)(dim, keepdim=keepdim)
    weight = offgrad.rand(result.shape).to(kind)
    plain, recorded = (
        offgrad.autograd.grad(result, x, weight, retain_graph=True, create_graph=create)[0]
        for create in (False, True)
    )
    assert plain.shape == recorded.shape == x.shape
    assert plain.dtype == recorded.dtype == kind
    assert plain.equal(recorded.detach())


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_scalars(name: str) -> None:
    x = offgrad.tensor(3.0, requires_grad=True)
    getattr(x, name)().backward()
    assert x.grad is not None
    assert x.grad.item() == 1


def test_a_count_beyond_float16_is_not_rounded() -> None:
    x = offgrad.ones(70_000, dtype=offgrad.float16).requires_grad_()
    (found,) = offgrad.autograd.grad(x.mean() * 1024, x)
    assert found[0].item() == np.float16(1024 / 70_000)


def test_a_sum_in_another_dtype() -> None:
    x = offgrad.ones(3, 4).requires_grad_()
    x.sum(dtype=offgrad.float64).backward()
    assert x.grad is not None
    assert x.grad.dtype == offgrad.float32


def test_a_large_gradient_takes_no_memory() -> None:
    x = offgrad.ones(1000, 1000).requires_grad_()
    (found,) = offgrad.autograd.grad(x.sum(), x)
    assert found.stride() == (0, 0)
    assert found.sum().item() == 1e6


def test_gradients_of_one_sum_are_not_shared() -> None:
    x, y = offgrad.ones(3, requires_grad=True), offgrad.ones(3, requires_grad=True)
    (x + y).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    x.grad.mul_(5)
    assert y.grad.tolist() == [1, 1, 1]
