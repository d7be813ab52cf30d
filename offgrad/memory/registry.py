"""WeakRegistry: a set of weak references that threads may add to and iterate over at once."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """Holds objects weakly. They must be hashable by identity.

    Unlike a WeakSet it may be iterated over while another thread adds an object, and no code of its
    own runs when one dies (see `offgrad_storage.memory.counter`): the next `add` forgets it.
    """

    __slots__ = ("_dead", "_on_death", "_references")

    def __init__(self) -> None:
        self._references: dict[ref[T], None] = {}
        self._dead: deque[ref[T]] = deque()
        self._on_death: Callable[[ref[T]], object] = self._dead.append

    def add(self, item: T) -> None:
        """Add `item` until it dies."""
        dead, references = self._dead, self._references
        references[ref(item, self._on_death)] = None
        while True:
            if not dead:
                return
            # No call in between: neither a signal nor another thread.
            reference = dead[0]
            del references[reference], dead[0]

    def __iter__(self) -> Iterator[T]:
        # copy() is one step; list() is not: a garbage collection may begin inside it.
        for reference in self._references.copy():
            item = reference()
            if item is not None:
                yield item
