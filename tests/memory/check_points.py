"""SIGINT at each instruction of an action at which CPython looks for signals."""

import dis
import signal
import sys
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any

import pytest

_names: dict[CodeType, dict[int, str]] = {}


def _is_check(frame: FrameType) -> bool:
    """Return whether CPython looks for signals at the end of the present instruction.

    It does so where a function starts, after calls and at backward jumps.
    """
    code = frame.f_code
    names = _names.get(code)
    if names is None:
        names = _names[code] = {each.offset: each.opname for each in dis.get_instructions(code)}
    name = names[frame.f_lasti]
    return name == "RESUME" or name.startswith("CALL") or "JUMP_BACKWARD" in name


class _Tracer:
    """Sends SIGINT at one check point of some files."""

    def __init__(self, files: Collection[str], at: int) -> None:
        self.files = files
        self.left = at
        self.line = ""
        self._checked: dict[FrameType, bool] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            was_check = self._checked.get(frame, False)
            self._checked[frame] = _is_check(frame)
            if was_check:
                self.left -= 1
                if not self.left:
                    self.line = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                    sys.settrace(None)
                    self._checked.clear()
                    signal.raise_signal(signal.SIGINT)
        elif event == "return":
            self._checked.pop(frame, None)
        return self


def interrupt_everywhere(
    modules: Collection[Any],
    action: Callable[[], object],
    check: Callable[[], object],
    every: int = 1,
) -> int:
    """Run `action` again and again, with SIGINT at another check point of `modules` each time.

    Args:
        modules: whose code is interrupted.
        action: what is interrupted.
        check: called after each run.
        every: take only each point whose number this divides.

    Returns:
        The number of interrupts.
    """
    files = {module.__file__ for module in modules}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for point in range(every, 100_000, every):
            tracer = _Tracer(files, point)
            is_interrupted = False
            try:
                sys.settrace(tracer)
                try:
                    action()
                finally:
                    sys.settrace(None)
            except KeyboardInterrupt:
                is_interrupted = True
            try:
                check()
            except BaseException as error:
                error.add_note(f"SIGINT in {tracer.line}")
                raise
            if tracer.left > 0:
                return point // every - 1
            assert is_interrupted, f"the SIGINT was lost in {tracer.line}"
    finally:
        signal.signal(signal.SIGINT, before)
    pytest.fail("the action does not end")
