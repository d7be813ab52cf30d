"""MemoryCounter: the exact bytes of living objects, and their peak.

An object is counted until it dies. A weak reference notices that, whose callback is a C function:
Python prints and drops a KeyboardInterrupt that is raised in a finalizer, and skips the rest of it.
The callback queues the reference; the bytes are subtracted when the count is next used.

Nothing here takes a lock. Python handles signals, switches threads and collects garbage only where
a function starts, after calls and at backward jumps (3.11 also where a container is made). So the
steps that must not be split are plain loads and stores in a row. A call may come last.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import getweakrefs, ref

__all__ = ["DeathRef", "MemoryCounter", "Observer"]


class DeathRef(ref[Any]):
    """A weak reference that is equal to itself only, so it has a hash even after the death."""

    __slots__ = ()
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


Observer: TypeAlias = Callable[[int, DeathRef, int], object]


class MemoryCounter:
    """Counts the bytes of objects while they live. Thread-safe; a forked child goes on counting.

    Attributes:
        limit: upper bound of the count; ``math.inf`` for none.
        peak: the highest count since `reset_peak`.
        observers: called after each change, from any thread, with the count, the weak reference to
            the object, and its bytes, negative after its death; a death is noticed when the counter
            is next used. The keys are arbitrary.
    """

    __slots__ = ("_count", "_dead", "_live", "_on_death", "limit", "observers", "peak")

    def __init__(self) -> None:
        self.observers: dict[object, Observer] = {}
        self.limit = math.inf
        self.peak = 0
        self._count = 0  # objects in `_dead` included
        self._live: dict[DeathRef, int] = {}
        self._dead: deque[DeathRef] = deque()
        self._on_death: Callable[[Any], object] = self._dead.append

    @property
    def allocated(self) -> int:
        """The bytes of all counted objects that live."""
        if self._dead:
            self.settle()
        return self._count

    def add(self, owner: object, nbytes: int) -> None:
        """Count ``nbytes`` bytes until ``owner`` dies. Both must be new to the counter.

        Raises:
            MemoryError: the limit would be exceeded. Nothing was counted.
        """
        reference = DeathRef(owner, self._on_death)
        while True:
            if self._dead:
                self.settle()
            count = self._count + nbytes
            if count <= self.limit:
                self._live[reference] = nbytes
                self._count = count
                if count > self.peak:
                    self.peak = count
                break
            self.make_room(nbytes)
        if self.observers:
            self._tell(count, reference, nbytes)

    def move(self, owner: object, successor: object) -> None:
        """Count the bytes of ``owner``, if it is counted, until ``successor`` dies instead."""
        live, reference = self._live, DeathRef(successor, self._on_death)
        for known in getweakrefs(owner):
            if known in live:  # no call follows
                nbytes = live[reference] = live[known]
                del live[known]
                if self.observers:
                    self._tell(self._count, reference, nbytes)
                    self._tell(self._count, known, -nbytes)
                return

    def settle(self) -> None:
        """Subtract the bytes of objects that have died."""
        dead, live = self._dead, self._live
        while True:
            if not dead:
                return
            reference = dead[0]
            del dead[0]
            if reference in live:  # it is not if it was refused
                nbytes = live[reference]
                count = self._count = self._count - nbytes
                del live[reference]
                if self.observers:
                    self._tell(count, reference, -nbytes)

    def reset_peak(self) -> None:
        """Set the peak to the present count."""
        self.settle()
        self.peak = self._count

    def make_room(self, nbytes: int) -> None:
        """Called where ``nbytes`` more would exceed the limit; the count is then tried again.

        Raises:
            MemoryError: there is no room.
        """
        raise MemoryError(
            f"memory is limited to {self.limit} bytes: {nbytes} more were asked for with "
            f"{self._count} allocated; drop arrays first, or raise the limit"
        )

    def living(self) -> list[tuple[DeathRef, int]]:
        """Return a reference to each counted object, and its bytes."""
        self.settle()
        return list(self._live.copy().items())

    def _tell(self, count: int, reference: DeathRef, nbytes: int) -> None:
        for observer in self.observers.copy().values():
            observer(count, reference, nbytes)
