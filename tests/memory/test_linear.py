"""Many uses of one storage: four times as many cost about four times as much."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from offgrad_storage import PoolStore

import offgrad
from offgrad import memory
from offgrad.memory import Storage
from offgrad.memory.registry import WeakRegistry
from tests.session.helpers import everything


def executed_lines(action: Callable[[], object]) -> int:
    """Return the number of lines that `action` executes, comprehensions counted per element."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = False
        count += event in ("line", "call")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


class Write:
    """A pending write."""

    def __init__(self, captured: bool) -> None:
        self._captured = captured

    @property
    def captured(self) -> bool:
        """Whether the write is done; each look executes a line."""
        return self._captured

    def wait_captured(self) -> None:
        """Return at once."""


def pending_writes(count: int) -> None:
    storage = Storage(memory.zeros(1))
    kept = [Write(captured=bool(index % 3)) for index in range(count)]
    for write in kept:
        storage.add_pending_write(write)
    storage.write("test_")


def registry(count: int) -> None:
    items: WeakRegistry[Write] = WeakRegistry()
    kept = []
    for index in range(count):
        kept.append(Write(captured=True))
        items.add(kept[-1])
        if index % 2:
            kept.pop(0)
    assert len(list(items)) == len(kept)


def uses_of_one_input(count: int) -> None:
    x, w = offgrad.ones(4), offgrad.ones(4, requires_grad=True)
    with PoolStore() as store, everything(store):
        kept = [x * w for _ in range(count)]
        del kept


@pytest.mark.parametrize("action", [pending_writes, registry, uses_of_one_input])
def test_executed_lines_are_linear(action: Callable[[int], None]) -> None:
    action(10)
    few, many = (executed_lines(lambda count=count: action(count)) for count in (200, 800))  # type: ignore[misc]
    assert many < 4.6 * few
