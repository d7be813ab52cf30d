"""SIGINT at a chosen point of the library's code, and the count of those that Python drops."""

import contextlib
import functools
import gc
import opcode
import queue
import signal
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import offgrad_storage

import offgrad

_FOLDERS = tuple(f"{Path(str(each.__file__)).parent}/" for each in (offgrad, offgrad_storage))
_FILES = {each.__file__ for each in (contextlib, functools, queue, threading, weakref)}
"""Files of Python's library whose functions the stores and sessions call."""


def _is_traced(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file in _FILES:  # zarr calls it as well
        return frame.f_back is not None and frame.f_back.f_trace is not None
    return file.startswith(_FOLDERS)


@functools.cache
def _instructions(code: CodeType) -> bytes:
    return code.co_code


# CPython handles signals at the start of a function, after a call, and on a backward jump.
_HANDLES_AFTER = frozenset(
    number
    for name, number in opcode.opmap.items()
    if name.startswith("CALL") or "JUMP_BACKWARD" in name or name == "RESUME"
)
_RESUME = opcode.opmap["RESUME"]
_ENTERS_WITH = opcode.opmap.get("BEFORE_WITH", -1)
_WAITS = frozenset({"acquire", "get", "sleep", "pwritev", "preadv", "pwrite", "pread"})
"""Functions in C that handle signals while they wait."""


class InterruptAt:
    """Sends SIGINT to this thread, the main one, at one point of the library's code.

    The points are those at which CPython handles signals: a signal that arrives in between is
    handled at the next of them. They are the start of a function, the end of a call, a backward
    jump, and a wait in C: for a lock, also that of a ``with`` block, for a queue, for a drive.

    Args:
        at: the number of the point, from 1.

    Attributes:
        where: the point, as text; empty if the block ended before it.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self.where = ""

    @property
    def reached(self) -> bool:
        """Whether the signal was sent."""
        return bool(self.where)

    def __enter__(self) -> "InterruptAt":
        sys.setprofile(self._on_c_call)
        sys.settrace(self._on_call)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def _on_c_call(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in _WAITS and _is_traced(frame):
            self._point(frame)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not _is_traced(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._tracer(_instructions(frame.f_code))

    def _tracer(self, instructions: bytes) -> Callable[[FrameType, str, Any], Any]:
        previous = _RESUME

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal previous
            if event == "opcode":
                current = instructions[frame.f_lasti]
                if previous in _HANDLES_AFTER or current == _ENTERS_WITH:
                    self._point(frame)
                previous = current
            return trace

        return trace

    def _point(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left:
            return
        sys.settrace(None)
        sys.setprofile(None)
        self.where = place(frame)
        print(f"SIGINT at {self.where}", file=sys.stderr)  # in case this process hangs
        signal.raise_signal(signal.SIGINT)


def place(frame: FrameType | None) -> str:
    """Return a frame, and those that called it, as text."""
    places: list[str] = []
    while frame is not None and len(places) < 5:
        code = frame.f_code
        file = code.co_filename.rpartition("offgrad")[2].lstrip("/")
        places.append(f"{file}:{frame.f_lineno} {code.co_qualname}+{frame.f_lasti}")
        frame = frame.f_back
    return " < ".join(places)


@contextlib.contextmanager
def dropped_exceptions() -> Iterator[Counter[str]]:
    """Count, by name, exceptions that Python drops: those of finalizers and of threads.

    Python prints "Exception ignored in", and continues.
    """
    dropped: Counter[str] = Counter()

    def note(unraisable: Any) -> None:
        name = unraisable.exc_type.__name__
        where = "" if name == "KeyboardInterrupt" else f": {unraisable.exc_value}"
        dropped[f"{name}{where}"] += 1

    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = threading.excepthook = note
    try:
        yield dropped
    finally:
        gc.collect()
        sys.unraisablehook, threading.excepthook = hooks
