"""A bounded number of I/O threads that take one step whenever they are woken."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable


class Workers:
    """Threads that call ``step`` once per ``wake``, started one by one.

    A wake is a token in a queue, so none is lost; a thread that finds no job was preceded by
    another. ``wake`` and ``stop`` never wait, so the garbage collector may call them.

    Args:
        step: takes one job and does it; must not raise.
        on_last_exit: called by the last thread to end.
        max_threads: bound of their number.
        name: prefix of the threads' names.
    """

    def __init__(
        self,
        step: Callable[[], object],
        on_last_exit: Callable[[], object],
        max_threads: int,
        name: str,
    ) -> None:
        self.max_threads = max_threads
        self._step = step
        self._on_last_exit = on_last_exit
        self._name = name
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ended = itertools.count(1)

    def __bool__(self) -> bool:
        """Whether any thread was started."""
        return bool(self._threads)

    def start_thread(self) -> None:
        """Start one more thread, up to ``max_threads``; for one caller at a time.

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

    def wake(self) -> None:
        """Have a thread take a step."""
        self._tokens.put(True)

    def stop(self) -> None:
        """Have all threads end, after the steps requested before."""
        for _ in self._threads:
            self._tokens.put(False)

    def join(self) -> None:
        """Wait until all threads have ended."""
        for thread in self._threads:
            thread.join()

    def _loop(self) -> None:
        while self._tokens.get():
            self._step()
        if next(self._ended) == len(self._threads):
            self._on_last_exit()
