"""The jobs under way: reads, writes and other calls of the backend, in any thread.

They tell ``close`` whether the drive still answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from offgrad_storage.entry import Entry
from offgrad_storage.executor.observers import observers


class Job:
    """A read or write under way, in any thread.

    Attributes:
        action: such as "reading" or "writing".
        entry: the first, or only, one that it moves; None for a job of the backend.
        nbytes: of all arrays that it moves.
        thread: the name of its thread.
        began: when, on the monotonic clock.
    """

    __slots__ = ("action", "began", "entry", "nbytes", "thread")

    def __init__(self, action: str, entry: Entry | None, nbytes: int) -> None:
        self.action = action
        self.entry = entry
        self.nbytes = nbytes
        self.thread = threading.current_thread().name
        self.began = time.monotonic()

    def __str__(self) -> str:
        seconds = time.monotonic() - self.began
        what = self.action if self.entry is None else f"{self.action} {self.entry}"
        return f"{self.thread} has been {what} for {seconds:.0f} seconds"


class Jobs:
    """The jobs of a store. Call its methods with the table's lock held.

    Args:
        notify_all: called when the last job ends.

    Attributes:
        under_way: those that have not ended, the oldest first.
        gave_up: whether ``close`` has given up on a drive that does not answer.
        end_abandoned: called when the last job ends after that.
    """

    end_abandoned: Callable[[], object]

    def __init__(self, notify_all: Callable[[], object]) -> None:
        self.under_way: dict[Job, None] = {}
        self.gave_up = False
        self._notify_all = notify_all
        self._last_end = 0.0  # when the last job ended, on the monotonic clock

    def begin(self, action: str, entry: Entry | None, nbytes: int | None = None) -> Job:
        """A thread is about to read or write ``nbytes``; None for those of ``entry``."""
        if nbytes is None:
            nbytes = 0 if entry is None else entry.nbytes
        job = Job(action, entry, nbytes)
        self.under_way[job] = None
        return job

    def end(self, job: Job) -> None:
        """The read or write has ended."""
        del self.under_way[job]
        self._last_end = time.monotonic()
        for observer in observers:
            observer.on_job_end(job)
        if not self.under_way:
            self._notify_all()
            if self.gave_up:
                self.end_abandoned()

    def silent_seconds(self, began: float) -> float:
        """How long no job has begun or ended, at most since ``began`` on the monotonic clock."""
        since = max([began, self._last_end, *(job.began for job in self.under_way)])
        return time.monotonic() - since
