"""A lock for state that the garbage collector wants to change as well.

The garbage collector may run ``__del__`` in any thread at any moment, also in one that holds the
lock, so a finalizer must never take it. It posts a note instead. The note is read at once if the
lock is free, else by whoever holds it: on entering, after waiting, and again after releasing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

Note = TypeVar("Note")


class Letterbox(Generic[Note]):
    """A condition variable with a letterbox.

    Args:
        read: called with each note while the lock is held; must be quick and not raise.
    """

    def __init__(self, read: Callable[[Note], object]) -> None:
        self._read = read
        self._notes: deque[Note] = deque()
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._waiting = 0

    def post(self, note: Note) -> bool:
        """Leave a note, without ever waiting; return whether it has been read already.

        If not, the holder of the lock reads it, unless it is just about to wait: so see to it that
        something wakes a thread that takes the lock.
        """
        self._notes.append(note)
        self._settle()
        return not self._notes

    def wait(self) -> None:
        """Release the lock until ``notify_all``, take it again and read the notes."""
        self._waiting += 1
        try:
            self._condition.wait()
        finally:
            self._waiting -= 1
        self._read_notes()

    def notify_all(self) -> None:
        """Wake all that wait; with the lock held."""
        if self._waiting:  # asking costs less than telling nobody
            self._condition.notify_all()

    def __enter__(self) -> None:
        self._lock.acquire()
        if not self._notes:
            return
        try:
            self._read_notes()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
        if self._notes:
            self._settle()

    def _settle(self) -> None:
        # A note posted while the last one is being read finds the lock taken: hence the loop.
        while self._notes and self._lock.acquire(blocking=False):
            try:
                self._read_notes()
            finally:
                self._lock.release()

    def _read_notes(self) -> None:
        while self._notes:
            self._read(self._notes.popleft())
