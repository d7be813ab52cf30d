"""Sections of code that Ctrl-C cannot split, and a lock whose holder it does not interrupt.

Python raises KeyboardInterrupt between any two instructions of the main thread. Right after a call
that takes a lock or counts something up, it would leave the lock taken or the count wrong.
``masked`` therefore delays SIGINT until the end of a block. ``interruptible``, inside it, admits
SIGINT where the block waits or works long:

    with masked:
        begin_read(entry)
        try:
            with interruptible:
                backend.read(entry, out)
        finally:
            end_read(entry)

Both affect the main thread only, since Python runs signal handlers there, and do nothing where
SIGINT has no Python handler. The outermost masked block replaces the process's handler of SIGINT
for its duration: half a microsecond.

Finalizers need more care: Python prints and drops a KeyboardInterrupt that is raised in one, and
skips the rest of it. So an object whose death must not be missed is watched by a weak reference
whose callback is a C function, as ``deque.append`` is.
"""

from __future__ import annotations

# The functions of `signal` without their enums: ten times as fast.
import _signal  # type: ignore[import-not-found]
import os
import sys
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["MaskedLock", "interruptible", "masked"]

_SIGINT = 2
_POLL_SECONDS = 0.05  # while the main thread waits for a lock


class _State:
    """The mask of the main thread.

    Attributes:
        main: identity of the main thread.
        depth: number of masked blocks entered.
        handler: the program's handler of SIGINT, to restore; None if there is nothing to mask.
        is_pending: whether a SIGINT waits for the end of the outermost block.
        is_open: whether a SIGINT is handled at once, as in an interruptible block.
        enclosing: ``is_open`` around each masked block but the outermost.
    """

    __slots__ = ("depth", "enclosing", "handler", "is_open", "is_pending", "main")

    def __init__(self, main: int | None) -> None:
        self.main = main
        self.depth = 0
        self.handler: Callable[[int, FrameType | None], Any] | None = None
        self.is_pending = self.is_open = False
        self.enclosing: list[bool] = []

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT inside a masked block."""
        if not self.is_open:
            self.is_pending = True
            return
        # Closed first: no second SIGINT interrupts the clean-up after this one.
        self.is_open = self.is_pending = False
        if self.handler is not None:
            self.handler(number, frame)
        self.is_open = True  # the handler did not raise

    @property
    def may_deliver(self) -> bool:
        """Whether nothing but the innermost masked block delays SIGINT."""
        return self.depth == 1 or (self.depth > 1 and self.enclosing[-1])

    def deliver(self) -> None:
        """Call the program's handler for a pending SIGINT; it may raise KeyboardInterrupt."""
        if self.is_pending:
            self.is_open = self.is_pending = False
            if self.handler is not None:
                self.handler(_SIGINT, sys._getframe(1))


_state = _State(threading.main_thread().ident)


class _Masked:
    """Delays SIGINT until the end of the outermost masked block. Reentrant."""

    __slots__ = ()

    def __enter__(self) -> None:
        state = _state
        if get_ident() != state.main:
            return
        if state.depth:
            is_open, state.is_open = state.is_open, False
            state.enclosing.append(is_open)
            state.depth += 1
            return
        handler: Any = _signal.getsignal(_SIGINT)
        on_signal = state.on_signal
        if not callable(handler) or handler == on_signal:
            # Ignored, the system's default, not set by Python; or a finalizer runs during __exit__.
            state.depth = 1
            return
        try:
            # Before the call, since a finalizer may run there and enter as well.
            state.handler, state.is_open, state.depth = handler, False, 1
            _signal.signal(_SIGINT, on_signal)
        except BaseException:
            state.handler, state.depth = None, 0
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        state = _state
        if get_ident() != state.main:
            return
        if state.depth > 1:
            is_open = state.enclosing.pop()
            state.depth -= 1
            if is_open:
                interruptible.__enter__()
            return
        handler, state.handler, state.depth = state.handler, None, 0
        if handler is None:
            return
        _signal.signal(_SIGINT, handler)
        if state.is_pending:
            state.is_pending = False
            handler(_SIGINT, sys._getframe(1))


class _Interruptible:
    """Inside a masked block, handles SIGINT at once, a pending one included.

    A masked block inside it delays SIGINT again. Elsewhere it does nothing.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        state = _state
        if state.depth and get_ident() == state.main:
            state.is_open = True  # before the look, which would miss a SIGINT right after it
            if state.is_pending:
                state.deliver()
                state.is_open = True

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if get_ident() == _state.main:
            _state.is_open = False


masked = _Masked()
interruptible = _Interruptible()


class MaskedLock:
    """A lock whose holder is not interrupted: ``with lock:`` masks SIGINT, and takes the lock.

    Waiting for the lock is interruptible, but not in a masked block around it. In a forked child
    the lock is free, unless the forking thread held it: other holders do not exist there.

    Args:
        reentrant: whether its holder may take it again.
    """

    __slots__ = ("__weakref__", "_lock", "_owners", "_reentrant")

    def __init__(self, *, reentrant: bool = False) -> None:
        self._reentrant = reentrant
        self._renew()
        _locks.add(weakref.ref(self, _locks.discard))

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take the lock inside a masked block; return whether it was taken."""
        if not self._lock.acquire(blocking=False):
            if not blocking:
                return False
            if get_ident() == _state.main and _state.may_deliver:
                # Not in an interruptible block: SIGINT right after `acquire` would lose the lock.
                while not self._lock.acquire(timeout=_POLL_SECONDS):
                    _state.deliver()
            else:
                self._lock.acquire()
        self._owners.append(get_ident())
        return True

    def reacquire(self) -> None:
        """Take the lock, without a chance for SIGINT; for locks that are held briefly."""
        self._lock.acquire()
        self._owners.append(get_ident())

    def release(self) -> None:
        """Release the lock."""
        self._owners.pop()
        self._lock.release()

    @property
    def is_owned(self) -> bool:
        """Whether the calling thread holds the lock."""
        return self._owners[-1:] == [get_ident()]

    @property
    def owner(self) -> int | None:
        """The identity of the thread that holds the lock; None if it is free."""
        for ident in self._owners[-1:]:
            return ident
        return None

    def __enter__(self) -> None:
        masked.__enter__()
        try:
            self.acquire()
        except BaseException:
            masked.__exit__()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
        masked.__exit__()

    def _renew(self) -> None:
        self._lock: Any = threading.RLock() if self._reentrant else threading.Lock()
        self._owners: list[int] = []


# Not a WeakSet, whose callback is a Python function.
_locks: set[weakref.ref[MaskedLock]] = set()


def _after_fork_in_child() -> None:
    global _state
    ident = get_ident()
    if _state.main != ident:  # another thread forked: it is the main thread here
        handler, _state = _state.handler, _State(ident)
        if handler is not None:
            _signal.signal(_SIGINT, handler)
    for reference in _locks.copy():  # in one step: a lock may die meanwhile
        lock = reference()
        if lock is not None and not lock.is_owned:
            lock._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
