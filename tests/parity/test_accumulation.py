"""When a gradient is added to `.grad` in place, and when the sum is a new tensor."""

import warnings
from typing import Any

import pytest

import offgrad
from tests.parity.conftest import constant, leaf, raises

pytestmark = pytest.mark.filterwarnings("ignore:Using backward")


def backward(loss: Any, create_graph: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a reference cycle
        loss.backward(create_graph=create_graph)


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_in_place_unless_the_pass_is_recorded(
    lib: Any, first: bool, second: bool, square: bool
) -> None:
    """Whether the gradient itself has a history, as that of a square, makes no difference."""
    x = leaf(lib, 3)
    backward(x * x if square else x * 6, first)
    grad = x.grad
    version = grad._version
    backward(x * x if square else x * 6, second)
    assert x.grad.item() == 12
    if second:
        assert x.grad is not grad
        assert (grad.item(), grad._version) == (6, version)
    else:
        assert x.grad is grad
        assert grad._version > version
    assert x.grad.requires_grad == (square and (first or second))


def test_a_sum_in_place_keeps_the_history_of_the_first(lib: Any) -> None:
    x = leaf(lib, 3)
    backward(x * x, True)
    backward(x * 5, False)
    assert x.grad.item() == 11
    (second,) = lib.autograd.grad(x.grad, x)
    assert second.item() == 2


def test_a_graph_that_saved_the_sum_in_place_raises(lib: Any) -> None:
    x = leaf(lib, 3)
    (x * 2).backward()
    w = leaf(lib, 5)
    loss = w * x.grad
    (x * 2).backward()
    with raises(RuntimeError):
        loss.backward()


def test_the_sum_of_a_recorded_pass_leaves_a_saved_one(lib: Any) -> None:
    x = leaf(lib, 3)
    (x * 2).backward()
    w = leaf(lib, 5)
    loss = w * x.grad
    backward(x * 2, True)
    loss.backward()
    assert (w.grad.item(), x.grad.item()) == (2, 4)


def test_a_gradient_that_is_a_view_is_filled_with_zeros(lib: Any) -> None:
    flat = constant(lib, 1, 2, 3, 4)
    module = lib.nn.Module()
    module.p = lib.nn.Parameter(constant(lib, 0, 0))
    module.p.grad = flat[1:3]
    module.zero_grad(set_to_none=False)
    assert flat.tolist() == [1, 0, 0, 4]
    module.p.grad.fill_(7)
    lib.optim.SGD(module.parameters(), lr=0.1).zero_grad(set_to_none=False)
    assert flat.tolist() == [1, 0, 0, 4]


def test_a_gradient_with_a_history_loses_it_when_filled_with_zeros(lib: Any) -> None:
    module = lib.nn.Module()
    module.p = lib.nn.Parameter(constant(lib, 3))
    backward(module.p * module.p, True)
    module.zero_grad(set_to_none=False)
    assert module.p.grad.item() == 0
    assert not module.p.grad.requires_grad


def test_an_expanded_gradient_gets_the_sum_or_an_error(lib: Any) -> None:
    x = leaf(lib, 1, 1)
    x.grad = constant(lib, [1]).expand(2)
    loss = (x * constant(lib, 2, 5)).sum()
    if lib is offgrad:
        loss.backward()
        assert x.grad.tolist() == [3, 6]
    else:
        with raises(RuntimeError):
            loss.backward()


def test_no_gradient_from_a_pre_hook(lib: Any) -> None:
    x = leaf(lib, 1, 1)
    y = x * 2
    y.grad_fn.register_prehook(lambda grads: (None,))
    y.sum().backward()
    assert x.grad is None
