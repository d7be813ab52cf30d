"""A bounded number of I/O threads that look for jobs, and sleep while there are none."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Workers:
    """Threads that call ``step`` until it finds no job, and then wait for the inbox.

    Call its methods with the lock held, except for ``take`` and ``join``.

    Args:
        step: finds one job and does it; must not raise. It returns whether to go on.
        max_threads: bound of their number.
        name: prefix of the threads' names.

    Attributes:
        inbox: None wakes a thread; other items, which anyone may put there at any time, are for
            ``step``, which finds them there.
        running: threads that have not ended.
    """

    def __init__(self, step: Callable[[], bool], max_threads: int, name: str) -> None:
        self.max_threads = max_threads
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.running = 0
        self._step = step
        self._name = name
        self._threads: list[threading.Thread] = []
        # Two joins of one thread at once may raise RuntimeError in Python 3.11 and 3.12.
        self._joining = threading.Lock()
        self._idle = self._woken = 0

    def __bool__(self) -> bool:
        """Whether any thread was started."""
        return bool(self._threads)

    def start_thread(self) -> None:
        """Start one more thread, up to ``max_threads``.

        Raises:
            RuntimeError: the system refuses the first thread.
        """
        if len(self._threads) >= self.max_threads:
            return
        name = f"{self._name} I/O {len(self._threads)}"
        thread = threading.Thread(target=self._loop, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
        else:
            self._threads.append(thread)
            self.running += 1

    def wake(self) -> None:
        """Wake a thread, if one sleeps that was not woken yet."""
        if self._woken < self._idle:
            self._woken += 1
            self.inbox.put(None)

    def wake_all(self) -> None:
        """Wake all threads, to end or to find out that they should not."""
        for _ in range(self._idle - self._woken):
            self.wake()

    def sleep(self) -> None:
        """The calling thread is about to call ``take``."""
        self._idle += 1

    def woke(self, item: Any) -> None:
        """The calling thread has taken ``item``."""
        self._idle -= 1
        if item is None:
            self._woken -= 1

    def take(self) -> Any:
        """Wait for an item of the inbox."""
        return self.inbox.get()

    def join(self, timeout: float) -> None:
        """Wait until all threads have ended, each for so many seconds at most."""
        with self._joining:
            for thread in self._threads:
                thread.join(timeout)

    def _loop(self) -> None:
        while self._step():
            pass
