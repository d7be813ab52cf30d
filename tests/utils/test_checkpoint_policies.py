"""Checkpoints and sessions around and inside each other, under every policy: the same bits."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest

import offgrad
from offgrad import nn
from offgrad.policies import Budget, Policy
from tests.session import steps
from tests.session.footprint import footprint
from tests.session.graphs import Bits, bits, gradient, normal
from tests.utils.compositions import (
    COMPOSITIONS,
    Block,
    Composition,
    Open,
    nested,
    nested_with_sessions,
    pair_inside,
    session_in_checkpoint_in_session,
    without_checkpoints,
)

POLICIES = steps.POLICIES | {"budget": Budget(15_000)}  # two of the tensors here

# Kinds of backward


def once(blocks: Any, x: Any, loss: Any) -> Bits:
    loss.backward()
    return bits(loss, x.grad, *(each.grad for each in blocks.parameters()))


def retained(blocks: Any, x: Any, loss: Any) -> Bits:
    found: Bits = []
    for index in range(3):
        loss.backward(retain_graph=index < 2)
        found += bits(loss, x.grad, *(each.grad for each in blocks.parameters()))
    return found


def partly(blocks: Any, x: Any, loss: Any) -> Bits:
    last = blocks[2].two.weight
    loss.backward(inputs=[last], retain_graph=True)
    found = bits(last.grad, x.grad)
    loss.backward(inputs=[x, blocks[1].one.bias])
    return found + bits(*(each.grad for each in blocks.parameters()), x.grad)


def double(blocks: Any, x: Any, loss: Any) -> Bits:
    """Second derivatives, with another pass between."""
    (first,) = gradient(loss, x, create_graph=True)
    again = gradient(loss, x, retain_graph=True)
    penalty = first.square().sum() + loss
    penalty.backward()
    return bits(first, *again, penalty, x.grad, *(each.grad for each in blocks.parameters()))


BACKWARDS = [once, retained, partly, double]


def run(composition: Composition, backward: Callable[..., Bits], open_session: Open) -> Bits:
    offgrad.manual_seed(5)
    blocks = nn.Sequential(*(Block() for _ in range(3)))
    x = normal(1, 40, 40)
    return backward(blocks, x, composition(blocks, x * 1, open_session).square().mean())


_expected: dict[Any, Bits] = {}


def without(composition: Composition, backward: Callable[..., Bits]) -> Bits:
    """Return the result without sessions, checkpoints and hooks."""
    # The program of pair_inside differs from the others.
    plain = pair_inside if composition is pair_inside else without_checkpoints
    key = plain, backward
    if key not in _expected:
        _expected[key] = run(plain, backward, nullcontext)
    return _expected[key]


@pytest.mark.parametrize("composition", COMPOSITIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_identical_bits(composition: Composition, policy: Policy, named_stores: str) -> None:
    for backward in BACKWARDS:
        session = partial(offgrad.offload, policy, directory=named_stores)
        expected = without(composition, backward)
        assert run(composition, backward, session) == expected, backward.__name__
    after = footprint(named_stores)
    assert (after.handles, after.stored_nbytes) == (0, 0)


def one(session: AbstractContextManager[Any]) -> Open:
    return lambda: session


@pytest.mark.parametrize(
    "composition",
    [nested, nested_with_sessions, session_in_checkpoint_in_session, pair_inside],
    ids=lambda each: each.__name__,
)
def test_one_session_for_all(composition: Composition, named_stores: str) -> None:
    """Entered inside itself, too, and in recomputations."""
    for name in ("disk", "budget", "last"):
        open_session = one(offgrad.offload(POLICIES[name], directory=named_stores))
        for backward in BACKWARDS:
            found = run(composition, backward, open_session)
            assert found == without(composition, backward), (name, backward.__name__)
    after = footprint(named_stores)
    assert (after.handles, after.stored_nbytes) == (0, 0)
