"""The points at which tests interrupt: CPython handles signals there, and no exception stays."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from tests.interrupts import Code, Interrupt, PointKind, Points, count_points, interrupt_everywhere

HERE = sys.modules[__name__]
KINDS: list[PointKind] = ["checks", "lines", "opcodes"]


@contextlib.contextmanager
def manager() -> Iterator[None]:
    yield


def enter_and_leave() -> None:
    """Leave by StopIteration, which `contextlib` catches."""
    with manager():
        pass


def handle() -> int:
    """Raise and catch in all ways, each nested in another."""
    for number in range(2):
        try:
            int("x")
        except ValueError as error:
            str(error)
            try:
                [].pop()
            except IndexError:
                while number:
                    try:
                        str(number)
                    finally:
                        number -= 1
                with contextlib.suppress(KeyError):
                    dict[str, int]()["x"]
    try:
        int("x")
    except ValueError:
        return int("1")
    return 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", [enter_and_leave, handle])
def test_no_exception_stays_the_current_one(action: Callable[[], object], kind: PointKind) -> None:
    def check() -> None:
        assert sys.exc_info() == (None, None, None)

    assert interrupt_everywhere([HERE, contextlib], action, check, kind=kind) > 5


def lines_at_points(action: Callable[[], object], kind: PointKind) -> list[int]:
    """Return the lines of the points of a function in this file, from its own."""
    lines: list[int] = []

    def visit(frame: FrameType) -> None:
        lines.append(frame.f_lineno - frame.f_code.co_firstlineno)

    with Points(visit, Code(HERE), kind):
        action()
    return lines


def test_python_handles_signals_after_calls_that_return_and_jumps_back() -> None:
    def action() -> None:
        for _ in range(2):
            len("")
        try:
            try:
                int("x")
            except ValueError as error:
                int(str(error))
        except ValueError:
            del _

    # The start; range, len, the jump back, len, the jump back; str.
    assert lines_at_points(action, "checks") == [1, 1, 2, 1, 2, 1, 7]
    assert set(lines_at_points(action, "lines")) == set(range(1, 10))


def test_a_signal_at_the_end_of_a_returned_call_goes_to_the_handler_of_the_call() -> None:
    called: list[str] = []

    def call() -> int:
        try:
            called.append("")
            return len("")
        finally:
            called.clear()

    def check() -> None:
        assert not called

    assert interrupt_everywhere([HERE], call, check) >= 2


def test_a_wait_in_c_is_a_point() -> None:
    lock = threading.Lock()

    def action() -> None:
        lock.acquire()
        lock.release()

    assert lines_at_points(action, "checks") == [1, 1, 1, 2]  # the start, the wait; the two ends


@pytest.mark.parametrize("every", [1, 3])
def test_each_point_has_its_interrupt(every: int) -> None:
    count = count_points(handle, Code(HERE), "opcodes")
    found = interrupt_everywhere([HERE], handle, lambda: None, every, "opcodes")
    assert found == count // every > 10


def test_a_lost_interrupt_is_an_error(sigint_raises: None) -> None:
    def action() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            len("")

    with pytest.raises(AssertionError, match=r"SIGINT at .*action.* was lost"):
        Interrupt(3, Code(HERE)).run(action)


def test_an_interrupt_in_a_finalizer_is_dropped_by_python(sigint_raises: None) -> None:
    class Finalized:
        def __del__(self) -> None:
            len("")

    def action() -> None:
        Finalized()

    def interrupt(number: int) -> Interrupt:
        result = Interrupt(number, Code(HERE))
        result.run(action)
        return result

    found = [interrupt(number) for number in range(1, 6)]
    assert "Finalized" in found[2].where
    assert [each.is_dropped for each in found] == [False, False, True, True, False]
