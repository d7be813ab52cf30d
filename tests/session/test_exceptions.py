"""User errors in forward and backward: the next forward and backward work."""

from typing import Any

import pytest

from tests.session.graphs import Bits, Offload, bits, check, normal


def test_an_exception_in_forward_leaves_nothing(offload: Offload) -> None:
    session = offload()
    x = normal(1, 150, 150)

    def fail() -> None:
        with session:
            x.exp().sin()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with session:
        loss = (x.exp() * x).sum()
    loss.backward()
    expected = normal(1, 150, 150)
    (expected.exp() * expected).sum().backward()
    assert bits(x.grad) == bits(expected.grad)


def test_an_exception_in_backward_can_be_followed_by_another_backward(offload: Offload) -> None:
    def run(offload: Offload) -> Bits:
        x = normal(1, 150, 150)
        with offload():
            middle = x.exp().sin()
            loss = (middle.exp() * middle).sum()

        def hook(grad: Any) -> Any:
            raise ZeroDivisionError

        handle = middle.register_hook(hook)
        with pytest.raises(ZeroDivisionError):
            loss.backward(retain_graph=True)
        handle.remove()
        assert x.grad is None
        loss.backward()
        return bits(loss, x.grad)

    check("exception in backward", run, offload)


def test_a_second_backward_without_retain_graph_is_refused(offload: Offload) -> None:
    x = normal(1, 150, 150)
    with offload():
        loss = x.exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()
