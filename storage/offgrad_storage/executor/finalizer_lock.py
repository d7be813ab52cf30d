"""A lock for state that finalizers change as well.

The garbage collector may run ``__del__`` in any thread at any moment, also in one that holds the
lock, so a finalizer must never wait for it. It defers an event instead, which is handled at once if
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
    """A condition variable with a queue of deferred events.

    Args:
        handle: called with each event while the lock is held; must be quick and not raise.
    """

    def __init__(self, handle: Callable[[Event], object]) -> None:
        self._handle = handle
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._waiting = 0

    def defer(self, event: Event) -> bool:
        """Queue an event, without ever waiting; return whether it has been handled already.

        If not, the holder of the lock handles it, unless it is just about to wait: so the caller
        must then wake a thread that takes the lock.
        """
        self._events.append(event)
        self._try_handle_events()
        return not self._events

    def wait(self) -> None:
        """Release the lock until ``notify_all``, take it again and handle events."""
        self._waiting += 1
        try:
            self._condition.wait()
        finally:
            self._waiting -= 1
        self._handle_events()

    def notify_all(self) -> None:
        """Wake all waiting threads; call it with the lock held."""
        if self._waiting:  # cheaper than notifying no thread
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
        # An event deferred while the last one is being handled finds the lock taken: so loop.
        while self._events and self._lock.acquire(blocking=False):
            try:
                self._handle_events()
            finally:
                self._lock.release()

    def _handle_events(self) -> None:
        while self._events:
            self._handle(self._events.popleft())
