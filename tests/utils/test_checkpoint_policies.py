"""Checkpoints and sessions around and inside each other, under every policy: the same bits."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest

import offgrad
from offgrad import nn
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.nn import functional as F
from offgrad.policies import Budget, Policy
from offgrad.utils.checkpoint import checkpoint, checkpoint_sequential
from tests.policies import steps
from tests.policies.footprint import footprint
from tests.policies.graphs import Bits, bits, gradient, normal

Open = Callable[[], AbstractContextManager[Any]]
"""Opens a session; or nothing."""

POLICIES = steps.POLICIES | {"budget": Budget(15_000)}  # two of the tensors here

ckpt = partial(checkpoint, use_reentrant=False)


class Block(nn.Module):
    """Matrix products, views, random numbers and saved outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(40, 40), nn.Linear(40, 40)

    def forward(self, x: Any) -> Any:
        y = F.dropout(F.gelu(self.one(x)), 0.2)
        return x + (self.two(y).tanh() * y.t().sin()).sigmoid()


def pair() -> AbstractContextManager[Any]:
    """Hooks that keep a copy transposed."""
    return saved_tensors_hooks(
        lambda tensor: tensor.numpy().T.copy(),
        lambda array: offgrad.from_numpy(array.T.copy()),
    )


Way = Callable[[nn.Sequential, Any, Open], Any]


def nothing(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    return blocks(x)


def checkpoint_in_session(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with open_session():
        for block in blocks:
            x = ckpt(block, x)
        return x


def session_in_checkpoint(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    def run(block: nn.Module, x: Any) -> Any:
        with open_session():
            return block(x)

    for block in blocks:
        x = ckpt(run, block, x)
    return x


def session_in_checkpoint_in_session(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with open_session():
        return session_in_checkpoint(blocks, x, open_session)


def part_in_session_in_checkpoint(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    """What is inside the session is stored, and what is not is computed again."""

    def run(x: Any) -> Any:
        x = blocks[0](x)
        with open_session():
            x = blocks[1](x)
        return blocks[2](x)

    return ckpt(run, x)


def nested(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    def run(x: Any, *blocks: nn.Module) -> Any:
        x = blocks[0](x)
        return ckpt(run, x, *blocks[1:]) if blocks[1:] else x

    with open_session():
        return ckpt(run, x, *blocks)


def nested_with_sessions(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    def run(x: Any, *blocks: nn.Module) -> Any:
        x = blocks[0](x)
        with open_session():
            return ckpt(run, x, *blocks[1:]) if blocks[1:] else x

    return ckpt(run, x, *blocks)


def sequential(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with open_session():
        return checkpoint_sequential(blocks, 3, x, use_reentrant=False)


def sequential_of_two(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with open_session():
        return checkpoint_sequential(blocks, 2, x, use_reentrant=False)


def pair_around(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with pair():
        x = ckpt(blocks[0], x)
        with open_session():
            x = ckpt(blocks[1], x)
        return session_in_checkpoint(nn.Sequential(blocks[2]), x, open_session)


def pair_between(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    with open_session():
        x = blocks[0](x)
        with pair():
            x = ckpt(blocks[1], x)
        return blocks[2](x)


def pair_inside(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    def run(block: nn.Module, x: Any) -> Any:
        with open_session(), pair():
            y = block(x) * 1
        with pair(), open_session():
            return y * y.sin()

    def plain(block: nn.Module, x: Any) -> Any:
        y = block(x) * 1
        return y * y.sin()

    if open_session is nullcontext:
        return plain(blocks[2], plain(blocks[1], plain(blocks[0], x)))
    with open_session():
        x = ckpt(run, blocks[0], x)
        with pair():
            return ckpt(run, blocks[2], ckpt(run, blocks[1], x))


def in_a_module_of_a_session(blocks: nn.Sequential, x: Any, open_session: Open) -> Any:
    """A module whose parts are checkpoints, and a session for it alone."""
    if open_session is nullcontext:
        return blocks(x)
    session: Any = open_session()
    wrapped = nn.Sequential(Checkpointed(blocks[0]), blocks[1], Checkpointed(blocks[2]))
    policy = session.policy
    with offgrad.offload(
        {"0": policy, "2.part": policy, "**": "keep"}, model=wrapped, directory=session._directory
    ):
        return wrapped(x)


class Checkpointed(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Any) -> Any:
        return ckpt(self.part, x)


WAYS: list[Way] = [
    checkpoint_in_session, session_in_checkpoint, session_in_checkpoint_in_session,
    part_in_session_in_checkpoint, nested, nested_with_sessions, sequential, sequential_of_two,
    pair_around, pair_between, pair_inside, in_a_module_of_a_session,
]  # fmt: skip


# Ways of backward


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
    """Twice through, with another pass between."""
    (first,) = gradient(loss, x, create_graph=True)
    again = gradient(loss, x, retain_graph=True)
    penalty = first.square().sum() + loss
    penalty.backward()
    return bits(first, *again, penalty, x.grad, *(each.grad for each in blocks.parameters()))


BACKWARDS = [once, retained, partly, double]


def run(way: Way, backward: Callable[..., Bits], open_session: Open) -> Bits:
    offgrad.manual_seed(5)
    blocks = nn.Sequential(*(Block() for _ in range(3)))
    x = normal(1, 40, 40)
    return backward(blocks, x, way(blocks, x * 1, open_session).square().mean())


_expected: dict[Any, Bits] = {}


def without(way: Way, backward: Callable[..., Bits]) -> Bits:
    """Return what comes out without sessions, checkpoints or hooks."""
    plain = pair_inside if way is pair_inside else nothing  # which computes something of its own
    key = plain, backward
    if key not in _expected:
        _expected[key] = run(plain, backward, nullcontext)
    return _expected[key]


@pytest.mark.parametrize("way", WAYS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_identical_bits(way: Way, policy: Policy, named_stores: str) -> None:
    for backward in BACKWARDS:
        session = partial(offgrad.offload, policy, directory=named_stores)
        assert run(way, backward, session) == without(way, backward), backward.__name__
    after = footprint(named_stores)
    assert (after.handles, after.stored_nbytes) == (0, 0)


@pytest.mark.parametrize(
    "way",
    [nested, nested_with_sessions, session_in_checkpoint_in_session, pair_inside],
    ids=lambda each: each.__name__,
)
def test_one_session_for_all(way: Way, named_stores: str) -> None:
    """Entered inside itself too, and by what runs again."""
    for name in ("disk", "budget", "last"):
        session = offgrad.offload(POLICIES[name], directory=named_stores)
        for backward in BACKWARDS:
            found = run(way, backward, lambda session=session: session)  # type: ignore[misc]
            assert found == without(way, backward), (name, backward.__name__)
    after = footprint(named_stores)
    assert (after.handles, after.stored_nbytes) == (0, 0)
