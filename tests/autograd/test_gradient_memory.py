"""Memory of gradients: an in-place change of one gradient does not affect another."""

from typing import Any

import numpy as np

import offgrad
from offgrad import Tensor

# Typed as Any, so that tests need not check each gradient for None.
grad: Any = offgrad.autograd.grad


def leaf(*values: float) -> Tensor:
    return offgrad.tensor(values, dtype=offgrad.float64, requires_grad=True)


def test_gradients_of_leaves_do_not_share_memory() -> None:
    a, b = leaf(1, 2), leaf(3, 4)
    start = offgrad.ones(2, dtype=offgrad.float64)
    (a + b).backward(start)
    arrays = [a.grad, b.grad, start]
    for index, one in enumerate(arrays):
        for other in arrays[index + 1 :]:
            assert one is not None
            assert other is not None
            assert not np.may_share_memory(one._array, other._array)
    assert a.grad is not None
    a.grad.zero_()
    assert b.grad is not None
    assert b.grad.tolist() == [1, 1]
    assert start.tolist() == [1, 1]


def test_returned_gradients_of_two_inputs_may_be_changed_separately() -> None:
    a, b = leaf(1, 2), leaf(3, 4)
    start = offgrad.ones(2, dtype=offgrad.float64)
    first, second = grad(a + b, [a, b], start)
    assert first is not None
    assert second is not None
    (x,) = grad(a * 2 + a * 3, a, start)
    assert x is not None
    assert start.tolist() == [1, 1]


def test_accumulation_does_not_write_into_a_gradient_that_a_hook_kept() -> None:
    x = leaf(1, 2)
    kept: list[Tensor] = []
    a, b, c = x * 1, x * 2, x * 3
    for each in (a, b, c):
        each.register_hook(kept.append)
    (a + b + c).sum().backward()
    assert [each.tolist() for each in kept] == [[1, 1]] * 3
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6]


def test_retained_gradient_is_not_changed_by_later_nodes() -> None:
    x = leaf(1.0)
    a = x * 2
    a.retain_grad()
    (a + a * 3 + a * 4).sum().backward()
    assert a.grad is not None
    assert a.grad.item() == 8
    first = a.grad
    (x * 5).sum().backward()
    assert first.item() == 8


def test_leaf_gradient_keeps_its_identity_while_accumulating() -> None:
    x = leaf(1, 2)
    (x * 2).sum().backward()
    first = x.grad
    (x * 2).sum().backward()
    assert x.grad is first
    assert x.grad is not None
    assert x.grad.tolist() == [4, 4]
