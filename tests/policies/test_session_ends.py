"""How sessions and their graphs may end: in any order, by errors, by the collector."""

import gc
import itertools
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest

import offgrad
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.policies import Placement, Policy, SaveContext
from tests.policies.footprint import Footprint, footprint
from tests.policies.graphs import Bits, bits, gradient, normal
from tests.policies.helpers import unary_chain
from tests.policies.steps import POLICIES, SAVES, every_policy, expected, forward, left, step


class FailsAt(Policy):
    """Raises for one of the saves; has no answer for others."""

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
def test_an_error_of_a_pack_inside_leaves_nothing(policy: Policy, named_stores: str) -> None:
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
    """One of a pair inside the session, one of a tensor of the session's own graph."""
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
    """What is freed by then is freed once; the others go with the graph."""
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


# Orders


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_sessions_that_exit_in_any_order(order: tuple[int, ...], named_stores: str) -> None:
    """The innermost of those that are left counts."""
    policies = [POLICIES[name] for name in ("disk", "budget", "zarr")]
    sessions = [offgrad.offload(each, directory=named_stores) for each in policies]
    x, z = normal(1, 128, 128), normal(1, 128, 128)
    counted: list[int] = []

    def save(y: Any) -> Any:
        before = [each.ledger.saves for each in sessions]
        y = y.tanh()
        grown = [each.ledger.saves - b for each, b in zip(sessions, before, strict=True)]
        counted.append(grown.index(1) if any(grown) else -1)
        assert sum(grown) <= 1
        return y

    for each in sessions:
        each.__enter__()
    y = save(x * 1)
    for number in order:
        sessions[number].__exit__(None, None, None)
        y = save(y)
    remaining = [0, 1, 2]
    should = [2]
    for number in order:
        remaining.remove(number)
        should.append(max(remaining, default=-1))
    assert counted == should
    y.sum().backward()
    (z * 1).tanh().tanh().tanh().tanh().sum().backward()
    assert bits(x.grad) == bits(z.grad)


@every_policy
def test_a_session_entered_inside_itself_and_another(policy: Policy, named_stores: str) -> None:
    session = offgrad.offload(policy, directory=named_stores)
    other = offgrad.offload("keep")
    x = normal(1, 128, 128)
    counted: list[tuple[int, int]] = []

    def save(y: Any) -> Any:
        y = y.tanh()
        counted.append((session.ledger.saves, other.ledger.saves))
        return y

    y = x * 1
    for each in (session, session, other, session):
        each.__enter__()
        y = save(y)
    for each in (session, other, session, session):  # of several, the innermost exits
        each.__exit__(None, None, None)
        y = save(y)
    assert counted == [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2), (4, 2), (5, 2), (5, 2)]
    y.sum().backward()
    z = normal(1, 128, 128)
    unary_chain(z * 1, 8).backward()
    assert bits(x.grad) == bits(z.grad)


# Graphs without their session


@every_policy
def test_a_session_is_collected_with_its_graph(policy: Policy, named_stores: str) -> None:
    """Not before: its graphs can be gone back through, again and again."""
    step(offgrad.offload(policy, directory=named_stores))
    before = footprint(named_stores)
    x = normal(1, 128, 128)
    session: Any = offgrad.offload(policy, directory=named_stores)
    reference = ref(session)
    with session:
        loss = forward(x)
    del session
    gc.collect()
    for _ in range(3):
        x.grad = None
        loss.backward(retain_graph=True)
        gc.collect()
        assert bits(loss, x.grad) == expected()
    (again,) = gradient(loss, x)
    assert bits(loss, again) == expected()
    del loss, x, again
    gc.collect()
    assert reference() is None
    assert not left(before, named_stores)


@every_policy
def test_a_graph_and_its_session_in_one_cycle(policy: Policy, named_stores: str) -> None:
    before = footprint(named_stores)
    for dropped_in_backward in (False, True):
        session: Any = offgrad.offload(policy, directory=named_stores)
        with session:
            loss = forward(normal(1, 128, 128))
        session.loss = loss
        if dropped_in_backward:
            loss.backward(retain_graph=True)
        reference = ref(session)
        del session, loss
        gc.collect()
        assert reference() is None
    assert not footprint(named_stores).more_than(
        before, objects=1000, blocks=10_000, descriptors=20, threads=10, files=20
    )


@every_policy
def test_many_backwards_hold_no_more_than_the_first(policy: Policy, named_stores: str) -> None:
    x = normal(1, 128, 128)
    session = offgrad.offload(policy, directory=named_stores)
    with session:
        loss = forward(x)

    def back(times: int) -> Footprint:
        for _ in range(times):
            x.grad = None
            loss.backward(retain_graph=True)
            assert bits(loss, x.grad) == expected()
        return footprint(named_stores)

    before = back(3)
    assert not back(20).more_than(before, objects=20, blocks=300)
