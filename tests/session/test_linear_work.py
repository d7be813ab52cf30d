"""The work of many saves of one memory, and of their backward pass, is linear in their number."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import offgrad
from offgrad.policies import Budget, Last, Offload, Recompute
from tests.session.backends import MemoryBackend, memory_store
from tests.session.graphs import normal

FOLDER = str(Path(offgrad.__file__).parent)


class _Lines:
    """Counts the lines of the library that this thread executes, and the items it goes through.

    A comprehension is one line for each item, in CPython 3.11 and later.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        self.count += event == "line"
        return self


def lines(action: Callable[[], object]) -> int:
    """Return how many lines of the library `action` executes."""
    counter, before = _Lines(), sys.gettrace()
    sys.settrace(counter)
    try:
        action()
    finally:
        sys.settrace(before)
    return counter.count


def uses(x: Any, count: int) -> Any:
    """Save one tensor `count` times."""
    y = x * 1
    return sum((y * y).sum() for _ in range(count))


def views(x: Any, count: int) -> Any:
    """Save `count` parts of one tensor."""
    y = (x * 1).reshape(-1)
    return sum((y[k : k + 8].sin()).sum() for k in range(count))


def results(x: Any, count: int) -> Any:
    """Save `count` tensors, each with a memory of its own."""
    y = x[:2, :2] * 1
    for _ in range(count):
        y = y.tanh()
    return y.sum()


def inputs(x: Any, count: int) -> Any:
    """Save `count` parts of an input that the program holds, and one that it drops."""
    held, dropped = x.detach().reshape(-1), (x * 2).detach().reshape(-1)
    z = x.reshape(-1)[:8]
    return sum((held[k : k + 8] * z + dropped[k : k + 8] * z).sum() for k in range(count))


PROGRAMS = (uses, views, results, inputs)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "policy", ["keep", "store", "pending", "budget", "small budget", "last", "recompute"]
)
def test_four_times_the_saves_take_four_times_the_work(
    policy: str, program: Callable[[Any, int], Any]
) -> None:
    x = normal(1, 128, 128)
    backend = MemoryBackend()
    with memory_store(backend) as store:
        policies = {
            "keep": "keep",
            "store": Offload(store, min_nbytes=0),
            "pending": Offload(store, min_nbytes=0),
            "budget": Budget(1 << 30, store),
            "small budget": Budget(140_000, store),
            "last": Last(3, Offload(store, min_nbytes=0)),
            "recompute": [Recompute(64, min_nbytes=0), Offload(store, min_nbytes=0)],
        }

        def step(count: int) -> None:
            session = offgrad.offload(policies[policy])
            if policy == "pending":
                backend.gate.clear()
            with session:
                loss = program(x, count)
            backend.gate.set()
            loss.backward()
            assert session.ledger.saves >= count

        step(8)  # what is done once
        few, many = (lines(lambda count=count: step(count)) for count in (100, 400))  # type: ignore[misc]
    assert few > 1000
    assert many < 4.5 * few
