"""A lock for state that the garbage collector wants to change as well.

The garbage collector may run ``__del__`` in any thread at any moment, also in one that holds the
lock, so a finalizer must never take it. It defers an event instead. The event is handled at once if
the lock is free, else by the lock's holder: on entering, after waiting, and after releasing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

Event = TypeVar("Event")


class FinalizerLock(Generic[Event]):
    """A condition variable with a letterbox.

    Args:
        read: called with each event while the lock is held; must be quick and not raise.
    """

    def __init__(self, read: Callable[[Event], object]) -> None:
        self._handle = read
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._waiting = 0

    def defer(self, event: Event) -> bool:
        """Leave an event, without ever waiting; return whether it has been read already.

        If not, the holder of the lock reads it, unless it is just about to wait: so see to it that
        something wakes a thread that takes the lock.
        """
        self._events.append(event)
        self._try_handle_events()
        return not self._events

    def wait(self) -> None:
        """Release the lock until ``notify_all``, take it again and read the events."""
        self._waiting += 1
        try:
            self._condition.wait()
        finally:
            self._waiting -= 1
        self._handle_events()

    def notify_all(self) -> None:
        """Wake all that wait; with the lock held."""
        if self._waiting:  # asking costs less than telling nobody
            self._condition.notify_all()

    def __enter__(self) -> None:
        self._lock.acquire()
        if not self._events:
            return
        try:
            self._handle_events()
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
        if self._events:
            self._try_handle_events()

    def _try_handle_events(self) -> None:
        # An event deferred while the last one is being read finds the lock taken: hence the loop.
        while self._events and self._lock.acquire(blocking=False):
            try:
                self._handle_events()
            finally:
                self._lock.release()

    def _handle_events(self) -> None:
        while self._events:
            self._handle(self._events.popleft())
