"""Large linear layers have the same gradients with operations for each step and without."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.autograd.op import add_op_observer, remove_op_observer
from offgrad.nn import functional as F

INPUTS: dict[str, Callable[[Any], Any]] = {
    "a matrix": lambda x: x.reshape(-1, 96),
    "sequences": lambda x: x,
    "heads joined": lambda x: x.reshape(4, 100, 8, 12).transpose(1, 2).transpose(1, 2),
    "a transposed matrix": lambda x: x.reshape(96, -1).t(),
    "every second row": lambda x: x[:, ::2],
    "a vector": lambda x: x[0, 0],
    "nothing": lambda x: x[:0],
}


def _observe(apply: Any, cls: Any, inputs: Any, parameters: Any) -> Any:
    return apply(cls, inputs, parameters)


def _gradients(dtype: Any, take: Callable[[Any], Any], has_bias: bool, observed: bool) -> list[Any]:
    rng = np.random.default_rng(3)

    def leaf(*shape: int) -> Any:
        values = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype.is_complex else 0)
        return offgrad.tensor(values).to(dtype).requires_grad_()

    x, weight, bias = leaf(4, 100, 96), leaf(700, 96), leaf(700) if has_bias else None
    given = take(x)
    result = F.linear(
        given.reshape(*given.shape[:-2], 96) if given.ndim == 4 else given, weight, bias
    )
    grad = leaf(*result.shape[::-1]).detach().permute(*reversed(range(result.ndim)))
    if observed:
        add_op_observer(_observe)
    try:
        result.backward(grad)
    finally:
        if observed:
            remove_op_observer(_observe)
    leaves = [x, weight] if bias is None else [x, weight, bias]
    return [each.grad.resolve_conj().to(offgrad.complex128).numpy() for each in leaves]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("take", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize(
    "dtype", [offgrad.float32, offgrad.float64, offgrad.bfloat16, offgrad.complex64], ids=str
)
def test_the_same_bits(dtype: Any, take: Callable[[Any], Any], has_bias: bool) -> None:
    plain = _gradients(dtype, take, has_bias, False)
    by_operations = _gradients(dtype, take, has_bias, True)
    for a, b in zip(plain, by_operations, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_frozen_weight_and_a_frozen_input() -> None:
    x, weight = offgrad.ones(400, 96), offgrad.ones(700, 96, requires_grad=True)
    F.linear(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    np.testing.assert_array_equal(weight.grad.numpy(), np.full((700, 96), 400, np.float32))
    x.requires_grad_()
    F.linear(x, weight.detach()).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), np.full((400, 96), 700, np.float32))
