"""The limit of tensor memory: an allocation that would exceed it waits for memory, or fails.

It waits as long as an owner of memory outside any tensor, such as a session with pending writes, is
freeing some, or is used by another thread. It does not wait for a thread that waits here as well
and holds a lock that this one needs: one of the two then fails.

It polls, because nothing could notify it: the death of memory runs no Python code (ADR 14), so that
only the next use of the counter, the poll itself, notices the freed bytes.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Protocol

from offgrad_storage import MemoryCounter, StoreError
from offgrad_storage.interrupts import MaskedLock, interruptible

from offgrad.memory.registry import WeakRegistry
from offgrad.memory.units import format_nbytes

_POLL_SECONDS = 0.002
_MAX_BUSY_SECONDS = 60.0  # for a thread that frees no memory
_MAX_WAIT_SECONDS = 10.0  # while others use the memory that is freed
_PATIENCE = 8  # rounds, since threads of stores release their arrays a moment after the write


class OutOfMemoryError(MemoryError):
    """Tensor memory would exceed its limit, or the system has no memory left."""

    def begin_with(self, purpose: str) -> None:
        """Begin the message with what needed the memory."""
        self.args = (f"{purpose}: {self}",)


class Reclaimable(Protocol):
    """An owner of tensor memory outside any tensor, such as a cache, that can free some of it."""

    @property
    def lock(self) -> MaskedLock | None:
        """The lock that `reclaim` takes, if any."""

    def reclaim(self) -> bool:
        """Free memory; may block, but not for the lock.

        Returns:
            Whether it freed memory, waited until some was freed, or found its lock taken: then the
            allocation is tried again.

        Raises:
            StoreError, MemoryError: some memory cannot be freed; the error becomes the cause of the
                `OutOfMemoryError`.
        """

    def held_by_purpose(self) -> Mapping[str, int]:
        """Return the held bytes by purpose, in the words of an `OutOfMemoryError`."""


class LimitedCounter(MemoryCounter):
    """The bytes of live tensor data, their peak and their limits, for the whole process.

    Attributes:
        limits: the active limits, of which the smallest applies. The keys are arbitrary.
        reclaimables: asked for memory before an allocation fails.
        highest: the highest count ever; `reset_peak` does not change it.
        describe: returns sentences on the holders, and on remedies, for a request of some bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[object, int] = {}
        self.reclaimables: WeakRegistry[Reclaimable] = WeakRegistry()
        self.describe: Callable[[int], str] = str
        self._highest = 0  # before the last `reset_peak`
        self._lock = MaskedLock(reentrant=True)
        # By waiting thread: the locks that it waits for.
        self._waiting: dict[int, Sequence[MaskedLock]] = {}
        if hasattr(os, "register_at_fork"):  # other threads do not wait in the child
            os.register_at_fork(after_in_child=self._waiting.clear)

    @property
    def highest(self) -> int:
        return max(self._highest, self.peak)

    def reset_peak(self) -> None:
        self._highest = self.highest
        super().reset_peak()

    def apply_limits(self) -> None:
        """Apply the smallest of `limits`."""
        with self._lock:
            self.limit = min(self.limits.copy().values(), default=math.inf)

    def make_room(self, nbytes: int) -> None:
        """Have memory freed, and wait for it, until `nbytes` more fit.

        Raises:
            OutOfMemoryError: no more can be freed.
        """
        self.apply_limits()  # a Ctrl-C may have come at the end of one
        failure: Exception | None = None
        patience = 0
        deadline = time.monotonic() + _MAX_WAIT_SECONDS
        while True:
            helpful, error = self.reclaim()
            failure = error or failure
            if self.allocated + nbytes <= self.limit:
                return
            taken = [lock for lock in helpful if lock is not None and self._is_taken(lock)]
            patience = _PATIENCE if helpful else patience - 1
            if patience < 0 or time.monotonic() > deadline:
                break
            if taken and not self._wait_for(taken):
                break
            with interruptible:
                time.sleep(_POLL_SECONDS)
        raise self._limit_error(nbytes) from failure

    def reclaim(self) -> tuple[list[MaskedLock | None], Exception | None]:
        """Ask all reclaimables for memory once.

        Returns:
            The locks of those that are freeing some, and an error of one that could not.
        """
        helpful, failure = [], None
        for reclaimable in self.reclaimables:
            try:
                if reclaimable.reclaim():
                    helpful.append(reclaimable.lock)
            except (StoreError, MemoryError) as error:
                failure = error.with_traceback(None)  # its frames would hold memory
        return helpful, failure

    def _is_taken(self, lock: MaskedLock) -> bool:
        return lock.owner not in (None, get_ident())

    def _wait_for(self, locks: Sequence[MaskedLock]) -> bool:
        """Wait until one of `locks` is free, or memory was freed; return False if neither will be.

        Its `OutOfMemoryError` lets go of the locks of this thread, for which others may wait.
        """
        count = self.allocated
        deadline = time.monotonic() + _MAX_BUSY_SECONDS
        thread = get_ident()
        try:
            while time.monotonic() < deadline:
                with self._lock:
                    if self._is_deadlock(thread, locks):
                        return False
                    self._waiting[thread] = locks
                with interruptible:
                    time.sleep(_POLL_SECONDS)
                if self.allocated < count or not all(map(self._is_taken, locks)):
                    return True
            return False
        finally:
            self._waiting.pop(thread, None)

    def _is_deadlock(self, thread: int, locks: Sequence[MaskedLock]) -> bool:
        """Return whether all holders of `locks` wait, directly or not, for `thread`."""
        seen, left = {thread}, list(locks)
        while left:
            owner = left.pop().owner
            if owner is None or (owner not in seen and owner not in self._waiting):
                return False
            if owner not in seen:
                seen.add(owner)
                left += self._waiting[owner]
        return True

    def _limit_error(self, requested: int) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"tensor memory is limited to {format_nbytes(self.limit)}: "
            f"{format_nbytes(requested)} more were asked for with {format_nbytes(self.allocated)} "
            f"allocated. {self.describe(requested)} Or raise the limit."
        )
