"""The ends of sessions and their graphs: in any order, by the collector, in a cycle."""

import gc
import itertools
from typing import Any
from weakref import ref

import pytest

import offgrad
from offgrad.policies import Policy
from tests.session.footprint import Footprint, footprint
from tests.session.graphs import bits, gradient, normal
from tests.session.helpers import unary_chain
from tests.session.steps import POLICIES, every_policy, expected, forward, left, step

# Orders


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_sessions_that_exit_in_any_order(order: tuple[int, ...], named_stores: str) -> None:
    """The innermost of the remaining sessions applies."""
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
    wanted = [2]
    for number in order:
        remaining.remove(number)
        wanted.append(max(remaining, default=-1))
    assert counted == wanted
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
    for each in (session, other, session, session):  # an exit ends the innermost entry
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
    """Not before: its graphs allow any number of backwards."""
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
    (grad,) = gradient(loss, x)
    assert bits(loss, grad) == expected()
    del loss, x, grad
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

    def run_backward(times: int) -> Footprint:
        for _ in range(times):
            x.grad = None
            loss.backward(retain_graph=True)
            assert bits(loss, x.grad) == expected()
        return footprint(named_stores)

    before = run_backward(3)
    assert not run_backward(20).more_than(before, objects=20, blocks=300)
