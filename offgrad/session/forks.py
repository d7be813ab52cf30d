"""Forks of a process whose threads use sessions: the child can go on with each session."""

import os
import time
from typing import Protocol

from offgrad_storage.interrupts import MaskedLock, masked

from offgrad.memory.registry import WeakRegistry

_MAX_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.0005


class _Forkable(Protocol):
    """A session."""

    @property
    def lock(self) -> MaskedLock:
        """The lock of its state."""

    def forget_other_threads(self) -> None:
        """In a forked child: end the work of other threads, which do not exist there."""


sessions: WeakRegistry[_Forkable] = WeakRegistry()
_locked: list[_Forkable] = []


def _before_fork() -> None:
    """Take the locks of all sessions, so that no change is half done in the child.

    They are held briefly. If a lock is not free in time, the fork happens nevertheless.
    """
    masked.__enter__()
    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    for session in sessions:
        while not (taken := session.lock.acquire(blocking=False)):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        if taken:
            _locked.append(session)


def _after_fork() -> None:
    while _locked:
        _locked.pop().lock.release()
    masked.__exit__()


def _after_fork_in_child() -> None:
    for session in sessions:
        session.forget_other_threads()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )
