"""Waiting for a change of the data that a lock guards, as a condition variable does."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from offgrad_storage.interrupts import interruptible


class Waiters:
    """The threads that wait for a change. Call its methods with the lock held.

    Args:
        release: releases the lock.
        reacquire: takes it again, without a chance for SIGINT.
    """

    __slots__ = ("_locks", "_reacquire", "_release")

    def __init__(self, release: Callable[[], object], reacquire: Callable[[], object]) -> None:
        self._locks: deque[Any] = deque()  # each is released to wake one thread
        self._release = release
        self._reacquire = reacquire

    def __bool__(self) -> bool:
        return bool(self._locks)

    def wait(self, timeout: float = -1) -> bool:
        """Release the lock until ``notify_all``, and take it again.

        Args:
            timeout: maximum of seconds to wait; -1 for no limit.

        Returns:
            Whether it was notified in time.

        Raises:
            KeyboardInterrupt: of SIGINT while waiting; the lock is held.
        """
        waiter = threading.Lock()
        waiter.acquire()
        self._locks.append(waiter)
        self._release()
        try:
            with interruptible:
                return waiter.acquire(timeout=timeout)
        finally:
            self._reacquire()
            if waiter in self._locks:
                self._locks.remove(waiter)

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        while self._locks:
            self._locks.popleft().release()
