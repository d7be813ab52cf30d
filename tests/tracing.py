"""Coverage does not trace what repeats lines that it has seen: tracing doubles the time of a test.

When `IDLE` cases of a test in a row have reached nothing new, one case in `IDLE` is traced from
there on; one that reaches something new has the cases after it traced, too. Tests marked `untraced`
and blocks of `untraced()`, which run the same lines thousands of times, are not traced.
"""

import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

IDLE = 8


class Tracing:
    """Decides which cases are traced, where coverage is measured at all."""

    def __init__(self) -> None:
        self._idle: Counter[str] = Counter()
        """By test, the number of cases since the last that reached something new."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run one case, with or without the tracer."""
        tracer: Any = sys.gettrace()
        if not _is_coverages(tracer):
            return (yield)
        test, _, _ = item.nodeid.partition("[")
        idle = self._idle[test]
        self._idle[test] += 1
        is_traced = idle < IDLE or idle % IDLE == 0
        if is_traced and item.get_closest_marker("untraced") is None:
            before = _reached(tracer)
            result = yield
            if _reached(tracer) > before:
                self._idle[test] = 0
            return result
        with untraced():
            return (yield)


@contextmanager
def untraced() -> Iterator[None]:
    """Leave out what this thread, and those it starts, do in the block."""
    tracer: Any = sys.gettrace()
    if not _is_coverages(tracer):
        yield
        return
    tracer_of_threads: Any = threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        threading.settrace(tracer_of_threads)
        sys.settrace(tracer)


def _is_coverages(tracer: Any) -> bool:
    return type(tracer).__module__.partition(".")[0] == "coverage"


def _reached(tracer: Any) -> int:
    """Return the number of different jumps from line to line so far."""
    return sum(map(len, tracer.data.values()))
