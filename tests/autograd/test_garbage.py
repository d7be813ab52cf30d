"""Full collections are rarer while a large graph grows, and as usual afterwards."""

import gc
from collections.abc import Iterator

import pytest

import offgrad
from offgrad.autograd.garbage import NODES


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


def test_a_large_graph_is_walked_a_few_times() -> None:
    gc.collect()
    before = full_collections()
    graph = chain(10 * NODES)
    assert gc.get_threshold() == (700, 10, 100)
    assert full_collections() - before <= 3
    graph.sum().backward()
    assert gc.get_threshold() == (700, 10, 10)


def test_a_threshold_that_the_program_sets_meanwhile_stays() -> None:
    graph = chain(2 * NODES)
    gc.set_threshold(500, 5, 7)
    graph.sum().backward()
    assert gc.get_threshold() == (500, 5, 7)


@pytest.mark.parametrize("thresholds", [(0, 10, 10), (700, 10, 1000)])
def test_a_program_without_collections_keeps_its_thresholds(
    thresholds: tuple[int, int, int],
) -> None:
    gc.set_threshold(*thresholds)
    graph = chain(2 * NODES)
    assert gc.get_threshold() == thresholds
    graph.sum().backward()
    assert gc.get_threshold() == thresholds
