"""Phases: whether the process is in a forward or a backward pass, updates, or does neither."""

from collections import deque
from threading import get_ident
from time import perf_counter
from typing import Any

from offgrad_storage.interrupts import MaskedLock

from offgrad import memory
from offgrad.profiler.events import PHASE, STEP


class Phases:
    """Notes where a phase begins.

    Args:
        events: gets the events.

    Attributes:
        now: the name of the phase: ``"forward"``, ``"backward"``, ``"optimizer"`` or ``"other"``.
    """

    def __init__(self, events: deque[Any]) -> None:
        self.now = "other"
        self._events = events
        self._lock = MaskedLock()
        self._passes: list[int] = []  # the threads that run one
        self._updates: list[int] = []  # the threads in which an optimizer steps
        self._in_forward = False

    def forget_other_threads(self) -> None:
        """In a forked child: their passes do not run."""
        thread = get_ident()
        self._passes = [each for each in self._passes if each == thread]
        self._updates = [each for each in self._updates if each == thread]
        self._note()

    def begin_forward(self) -> None:
        """An operation is recorded, or runs in a module."""
        with self._lock:
            self._in_forward = True
            self._note()

    def begin_pass(self) -> None:
        """A backward pass of this thread begins."""
        with self._lock:
            self._passes.append(get_ident())
            self._note()

    def end_pass(self) -> None:
        """It has ended."""
        thread = get_ident()
        with self._lock:
            # One that began before the recording is seen only to end.
            if thread in self._passes:
                self._passes.remove(thread)
            self._in_forward = False
            self._note()

    def begin_update(self) -> None:
        """An optimizer begins a step in this thread."""
        thread = get_ident()
        with self._lock:
            # An error may have ended an earlier one of this thread.
            self._updates = [*(each for each in self._updates if each != thread), thread]
            self._in_forward = False
            self._note()

    def end_update(self) -> None:
        """It has ended."""
        thread = get_ident()
        with self._lock:
            if thread in self._updates:
                self._updates.remove(thread)
            self._note()

    def step(self) -> None:
        """A step of the training has ended."""
        with self._lock:
            self._in_forward = False
            self._updates.clear()  # an error may have ended them
            memory.allocated()
            self._events.append((STEP, perf_counter()))
            self._note()

    def _note(self) -> None:
        if self._passes:
            phase = "backward"
        elif self._updates:
            phase = "optimizer"
        else:
            phase = "forward" if self._in_forward else "other"
        if phase != self.now:
            memory.allocated()  # deaths before the phase count before it
            self.now = phase
            self._events.append((PHASE, perf_counter(), phase))
