"""Pools of threads around sessions: loaders that make batches, and workers that train."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import pytest

import offgrad
from offgrad import nn
from offgrad.policies import Budget, Policy
from tests.session.backends import RecordingStore
from tests.session.footprint import footprint
from tests.session.graphs import Bits, bits, normal
from tests.session.helpers import in_threads
from tests.session.steps import every_policy, expected, forward, left

pytestmark = pytest.mark.usefixtures("eager_switching")


def batches(count: int) -> Iterator[Any]:
    """Yield batches that a loader's threads compute with offgrad, in graphs that save tensors."""
    noise = normal(3, 128, 128)

    def make(number: int) -> Any:
        raw = normal(number, 128, 128, grad=False)
        augmented = (raw * noise).tanh()  # has a graph
        assert augmented.requires_grad
        return augmented.detach()

    with ThreadPoolExecutor(3) as pool:
        yield from pool.map(make, range(count))


def train(open_session: Callable[[], Any], count: int = 12) -> Bits:
    weight = normal(4, 128, 128)
    found: Bits = []
    for batch in batches(count):
        with open_session():
            loss = forward(weight * batch)
        loss.backward()
        found += bits(loss)
        with offgrad.no_grad():
            weight -= weight.grad
        weight.grad = None
    return found + bits(weight)


@every_policy
def test_a_loaders_threads_save_nothing_for_the_session(policy: Policy, named_stores: str) -> None:
    session = offgrad.offload(policy, directory=named_stores)
    without = offgrad.offload("keep")
    plain = train(lambda: without)
    before = footprint(named_stores)
    assert train(lambda: session) == plain
    assert session.ledger.saves == without.ledger.saves
    after = footprint(named_stores)
    assert (after.handles, after.stored_nbytes) == (0, 0)
    assert after.tensor_nbytes <= before.tensor_nbytes
    assert after.pool_nbytes <= before.pool_nbytes


@every_policy
def test_a_thread_pool_trains_on_batches_loaded_by_another_thread(
    policy: Policy, named_stores: str
) -> None:
    """All threads share one session, and nothing is left afterwards."""
    session = offgrad.offload(policy, directory=named_stores)
    queue: Queue[int | None] = Queue(2)
    found: dict[int, Bits] = {}

    def one(number: int) -> Bits:
        x = normal(number, 128, 128)
        with session:
            loss = forward(x)
        loss.backward()
        return bits(loss, x.grad)

    def load() -> None:
        for number in [*range(15), None, None, None]:
            queue.put(number)

    def work() -> None:
        while (number := queue.get()) is not None:
            found[number] = one(number)

    one(0)
    before = footprint(named_stores)
    in_threads(load, work, work, work)
    assert not left(before, named_stores)
    session = offgrad.offload("keep")
    assert found == {number: one(number) for number in range(15)}


@every_policy
def test_a_graph_made_in_a_thread_that_is_gone(policy: Policy, named_stores: str) -> None:
    session = offgrad.offload(policy, directory=named_stores)
    x = normal(1, 128, 128)

    def make() -> Any:
        with session:
            return forward(x)

    with ThreadPoolExecutor(1) as pool:
        loss = pool.submit(make).result()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loss.backward).result()
    assert bits(loss, x.grad) == expected()


def test_a_module_with_a_budget_in_a_pool_of_threads(store: RecordingStore) -> None:
    """Threads that call one module share its budget and leave nothing."""
    model = nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Tanh())
    results: dict[int, Bits] = {}

    def run(number: int) -> None:
        x = normal(number, 128, 128)
        loss = model(x).square().sum()
        loss.backward()
        results[number] = bits(loss, x.grad)

    with offgrad.offload(Budget(70_000, store), module=model), ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(12)))
    assert store.stats().puts > 12
    assert not store.stats().live_handles
    parallel = dict(results)
    for number in range(12):
        run(number)
    assert parallel == results
