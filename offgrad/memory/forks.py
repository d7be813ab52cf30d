"""Forks of a process with threads: no change of registered state is half done in the child.

The forking thread first takes the locks of owners of state, or the owner mends its state in the
child. Locks of other threads would stay taken there; MaskedLocks are free.

Attributes:
    count: the number of forks between this process and the first.
"""

import os
import time
from typing import Protocol

from offgrad_storage.interrupts import masked

from offgrad.memory.registry import WeakRegistry

_MAX_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.0005


class Lock(Protocol):
    """A MaskedLock, or a lock of another library."""

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take the lock; return whether it was taken."""

    def release(self) -> None:
        """Release the lock."""


class Forkable(Protocol):
    """An owner of state that threads share, such as a session."""

    @property
    def lock(self) -> Lock | None:
        """The lock that a fork takes; None if `forget_other_threads` mends the state.

        A fork polls for it, and would wait long for a lock that threads pass on without a pause.
        """

    def forget_other_threads(self) -> None:
        """In a forked child: end the work of other threads, which do not exist there."""


count = 0
forkables: WeakRegistry[Forkable] = WeakRegistry()
_taken: list[Lock] = []


def _before_fork() -> None:
    """Take the locks of all owners; if one is not free in time, the fork happens nevertheless."""
    masked.__enter__()
    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    # Sessions register after kernels, and their threads may run kernels while they hold the lock.
    for owner in reversed(list(forkables)):
        lock = owner.lock
        if lock is None:
            continue
        while not (taken := lock.acquire(blocking=False)):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        if taken:
            _taken.append(lock)


def _after_fork() -> None:
    while _taken:
        _taken.pop().release()
    masked.__exit__()


def _after_fork_in_child() -> None:
    global count
    count += 1
    for owner in forkables:
        owner.forget_other_threads()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )
