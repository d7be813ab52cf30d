"""What `grad` returns for a tensor that carries hooks, alone and next to another input."""

from typing import Any

import pytest

import offgrad
from tests.parity.conftest import leaf, lists


def graph(lib: Any, *, retain: bool = False, pre_hook: bool = False) -> Any:
    """Return x, t = x * 1 with a hook that multiplies by 10, w, and sum(3 * t * w) at w = 2."""
    x, w = leaf(lib, 1, 1), leaf(lib, 2, 2)
    t = x * 1
    t.register_hook(lambda grad: grad * 10)
    if retain:
        t.retain_grad()
    if pre_hook:
        t.grad_fn.register_prehook(lambda grads: (grads[0] * 100,))
    return x, t, w, (t * w * 3).sum()


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("pre_hook", [False, True])
def test_of_one_input_the_hooked_one(lib: Any, retain: bool, pre_hook: bool) -> None:
    _, t, _, loss = graph(lib, retain=retain, pre_hook=pre_hook)
    assert lists(lib.autograd.grad(loss, [t])) == [[60, 60]]
    if retain:
        assert t.grad.tolist() == [60, 60]


def test_of_an_input_beside_another_branch(lib: Any) -> None:
    _, t, w, loss = graph(lib)
    assert lists(lib.autograd.grad(loss, [t, w])) == [[60, 60], [3, 3]]


def test_of_an_input_that_is_given_twice(lib: Any) -> None:
    _, t, _, loss = graph(lib)
    assert lists(lib.autograd.grad(loss, [t, t])) == [[60, 60], [60, 60]]


@pytest.mark.parametrize("pre_hook", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_next_to_an_input_that_it_leads_to(lib: Any, first: int, pre_hook: bool) -> None:
    """Here the node of t runs. torch then returns for t the gradient before its hook, although the
    same call without x returns the one after it; here the other inputs make no difference.
    """
    x, t, _, loss = graph(lib, retain=True, pre_hook=pre_hook)
    inputs = [t, x][:: 1 - 2 * first]
    found = lists(lib.autograd.grad(loss, inputs))[:: 1 - 2 * first]
    to_t = 60 if lib is offgrad else 6
    assert found == [[to_t] * 2, [6000 if pre_hook else 60] * 2]
    assert t.grad.tolist() == [60, 60]


def test_the_example_of_a_product(lib: Any) -> None:
    x, w = leaf(lib, 1, 1), leaf(lib, 3, 3)
    t = w * x
    t.register_hook(lambda grad: grad * 10)
    loss = t.sum()
    assert lists(lib.autograd.grad(loss, [t], retain_graph=True)) == [[10, 10]]
    to_t, to_w = lists(lib.autograd.grad(loss, [t, w]))
    assert to_w == [10, 10]
    assert to_t == ([10, 10] if lib is offgrad else [1, 1])


@pytest.mark.parametrize("other", [False, True])
def test_a_leaf_gets_the_hooked_one_always(lib: Any, other: bool) -> None:
    x, w = leaf(lib, 1, 1), leaf(lib, 2, 2)
    x.register_hook(lambda grad: grad * 10)
    inputs = [x, w] if other else [x]
    assert lists(lib.autograd.grad((x * w).sum(), inputs))[0] == [20, 20]
    assert x.grad is None


@pytest.mark.parametrize("pre_hook", [False, True])
def test_inputs_of_backward_get_the_hooked_one(lib: Any, pre_hook: bool) -> None:
    x, t, _, loss = graph(lib, pre_hook=pre_hook)
    loss.backward(inputs=[t, x])
    assert t.grad.tolist() == [60, 60]
    assert x.grad.tolist() == [6000 if pre_hook else 60] * 2
