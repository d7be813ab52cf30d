"""Ctrl-C at any instant of a deferred write: no value is lost, and later changes wait."""

from typing import Any

import pytest

from offgrad import memory
from offgrad.memory import registry, storage
from offgrad.session import deferred_writes
from tests.interrupts import interrupt_everywhere
from tests.session.backends import RecordingStore
from tests.session.graphs import bits, data, gradient, normal
from tests.session.helpers import alive, everything

MODULES = [deferred_writes, registry, storage]


@pytest.mark.slow
@pytest.mark.parametrize("then", ["held", "dropped", "changed"])
@pytest.mark.parametrize("size", [8, 160])  # below and above the minimum size of the memory pool
def test_a_saved_input_keeps_its_value(then: str, size: int) -> None:
    w, x = normal(1, size, size), data(2, size, size)
    doubled = x.clone()
    doubled[:, ::2] *= 2
    expected = bits(doubled)
    base = alive()
    store = RecordingStore()
    graph: Any = None
    mine: Any = None

    def action() -> None:
        nonlocal graph, mine
        session = everything(store)
        mine = x + 0
        with session:
            graph = (mine * w).sum() + (mine[:, ::2] * w[:, ::2]).sum()
            if then == "changed":
                mine.mul_(3)
            elif then == "dropped":
                mine = None
            (w * 2).exp()  # any save
        assert bits(*gradient(graph, w, retain_graph=True)) == expected
        session.reclaim()
        assert bits(*gradient(graph, w, retain_graph=True)) == expected

    def check() -> None:
        nonlocal graph, mine, store
        if mine is not None:
            mine.mul_(3)
        if graph is not None:
            assert bits(*gradient(graph, w, retain_graph=True)) == expected
        graph = mine = None
        store.close()
        store = RecordingStore()
        assert memory.allocated() == base or alive() == base

    assert interrupt_everywhere(MODULES, action, check) > 50
    store.close()
