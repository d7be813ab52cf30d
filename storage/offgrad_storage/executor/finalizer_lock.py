"""A lock for state that finalizers change as well.

The garbage collector may run ``__del__`` in any thread at any moment, also in one that holds the
lock, so a finalizer must never wait for it. It defers an event instead, which is handled at once if
the lock is free, else by the lock's holder: on entering, after waiting, and after releasing.

The lock masks SIGINT: no Ctrl-C splits a change of the state, and only ``wait`` raises it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from offgrad_storage.executor.waiting import Waiters
from offgrad_storage.interrupts import MaskedLock, masked

Event = TypeVar("Event")


class FinalizerLock(Generic[Event]):
    """A condition variable with a queue of deferred events.

    Args:
        handle: called with each event while the lock is held; must be quick and not raise.

    Attributes:
        inbox: the queue. Its ``append`` may be the callback of weak references: as a C function it
            cannot be interrupted.
    """

    def __init__(self, handle: Callable[[Event], object]) -> None:
        self._handle = handle
        self.inbox: deque[Event] = deque()
        self._lock = MaskedLock()
        self._waiters = Waiters(self._lock.release, self._lock.reacquire)

    def defer(self, event: Event) -> bool:
        """Queue an event, without ever waiting; return whether it has been handled already.

        If not, the holder of the lock handles it, unless it is just about to wait: so the caller
        must then wake a thread that takes the lock.
        """
        self.inbox.append(event)
        with masked:
            self._try_handle_events()
        return not self.inbox

    def wait(self, timeout: float = -1) -> bool:
        """Release the lock until ``notify_all``, take it again and handle events.

        Args:
            timeout: maximum of seconds to wait; -1 for no limit.

        Returns:
            Whether it was notified in time.

        Raises:
            KeyboardInterrupt: of SIGINT while waiting; the lock is held.
        """
        notified = self._waiters.wait(timeout)
        self._handle_events()
        return notified

    def notify_all(self) -> None:
        """Wake all waiting threads; call it with the lock held."""
        self._waiters.notify_all()

    def __enter__(self) -> None:
        self._lock.__enter__()
        if self.inbox:
            try:
                self._handle_events()
            except BaseException as error:
                self._lock.__exit__(type(error), error, None)
                raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
        if self.inbox:
            self._try_handle_events()
        masked.__exit__()

    def _try_handle_events(self) -> None:
        # An event deferred while the last one is being handled finds the lock taken: so loop.
        while self.inbox and self._lock.acquire(blocking=False):
            try:
                self._handle_events()
            finally:
                self._lock.release()

    def _handle_events(self) -> None:
        while self.inbox:
            self._handle(self.inbox.popleft())
