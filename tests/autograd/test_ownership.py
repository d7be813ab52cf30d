"""Leaves keep the memory of a gradient that nobody else holds, and copy any other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import memory
from offgrad.autograd import Function
from tests.session.graphs import bits, normal

SHAPES = [(4, 4), (256, 256)]
"""Below and above the size from which memory comes from the pool."""


def array_of(tensor: Any) -> Any:
    return tensor.detach().numpy()


class Gives(Function):
    """Passes x on; its gradient is what a function returns, of the incoming one."""

    @staticmethod
    def forward(ctx: Any, x: Any, give: Callable[[Any], Any]) -> Any:
        ctx.give = give
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return ctx.give(ctx, grad), None


def test_a_gradient_that_nobody_holds_is_not_copied() -> None:
    leaf, x = normal(1, 1024, 1024), normal(2, 1024, 1024, grad=False)
    loss = (leaf @ x).sum()
    before = memory.allocated()
    memory.reset_peak()
    loss.backward()
    # The incoming gradient is expanded: it takes no memory until the product copies it.
    assert memory.max_allocated() - before < 2.5 * leaf.nbytes
    assert leaf.grad is not None
    assert leaf.grad.grad_fn is None
    assert not leaf.grad.requires_grad


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "hold",
    [
        lambda grad: grad,
        lambda grad: grad.detach(),
        lambda grad: grad.view(-1),
        lambda grad: grad[1:],
        lambda grad: grad.numpy(),
        lambda grad: grad.numpy()[1:].T,
        lambda grad: memoryview(grad.numpy()),
        lambda grad: grad._storage,
    ],
)
def test_what_a_hook_holds_is_copied(shape: tuple[int, ...], hold: Callable[[Any], Any]) -> None:
    leaf = normal(1, *shape)
    held = []
    leaf.register_hook(lambda grad: held.append(hold(grad)))
    leaf.exp().sum().backward()
    (each,) = held
    expected = bits(leaf.grad)
    root = each.root if hasattr(each, "root") else each
    array = array_of(root) if isinstance(root, offgrad.Tensor) else np.asarray(root)
    assert not np.shares_memory(array, array_of(leaf.grad))
    array[...] = 0
    assert bits(leaf.grad) == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_function_holds_is_copied(shape: tuple[int, ...]) -> None:
    outside = normal(3, *shape, grad=False)
    kept: list[Any] = []

    def keep(ctx: Any, grad: Any) -> Any:
        kept.append(grad * 2)
        return kept[-1]

    gives: list[Callable[[Any, Any], Any]] = [
        lambda ctx, grad: outside,
        lambda ctx, grad: outside.detach(),
        lambda ctx, grad: outside.t(),
        lambda ctx, grad: ctx.saved_tensors[0],
        lambda ctx, grad: ctx.saved_tensors[0].detach(),
        keep,
    ]
    for give in gives:
        leaf = normal(1, *shape)
        Gives.apply(leaf, give).sum().backward()
        grad = array_of(leaf.grad)
        for each in (leaf, outside, *kept):
            assert not np.shares_memory(grad, array_of(each))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_a_plain_tensor(shape: tuple[int, ...]) -> None:
    """Whatever a Function returns: .grad can be changed in place."""

    def in_inference_mode(ctx: Any, grad: Any) -> Any:
        with offgrad.inference_mode():
            return offgrad.ones(*shape)

    gives: list[Callable[[Any, Any], Any]] = [
        lambda ctx, grad: offgrad.ones(*shape, requires_grad=True),
        lambda ctx, grad: offgrad.nn.Parameter(offgrad.ones(*shape)),
        lambda ctx, grad: offgrad.nn.Parameter(offgrad.ones(*shape), requires_grad=False),
        in_inference_mode,
    ]
    for give in gives:
        leaf = normal(1, *shape)
        Gives.apply(leaf, give).sum().backward()
        assert leaf.grad is not None
        assert type(leaf.grad) is offgrad.Tensor
        assert not leaf.grad.requires_grad
        leaf.grad.mul_(2)
        np.testing.assert_array_equal(array_of(leaf.grad), np.full(shape, 2, np.float32))


def test_what_the_base_of_pooled_memory_reaches_is_copied() -> None:
    held: list[Any] = []

    def give(ctx: Any, grad: Any) -> Any:
        mine = grad * 2
        held.append(np.asarray(mine.detach().numpy().base.base))
        return mine

    leaf = normal(1, 256, 256)
    Gives.apply(leaf, give).sum().backward()
    assert not np.shares_memory(held[0], array_of(leaf.grad))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", ["keep", "pool", "disk,min=1", "recompute"])
def test_memory_that_a_session_may_return_again_is_copied(
    shape: tuple[int, ...], policy: str
) -> None:
    leaf = normal(1, *shape)
    x = normal(2, *shape)
    with offgrad.offload(policy):
        loss = Gives.apply(leaf, lambda ctx, grad: ctx.saved_tensors[0]).sum() + (x * 2).exp().sum()
    for _ in range(3):
        loss.backward(retain_graph=True)
        np.testing.assert_array_equal(array_of(leaf.grad), array_of(leaf))
        array_of(leaf.grad)[...] = 0


@pytest.mark.parametrize("shape", SHAPES)
def test_one_gradient_of_two_leaves(shape: tuple[int, ...]) -> None:
    a, b = normal(1, *shape), normal(2, *shape)
    (a + b).exp().sum().backward()
    assert bits(a.grad) == bits(b.grad)
    assert not np.shares_memory(array_of(a.grad), array_of(b.grad))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_gradient_belongs_to_the_caller(shape: tuple[int, ...]) -> None:
    leaf, grad = normal(1, *shape), normal(2, *shape, grad=False)
    leaf.backward(grad)
    assert not np.shares_memory(array_of(leaf.grad), array_of(grad))
    assert bits(leaf.grad) == bits(grad)


@pytest.mark.parametrize("shape", SHAPES)
def test_captured_gradients_are_not_those_of_leaves(shape: tuple[int, ...]) -> None:
    leaf = normal(1, *shape)
    seen: list[Any] = []
    leaf.register_post_accumulate_grad_hook(lambda each: seen.append(each.grad))
    y = leaf.exp()
    y.retain_grad()
    y.sum().backward()
    assert seen[0] is leaf.grad
    assert not np.shares_memory(array_of(y.grad), array_of(leaf.grad))


@pytest.mark.parametrize("shape", SHAPES)
def test_expanded_gradients_are_copied(shape: tuple[int, ...]) -> None:
    leaf = normal(1, *shape)
    leaf.sum().backward()
    assert 0 not in array_of(leaf.grad).strides
    leaf.sum().backward()
    np.testing.assert_array_equal(array_of(leaf.grad), np.full(shape, 2, np.float32))


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_with_a_history(shape: tuple[int, ...]) -> None:
    leaf = normal(1, *shape)
    leaf.exp().sum().backward(create_graph=True)
    assert leaf.grad is not None
    assert leaf.grad.grad_fn is not None
    (second,) = offgrad.autograd.grad(leaf.grad.sum(), leaf)
    assert bits(second) == bits(leaf.exp())
