"""Full collections are rarer while a large graph grows, and as usual afterwards."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import offgrad
from offgrad.autograd.garbage import LARGE, NODES


@pytest.fixture(autouse=True)
def _usual_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    offgrad.ones(1, requires_grad=True).sum().backward()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def chain(length: int) -> offgrad.Tensor:
    result = offgrad.ones(2, requires_grad=True)
    for _ in range(length):
        result = result * 1.5
    return result


def full_collections() -> int:
    count: int = gc.get_stats()[2]["collections"]
    return count


def test_a_small_graph_leaves_the_thresholds_alone() -> None:
    graph = chain(NODES - 10)
    assert gc.get_threshold() == (700, 10, 10)
    del graph


def test_a_graph_that_grows_is_not_walked() -> None:
    gc.collect()
    graph = chain(2 * NODES)
    assert gc.get_threshold() == (50_000, 100, 100)
    before = [each["collections"] for each in gc.get_stats()]
    more = graph * chain(10 * NODES)
    assert [each["collections"] for each in gc.get_stats()] == before
    more.sum().backward()
    assert gc.get_threshold() == (700, 10, 10)


def test_a_large_graph_is_walked_a_few_times() -> None:
    gc.collect()
    before = full_collections()
    graph = chain(10 * LARGE)
    assert gc.get_threshold() == (700, 10, 100)
    assert full_collections() - before <= 3
    graph.sum().backward()
    assert gc.get_threshold() == (700, 10, 10)


def test_cycles_of_a_program_without_backward_are_collected() -> None:
    class Holder:
        pass

    alive: list[weakref.ref[Holder]] = []
    for _ in range(4 * LARGE // NODES):
        holder: Any = Holder()
        holder.itself, holder.graph = holder, chain(NODES)
        alive.append(weakref.ref(holder))
        del holder
    assert gc.get_threshold() == (700, 10, 100)
    assert sum(each() is not None for each in alive) < 2 * LARGE // NODES


def test_a_threshold_that_the_program_sets_meanwhile_stays() -> None:
    graph = chain(2 * NODES)
    gc.set_threshold(500, 5, 7)
    graph.sum().backward()
    assert gc.get_threshold() == (500, 5, 7)


@pytest.mark.parametrize("thresholds", [(0, 10, 10), (70_000, 100, 1000)])
def test_a_program_without_collections_keeps_its_thresholds(
    thresholds: tuple[int, int, int],
) -> None:
    gc.set_threshold(*thresholds)
    graph = chain(2 * NODES)
    assert gc.get_threshold() == thresholds
    graph.sum().backward()
    assert gc.get_threshold() == thresholds
