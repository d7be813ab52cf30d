"""SIGINT at each point of an action: where CPython looks for signals, at each line or opcode."""

from __future__ import annotations

import dis
import functools
import itertools
import opcode
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Literal

import pytest

PointKind = Literal["checks", "lines", "opcodes"]
"""Of the points of traced code.

checks: those at which CPython handles signals; a signal that arrives in between is handled at the
next of them. They are the start of a function, the end of a call that returns, a backward jump, and
a wait in C: for a lock, also that of a ``with`` block, for a queue, for a drive.
"""

_CHECKS_AFTER = frozenset(
    number
    for name, number in opcode.opmap.items()
    if name in {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}
    or name.startswith("POP_JUMP_BACKWARD")
)
_RESUME = opcode.opmap["RESUME"]
_ENTERS_WITH = opcode.opmap.get("BEFORE_WITH", -1)
_NO_INSTRUCTION = -1
_WAITS = frozenset({"acquire", "get", "sleep", "pwritev", "preadv", "pwrite", "pread"})
"""Functions in C that handle signals while they wait."""


class _Instructions:
    """The instructions of a function.

    Attributes:
        numbers: by offset, the opcode.
        switches: offsets where the function begins or ends to handle an exception.
        handlers: by offset, where the function handles an exception from there; others are absent.
    """

    def __init__(self, code: CodeType) -> None:
        self.numbers = code.co_code
        bytecode: Any = dis.Bytecode(code)
        self.handlers = {
            offset: each.target
            for each in bytecode.exception_entries
            for offset in range(each.start, each.end)
        }
        self.switches = set()
        before = None
        for each in bytecode:
            if each.opname in ("PUSH_EXC_INFO", "POP_EXCEPT", "RERAISE"):
                self.switches.add(each.offset)
            if each.opname == "POP_EXCEPT" and before and before.opname in ("COPY", "SWAP"):
                self.switches.add(before.offset)
            before = each


_instructions = functools.cache(_Instructions)


class Code:
    """The code of some modules, and of packages with all that is in them, as a set of frames.

    Leave out `offgrad_storage.memory.counter` where several threads run: a tracer is Python code,
    which lets other threads run between the plain loads and stores of a `MemoryCounter`.

    Args:
        modules: modules and packages.
        but: modules and packages in them to leave out.
        called: other modules, whose functions belong to it where its code calls them.
    """

    def __init__(
        self,
        *modules: ModuleType,
        but: Collection[ModuleType] = (),
        called: Collection[ModuleType] = (),
    ) -> None:
        self._paths, self._but = _paths(modules), _paths(but)
        self._called = {each.__file__ for each in called}

    def __contains__(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        if file in self._called:
            return frame.f_back is not None and frame.f_back.f_trace is not None
        return file.startswith(self._paths) and not file.startswith(self._but)


def _paths(modules: Collection[ModuleType]) -> tuple[str, ...]:
    files = [Path(str(each.__file__)) for each in modules]
    return tuple(f"{each.parent}/" if each.name == "__init__.py" else str(each) for each in files)


class Points:
    """Calls a function at each point of some code that this thread comes to inside the block.

    Args:
        visit: the function; it is given the frame.
        code: the code.
        kind: of the points.
    """

    def __init__(
        self, visit: Callable[[FrameType], object], code: Code, kind: PointKind = "checks"
    ) -> None:
        self._visit, self._code, self._kind = visit, code, kind

    def __enter__(self) -> None:
        self._before = sys.gettrace(), sys.getprofile()
        if self._kind == "checks":
            sys.setprofile(self._on_c_call)
        if self._kind != "lines":
            sys._getframe().f_trace_opcodes = True  # else Python 3.12 traces none the first time
        sys.settrace(self._on_call)

    def __exit__(self, *error: object) -> None:
        trace, profile = self._before
        sys.settrace(trace)
        sys.setprofile(profile)

    def _on_c_call(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in _WAITS and frame in self._code:
            self._visit(frame)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame not in self._code:
            return None
        is_by_line = self._kind == "lines"
        frame.f_trace_lines, frame.f_trace_opcodes = is_by_line, not is_by_line
        return _FrameTracer(self._visit, frame, self._kind)


class _FrameTracer:
    """Calls a function at each point of a frame, except where an exception would end wrongly.

    No exception but a tracer's comes where the frame begins or ends to handle one, and at a few
    other instructions of handlers, which no other handler guards. After it the handled exception
    would stay, or another one go: `sys.exc_info` of this thread would be wrong from then on.
    """

    def __init__(
        self, visit: Callable[[FrameType], object], frame: FrameType, kind: PointKind
    ) -> None:
        self._visit = visit
        self._instructions = _instructions(frame.f_code)
        self._event = "line" if kind == "lines" else "opcode"
        self._checks_only = kind == "checks"
        self._before, self._before_offset = _RESUME, 0
        self._outer_exception = sys.exc_info()[1]

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == self._event:
            offset = frame.f_lasti
            now = self._instructions.numbers[offset]
            is_check = now == _ENTERS_WITH or self._is_after_check(offset)
            self._before, self._before_offset = now, offset
            if (is_check or not self._checks_only) and self._can_raise_at(offset):
                self._visit(frame)
        elif event == "exception":
            self._before = _NO_INSTRUCTION  # a call that raises ends without a look for signals
        return self

    def _is_after_check(self, offset: int) -> bool:
        # CPython checks as a part of the instruction before, such as a call: the exception goes to
        # that one's handler. After the call in ``try: return f()`` the handler guards nothing.
        handlers = self._instructions.handlers
        return self._before in _CHECKS_AFTER and (
            handlers.get(self._before_offset) == handlers.get(offset)
        )

    def _can_raise_at(self, offset: int) -> bool:
        if offset in self._instructions.switches:
            return False
        is_handling = sys.exc_info()[1] is not self._outer_exception
        return not is_handling or offset in self._instructions.handlers


def count_points(action: Callable[[], object], code: Code, kind: PointKind = "checks") -> int:
    """Run an action; return its number of points."""
    count = itertools.count()
    with Points(lambda frame: next(count), code, kind):
        action()
    return next(count)


class Interrupt:
    """A SIGINT to this thread, the main one, at one point of an action.

    Args:
        at: the number of the point, from 1, or a function that tells whether a frame is there.
        code: the code in which it is.
        kind: of the points.

    Attributes:
        where: the point, as text; empty as long as no signal was sent.
        is_dropped: whether the KeyboardInterrupt was raised in a finalizer, where Python drops it.
    """

    def __init__(
        self, at: int | Callable[[FrameType], bool], code: Code, kind: PointKind = "checks"
    ) -> None:
        numbers = itertools.count(1)
        self._is_due = at if callable(at) else lambda frame: next(numbers) == at
        self._points = Points(self._at_point, code, kind)
        self.where = ""
        self.is_dropped = False

    def run(self, action: Callable[[], object]) -> None:
        """Run the action to its end, or to KeyboardInterrupt.

        Raises:
            AssertionError: the signal was lost, or `sys.exc_info` is not as before.
        """
        current, is_raised = sys.exc_info()[1], False
        report, sys.unraisablehook = sys.unraisablehook, self._note_dropped
        self._report = report
        try:
            with self._points:
                action()
        except KeyboardInterrupt:
            if not self.where:
                raise
            is_raised = True
        finally:
            sys.unraisablehook = report
        if self.where:
            assert is_raised or self.is_dropped, f"the SIGINT at {self.where} was lost"
        assert sys.exc_info()[1] is current, f"SIGINT at {self.where} leaves an exception behind"

    def _at_point(self, frame: FrameType) -> None:
        if self.where or not self._is_due(frame):
            return
        sys.settrace(None)
        sys.setprofile(None)
        self.where = place(frame)
        print(f"SIGINT at {self.where}", file=sys.stderr)  # in case this process hangs
        signal.raise_signal(signal.SIGINT)

    def _note_dropped(self, unraisable: sys.UnraisableHookArgs) -> None:
        if self.where and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self.is_dropped = True
        else:
            self._report(unraisable)


def place(frame: FrameType | None) -> str:
    """Return a frame, and those that called it, as text."""
    places: list[str] = []
    while frame is not None and len(places) < 5:
        code = frame.f_code
        file = code.co_filename.rpartition("offgrad")[2].lstrip("/")
        places.append(f"{file}:{frame.f_lineno} {code.co_qualname}+{frame.f_lasti}")
        frame = frame.f_back
    return " < ".join(places)


def _begins_exit(frame: FrameType, code: Code) -> bool:
    function = frame.f_code
    return (
        function.co_name == "__exit__"
        and function.co_code[frame.f_lasti - 2] == _RESUME
        and frame.f_back is not None
        and frame.f_back not in code
    )


def interrupt_everywhere(
    modules: Collection[ModuleType],
    action: Callable[[], object],
    check: Callable[[], object],
    every: int = 1,
    kind: PointKind = "checks",
) -> int:
    """Run an action again and again, with SIGINT at another point each time.

    Not at the first instruction of an exit that a block outside of the code calls: there it leaves
    the block open, as with any context manager in Python.

    Args:
        modules: modules and packages whose code is interrupted.
        action: what is interrupted.
        check: called after each run.
        every: take only each point whose number this divides.
        kind: of the points.

    Returns:
        The number of interrupts.
    """
    code = Code(*modules)

    def is_at(number: int) -> Callable[[FrameType], bool]:
        numbers = itertools.count(1)
        return lambda frame: not _begins_exit(frame, code) and next(numbers) == number

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number in range(1, 100_000):
            interrupt = Interrupt(is_at(number * every), code, kind)
            interrupt.run(action)
            assert not interrupt.is_dropped, f"Python dropped the SIGINT at {interrupt.where}"
            try:
                check()
            except BaseException as error:
                error.add_note(f"SIGINT at {interrupt.where}")
                raise
            if not interrupt.where:
                return number - 1
    finally:
        signal.signal(signal.SIGINT, before)
    pytest.fail("the action does not end")
