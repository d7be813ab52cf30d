"""Nested sessions and plain hooks: the innermost applies."""

from contextlib import nullcontext
from typing import Any

import pytest

import offgrad
from offgrad.autograd.graph import saved_tensors_hooks
from tests.session.graphs import Bits, Offload, bits, check, normal
from tests.session.helpers import everything


def test_nested_sessions(offload: Offload, every_store: Any) -> None:
    """The innermost policy applies; tensors saved outside use the outer one."""

    def run(outer: Offload) -> Bits:
        inner: Any = nullcontext
        if outer is not nullcontext:
            inner = lambda: everything(every_store["disk"])
        x = normal(1, 30, 30)
        with outer():
            y = x.exp()
            with inner():
                y = y * y.sin()
                with outer():
                    y = y @ y
            loss = (y * y.t()).tanh().sum()
        loss.backward()
        return bits(loss, x.grad)

    check("nested", run, offload)


def test_the_innermost_session_applies(every_store: Any) -> None:
    outer = everything(every_store["pool"])
    inner = everything(every_store["disk"])
    x = normal(1, 4)
    with outer:
        a = x.exp()
        with inner:
            b = x.sin()
        with pytest.raises(KeyError), inner:
            raise KeyError
        c = x.tanh()
    d = x.exp()
    assert (outer.ledger.saves, inner.ledger.saves) == (2, 1)
    (a + b + c + d).sum().backward()


def test_hooks_inside_a_session_apply_there(offload: Offload) -> None:
    packed: list[Any] = []

    def pack(x: Any) -> Any:
        packed.append(x.numpy().copy())
        return packed[-1]

    def run(offload: Offload) -> Bits:
        x = normal(1, 20, 20)
        with offload():
            y = x.exp()
            with saved_tensors_hooks(pack, offgrad.from_numpy):
                z = (y * 2).sin()
            loss = (z @ y).tanh().sum()
        loss.backward()
        return bits(loss, x.grad)

    check("hooks inside", run, offload)
    # One save of each run, the operand of the sine; the number stays with the product.
    assert 1 <= len(packed) <= 2
    assert {each.shape for each in packed} == {(20, 20)}


def test_a_session_inside_hooks_applies_there(offload: Offload) -> None:
    def fail(x: Any) -> Any:
        raise AssertionError("the hooks are not the innermost")

    def run(offload: Offload) -> Bits:
        x = normal(1, 20, 20)
        with saved_tensors_hooks(fail, fail), offload():
            loss = (x.exp() @ x).tanh().sum()
        loss.backward()
        return bits(loss, x.grad)

    with offload():
        (normal(1, 2) * 2).exp().sum().backward()
    offgrad.manual_seed(11)
    x = normal(1, 20, 20)
    loss = (x.exp() @ x).tanh().sum()
    loss.backward()
    assert run(offload) == bits(loss, x.grad)
