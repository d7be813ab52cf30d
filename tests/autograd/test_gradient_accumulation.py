"""Sums of gradients change no array that anything but the engine holds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor
from offgrad.autograd import Function

# Gradients below and above the size at which operations run on arrays alone.
SIZES = [3, 20_000]
# Gradients that reach one tensor: from the third on, they are added to a sum of the engine's.
USES = [2, 3, 4]

pytestmark = [pytest.mark.parametrize("size", SIZES), pytest.mark.parametrize("uses", USES)]


class Give(Function):
    """The identity, whose gradient is a tensor of the program's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, given: Tensor) -> Tensor:
        ctx.given = given
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.given, None


class GiveSaved(Function):
    """The square, whose gradient is claimed to be the saved input itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.saved_tensors[0]


def leaf(size: int) -> Tensor:
    return offgrad.arange(size, dtype=offgrad.float64).requires_grad_()


def inner(x: Tensor) -> Tensor:
    """Return a tensor that is no leaf, and equals `x`."""
    return x * 1


def used(x: Tensor, uses: int, last: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a sum in which `x` is used so often; the use whose gradient comes first is `last`."""
    total = x * 2
    for number in range(uses - 2):
        total = total + x * (3 + number)
    return total + last(x)


def slope(uses: int) -> int:
    """Return the gradient of `used` without that of `last`."""
    return 2 + sum(3 + number for number in range(uses - 2))


def assert_equal(actual: Tensor | None, expected: Any) -> None:
    assert actual is not None
    values = actual.detach().numpy()
    np.testing.assert_array_equal(values, np.broadcast_to(np.asarray(expected), values.shape))


def test_a_tensor_that_a_function_returns(size: int, uses: int) -> None:
    x, given = leaf(size), offgrad.full((size,), 7.0, dtype=offgrad.float64)
    used(inner(x), uses, lambda each: Give.apply(each, given)).sum().backward()
    assert_equal(given, 7)
    assert_equal(x.grad, slope(uses) + 7)


def test_a_view_of_the_program_s_memory(size: int, uses: int) -> None:
    memory = np.full(2 * size, 7.0)
    x, given = leaf(size), offgrad.from_numpy(memory)[::2]
    used(inner(x), uses, lambda each: Give.apply(each, given)).sum().backward()
    assert set(memory) == {7.0}
    assert_equal(x.grad, slope(uses) + 7)


@pytest.mark.parametrize("policy", ["keep", "pool"])
def test_a_saved_tensor_that_a_function_returns(size: int, uses: int, policy: str) -> None:
    x = leaf(size)
    with offgrad.offload(policy):
        y = inner(x)
        loss = used(y, uses, lambda each: GiveSaved.apply(each) + GiveSaved.apply(each))
    expected = slope(uses) + 2 * np.arange(size)
    loss.backward(offgrad.ones(size, dtype=offgrad.float64), retain_graph=True)
    assert_equal(x.grad, expected)
    assert_equal(y, np.arange(size))
    loss.backward(offgrad.ones(size, dtype=offgrad.float64))
    assert_equal(x.grad, 2 * expected)


def test_the_gradient_that_backward_is_given(size: int, uses: int) -> None:
    x, start = leaf(size), offgrad.ones(size, dtype=offgrad.float64)
    used(inner(x), uses, lambda each: each + 0).backward(start)
    assert_equal(start, 1)
    assert_equal(x.grad, slope(uses) + 1)


def test_gradients_that_hooks_keep_or_return(size: int, uses: int) -> None:
    x, mine = leaf(size), offgrad.full((size,), 5.0, dtype=offgrad.float64)
    kept: list[Tensor] = []
    y = inner(x)
    parts = [y + 0 for _ in range(uses)]  # their gradients reach y as they are
    for part in parts:
        part.register_hook(kept.append)
    y_again = y + 0
    y_again.register_hook(lambda grad: mine)
    total = y_again
    for part in parts:
        total = total + part
    total.sum().backward()
    assert len(kept) == uses
    for each in kept:
        assert_equal(each, 1)
    assert_equal(mine, 5)
    assert_equal(x.grad, uses + 5)


def test_gradients_that_hooks_of_nodes_keep(size: int, uses: int) -> None:
    x = leaf(size)
    kept: list[Any] = []
    total = used(inner(x), uses, lambda each: each.sin().sin())
    node: Any = total.grad_fn
    for index in (1, 0):  # to the outer sine, and to the inner one
        node = node.next_functions[index][0]
        node.register_hook(lambda inputs, outputs: kept.extend([*inputs, *outputs]))
    total.sum().backward()
    cos = np.cos(np.sin(np.arange(size)))
    expected = [cos, np.ones(size), cos * np.cos(np.arange(size)), cos]
    for actual, values in zip(kept, expected, strict=True):
        np.testing.assert_allclose(actual.numpy(), values, rtol=1e-12, atol=1e-15)


def test_retained_gradients(size: int, uses: int) -> None:
    x = leaf(size)
    y, parts = inner(x), []
    for number in range(uses):
        parts.append(y * (number + 1))
        parts[-1].retain_grad()
    y.retain_grad()
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    total.retain_grad()
    (total + y).sum().backward()
    for each in (*parts, total):
        assert_equal(each.grad, 1)
    expected = sum(range(1, uses + 1)) + 1
    assert_equal(y.grad, expected)
    assert_equal(x.grad, expected)


def test_captured_gradients(size: int, uses: int) -> None:
    x = leaf(size)
    y = inner(x)
    parts = [y + 0 for _ in range(uses)]
    total = y
    for part in parts:
        total = total + part
    grads: Any = offgrad.autograd.grad(total.sum(), [*parts, y, x, total])
    for each in (*grads[:uses], grads[-1]):
        assert_equal(each, 1)
    for each in grads[uses:-1]:
        assert_equal(each, uses + 1)
    grads[uses].zero_()
    assert_equal(grads[0], 1)


def test_expanded_gradients(size: int, uses: int) -> None:
    """The gradient of a sum has one element in memory."""
    x = leaf(size)
    y = inner(x)
    total = y.sum()
    for _ in range(uses - 1):
        total = total + y.sum()
    (total + (y * y).sum()).backward()
    assert_equal(x.grad, uses + 2 * np.arange(size))


def test_gradients_that_are_views_of_one_gradient(size: int, uses: int) -> None:
    x = leaf(2 * size)
    y = inner(x)
    weights = offgrad.arange(2 * size, dtype=offgrad.float64).view(2, size)
    turned = [y.view(2, size).t() for _ in range(uses)]
    stacked = y.view(2, size).t()
    for each in turned:
        stacked = stacked + each
    first, second = stacked.t().unbind()
    (first + second + first).backward(weights[0])
    expected = (uses + 1) * np.concatenate([2 * np.arange(size), np.arange(size)])
    assert_equal(x.grad, expected)
    assert_equal(weights.view(-1), np.arange(2 * size))


def test_gradients_with_a_graph(size: int, uses: int) -> None:
    """With create_graph, each sum has its own history."""
    x = leaf(size)
    loss = used(inner(x), uses, lambda each: each**3).sum()
    first: Any = offgrad.autograd.grad(loss, x, create_graph=True)[0]
    second: Any = offgrad.autograd.grad(first.sum(), x)[0]
    np.testing.assert_allclose(first.detach().numpy(), slope(uses) + 3 * np.arange(size) ** 2)
    np.testing.assert_allclose(second.numpy(), 6 * np.arange(size))
