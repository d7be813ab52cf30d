"""Ten thousand training steps of every kind leave the process as it was.

OFFGRAD_STEPS sets their number; the default is 10000, divided among the ways to open a session.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import product
from typing import Any

import pytest

import offgrad
from offgrad import nn, optim
from offgrad.policies import (
    Budget,
    Cast,
    Keep,
    Last,
    Offload,
)
from offgrad.utils.checkpoint import checkpoint
from tests.session.footprint import footprint
from tests.session.graphs import gradient, normal

STEPS = int(os.environ.get("OFFGRAD_STEPS", "10000"))

POLICIES: dict[str, Any] = {
    "keep": Keep(),
    "disk": Offload("disk", min_nbytes=0),
    "zarr": Offload("zarr", min_nbytes=0),
    "pool": Offload("pool", min_nbytes=0),
    "budget": Budget(1500),
    "budget on zarr": Budget(0, "zarr"),
    "last": Last(2, Offload("disk", min_nbytes=0)),
    "cast": Cast("float16", Offload("disk", min_nbytes=0)),
}


class Training:
    """A model, an optimizer, and steps of many kinds."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.001)
        self.batches = normal(1, 64, 16, grad=False)
        self.large = normal(2, 128, 128)
        self.constant = normal(3, 8, 16)  # not changed by the optimizer
        self.later: Any = None

    def session(self, name: str) -> Any:
        return offgrad.offload(POLICIES[name], directory=self.directory)

    def loss(self, number: int) -> Any:
        begin = number % 7 * 8
        return self.model(self.batches[begin : begin + 8]).sigmoid().square().mean()

    def end(self) -> None:
        """Drop the tensors that a step leaves to the next one."""
        self.later = self.large.grad = self.constant.grad = None
        self.optimizer.zero_grad()

    # Kinds of steps

    def plain(self, session: Any, number: int) -> None:
        with session:
            loss = self.loss(number)
        loss.backward()

    def backward_inside(self, session: Any, number: int) -> None:
        with session:
            self.loss(number).backward()

    def dropped(self, session: Any, number: int) -> None:
        with session:
            self.loss(number)

    def dropped_in_the_next_step(self, session: Any, number: int) -> None:
        with session:
            self.later = (self.constant * number).tanh().sin().sum()

    def backward_in_the_next_step(self, session: Any, number: int) -> None:
        with session:
            loss, before = (self.constant * number).sin().tanh().sum(), self.later
        if before is not None:
            before.backward(retain_graph=True)
        self.later = loss

    def retained(self, session: Any, number: int) -> None:
        with session:
            loss = self.loss(number)
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)

    def partly(self, session: Any, number: int) -> None:
        with session:
            loss = self.loss(number)
        loss.backward(inputs=[self.model[2].bias])

    def double(self, session: Any, number: int) -> None:
        with session:
            grads = gradient(self.loss(number), self.model[0].weight, create_graph=True)
            penalty = grads[0].square().sum()
        penalty.backward()

    def fails_in_forward(self, session: Any, number: int) -> None:
        with pytest.raises(ZeroDivisionError), session:
            self.loss(number) / (1 // 0)

    def fails_in_backward(self, session: Any, number: int) -> None:
        with session:
            y = self.model(self.batches[:8])
            y.register_hook(lambda grad: grad / (1 // 0))
            loss = y.tanh().sum()
        with pytest.raises(ZeroDivisionError):
            loss.backward()

    def checkpointed(self, session: Any, number: int) -> None:
        with session:
            x = self.batches[:8] * 1.5
            loss = checkpoint(self.model, x, use_reentrant=False).square().mean()
        loss.backward()

    def pooled(self, session: Any, number: int) -> None:
        """Tensors in pool memory, and a view of one."""
        with session:
            loss = (self.large * 2).tanh().t()[3:].sin().sum()
        loss.backward()

    def kinds(self) -> list[Callable[[Any, int], None]]:
        return [
            self.plain, self.backward_inside, self.dropped, self.dropped_in_the_next_step,
            self.backward_in_the_next_step, self.retained, self.partly, self.double,
            self.fails_in_forward, self.fails_in_backward, self.checkpointed, self.pooled,
        ]  # fmt: skip


Open = Callable[[str], AbstractContextManager[Any]]


@contextmanager
def made_for_every_step(training: Training) -> Iterator[Open]:
    yield training.session


@contextmanager
def entered_in_every_step(training: Training) -> Iterator[Open]:
    sessions = {name: training.session(name) for name in POLICIES}
    yield sessions.__getitem__


@contextmanager
def entered_once(training: Training) -> Iterator[Open]:
    """Enter each session once for all its steps; the next one's first step exits it."""
    with ExitStack() as stack:
        entered: list[str] = []

        def enter(name: str) -> AbstractContextManager[Any]:
            if entered != [name]:
                stack.pop_all().close()
                stack.enter_context(training.session(name))
                entered[:] = [name]
            return nullcontext()

        yield enter


@pytest.mark.slow
@pytest.mark.parametrize(
    "opened", [made_for_every_step, entered_in_every_step, entered_once], ids=lambda f: f.__name__
)
def test_nothing_leaks_in_thousands_of_steps(opened: Any, named_stores: str) -> None:
    training = Training(named_stores)
    kinds = training.kinds()
    rounds = max(2, STEPS // 3 // (len(kinds) * len(POLICIES)))

    def train(rounds: int) -> None:
        order = (
            product(POLICIES, kinds * rounds)
            if opened is entered_once
            else ((name, kind) for kind, name in product(kinds * rounds, POLICIES))
        )
        for number, (name, kind) in enumerate(order):
            kind(session(name), number)
            if number % 4 == 3:
                training.optimizer.step()
                training.optimizer.zero_grad()
        training.end()

    with opened(training) as session:
        for _ in range(2):  # the second run adds to Python's caches of abstract classes
            train(rounds // 3 + 1)
        before = footprint(named_stores)
        train(max(1, rounds - 2 * (rounds // 3 + 1)))
        after = footprint(named_stores)
    assert (before.handles, before.stored_nbytes) == (0, 0)
    grown = after.more_than(before, objects=20, blocks=300)
    assert not grown, f"{grown} more in {after} than in {before}"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["keep", "pool", "budget"])
def test_batches_that_are_parts_of_one_tensor_leave_nothing(policy: str, named_stores: str) -> None:
    """Many overlapping parts, saved through one session."""
    grown = growth_over_parts(Training(named_stores).session(policy), named_stores)
    assert not grown


def growth_over_parts(session: Any, folder: str) -> dict[str, int]:
    data, weight = normal(1, 4000, 16, grad=False), normal(2, 8, 16)

    def train(begins: range) -> None:
        for begin in begins:
            with session:
                loss = (data[begin : begin + 8] * weight).sum()
            loss.backward()
        weight.grad = None

    train(range(500))
    before = footprint(folder)
    train(range(500, 1500))
    return footprint(folder).more_than(before, objects=20, blocks=300)
