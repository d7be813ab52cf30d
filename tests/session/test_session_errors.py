"""Errors in forward, backward, packs and unpacks: nothing leaks, the session stays usable."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import offgrad
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.policies import Placement, Policy, SaveContext
from tests.session.footprint import footprint
from tests.session.graphs import Bits, bits, normal
from tests.session.steps import SAVES, every_policy, expected, forward, left, step


class FailsAt(Policy):
    """Raises for one save and has no answer for the others."""

    def __init__(self, number: int) -> None:
        self.numbers: Iterator[int] = itertools.count()
        self.number = number

    def place(self, context: SaveContext) -> Placement | None:
        if next(self.numbers) == self.number:
            raise ZeroDivisionError
        return None


@every_policy
def test_an_error_of_any_save_leaves_nothing(policy: Policy, named_stores: str) -> None:
    step(offgrad.offload(policy, directory=named_stores))
    before = footprint(named_stores)

    def fail(number: int) -> Any:
        session = offgrad.offload([FailsAt(number), policy], directory=named_stores)
        with pytest.raises(ZeroDivisionError), session:
            forward(normal(1, 128, 128))
        assert session.ledger.saves == number
        return session

    for number in range(SAVES):
        session = fail(number)
        assert step(session) == expected()
    del session
    assert not left(before, named_stores)


@every_policy
def test_an_error_of_a_nested_pack_leaves_nothing(policy: Policy, named_stores: str) -> None:
    session = offgrad.offload(policy, directory=named_stores)
    step(session)
    before = footprint(named_stores)

    def fail() -> None:
        x = normal(1, 128, 128)
        with session:
            y = (x * 2).exp().sin()
            with saved_tensors_hooks(lambda x: x / (1 // 0), lambda x: x):
                forward(y)

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not left(before, named_stores)
    assert step(session) == expected()


@every_policy
def test_an_unpack_that_fails_may_succeed_the_next_time(policy: Policy, named_stores: str) -> None:
    """The failing hooks are inside the session; other saves use the session."""
    session = offgrad.offload(policy, directory=named_stores)
    step(session)
    before = footprint(named_stores)
    fails = [True]

    def unpack(tensor: Any) -> Any:
        if fails:
            raise ZeroDivisionError
        return tensor

    def run() -> Bits:
        x, w = normal(1, 128, 128), normal(2, 128, 128)
        with session:
            y = (x * w).sin()
            with saved_tensors_hooks(lambda x: x.clone(), unpack):
                z = y.tanh()
            loss = forward(z)
        fails[:] = [True]
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                loss.backward(retain_graph=True)
            assert x.grad is None
        fails.clear()
        loss.backward(retain_graph=True)
        first = bits(x.grad, w.grad)
        loss.backward()
        return [*first, *bits(loss, x.grad, w.grad)]

    found = run()
    assert not left(before, named_stores)
    session = offgrad.offload("keep")
    assert found == run()


@every_policy
def test_an_error_in_every_place_of_backward(policy: Policy, named_stores: str) -> None:
    """Entries freed before the error are freed once; the others die with the graph."""
    session = offgrad.offload(policy, directory=named_stores)
    step(session)
    before = footprint(named_stores)

    def fail(place: int) -> None:
        x = normal(1, 128, 128)
        with session:
            y = x * 1
            for number in range(5):
                y = y.tanh()
                if number == place:
                    y.register_hook(lambda grad: grad / (1 // 0))
            loss = y.sum()
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        assert x.grad is None

    for place in range(5):
        fail(place)
    assert not left(before, named_stores)
    assert step(session) == expected()
