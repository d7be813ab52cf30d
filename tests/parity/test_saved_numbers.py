"""Python's numbers among the operands of an operation: pack hooks do not get them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from tests.parity.conftest import leaf

Call = Callable[[Any, Any], Any]

# Calls of a matrix [2, 3] and the number of such matrices that hooks get.
CALLS: dict[str, tuple[Call, int]] = {
    "x * 3": (lambda lib, x: x * 3, 0),
    "3 * x": (lambda lib, x: 3 * x, 0),
    "x * 3.5": (lambda lib, x: x * 3.5, 0),
    "x * 2j": (lambda lib, x: x * 2j, 0),
    "x * np.float64(3)": (lambda lib, x: x * np.float64(3), 0),
    "x / 3": (lambda lib, x: x / 3, 0),
    "3 / x": (lambda lib, x: 3 / x, 1),
    "x + 2": (lambda lib, x: x + 2, 0),
    "x - 2": (lambda lib, x: x - 2, 0),
    "2 - x": (lambda lib, x: 2 - x, 0),
    "x ** 2": (lambda lib, x: x**2, 1),
    "x ** 0.5": (lambda lib, x: x**0.5, 1),
    "x // 2": (lambda lib, x: x // 2, 0),
    "x % 2": (lambda lib, x: x % 2, 0),
    "clamp": (lambda lib, x: x.clamp(1, 3), 1),
    "where": (lambda lib, x: lib.where(x.detach() > 1, x, 3.0), 1),
    "where of a number": (lambda lib, x: lib.where(x.detach() > 1, 2.0, x), 1),
    "masked_fill": (lambda lib, x: x.masked_fill(x.detach() > 1, 2.0), 1),
    "xlogy": (lambda lib, x: x.xlogy(2), 1),
    "xlogy of a number": (lambda lib, x: lib.xlogy(2, x), 1),
    "float_power": (lambda lib, x: x.float_power(2.5), 1),
    "mul_": (lambda lib, x: x.clone().mul_(3), 0),
    "div_": (lambda lib, x: x.clone().div_(3), 0),
    "pow_": (lambda lib, x: x.clone().pow_(3), 1),
    "the function mul": (lambda lib, x: lib.mul(3, x), 0),
    "the function div": (lambda lib, x: lib.div(x, 3), 0),
    "float32": (lambda lib, x: x.float() * 3, 0),
    "of a sum": (lambda lib, x: x.sum() * 3 + 1, 0),
    "a mean": (lambda lib, x: x.mean(), 0),
    "leaky_relu": (lambda lib, x: lib.nn.functional.leaky_relu(x, 0.1), 1),
}


def packed(lib: Any, run: Callable[[], Any]) -> list[tuple[int, ...]]:
    """Return the shapes that pack hooks get while `run` runs."""
    shapes: list[tuple[int, ...]] = []

    def pack(tensor: Any) -> Any:
        shapes.append(tuple(tensor.shape))
        return tensor

    with lib.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return shapes


@pytest.mark.parametrize("name", CALLS)
def test_hooks_get_tensors_alone(lib: Any, name: str) -> None:
    call, count = CALLS[name]
    x = leaf(lib, [[1.0, 2, 3], [4, 5, 7]])
    assert packed(lib, lambda: call(lib, x)) == [(2, 3)] * count


BACKWARD: list[str] = [
    "x * 3", "3 * x", "x / 3", "3 / x", "x + 2", "2 - x", "x ** 2", "x ** 0.5", "clamp",
    "masked_fill", "mul_", "of a sum", "leaky_relu", "xlogy",
]  # fmt: skip


@pytest.mark.parametrize("name", BACKWARD)
def test_a_differentiable_backward_gives_hooks_tensors_alone(lib: Any, name: str) -> None:
    call, _ = CALLS[name]
    x = leaf(lib, [[1.0, 2, 3], [4, 5, 7]])
    y = call(lib, x).sum()
    assert () not in packed(lib, lambda: lib.autograd.grad(y, x, create_graph=True))


def test_tensors_without_dimensions_reach_hooks(lib: Any) -> None:
    x = leaf(lib, 1, 2, 3)
    assert packed(lib, lambda: x * lib.tensor(3.0)) == [()]
    assert packed(lib, lambda: x * lib.tensor(3.0, dtype=lib.float64)) == [()]


def test_numbers_are_saved_all_the_same(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with lib.autograd.graph.saved_tensors_hooks(lambda each: each + 100, lambda each: each):
        y = x * 3
    (grad,) = lib.autograd.grad(y.sum(), x)
    assert grad.tolist() == [3, 3]
    assert (x * 3).grad_fn._saved_other.tolist() == 3


@pytest.mark.parametrize("policy", ["pool", "disk"])
def test_the_ledger_of_a_session_counts_no_numbers(policy: str) -> None:
    x = leaf(offgrad, [[1.0, 2, 3], [4, 5, 7]])
    with offgrad.offload(policy) as session:
        y = 2 / ((x * 3 / 7 + 1) ** 2)
        y.sum().backward()
    # The square saves its operand, the reciprocal its result.
    assert session.ledger.saves == 2
    assert session.ledger.logical_nbytes == 2 * x.nbytes
    assert x.grad is not None
