"""WeakRegistry: a set of weak references that threads may add to and iterate over at once."""

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """Holds objects weakly, by identity.

    Unlike a WeakSet it may be iterated over while another thread adds an object: each step is one
    dict operation, and the interpreter makes these atomic.
    """

    def __init__(self) -> None:
        self._references: dict[int, ref[T]] = {}

    def add(self, item: T) -> None:
        """Add `item` until it dies."""
        references, key = self._references, id(item)
        references[key] = ref(item, lambda _: references.pop(key, None))

    def __iter__(self) -> Iterator[T]:
        # copy() is one step; list() is not: a garbage collection inside it may remove dead objects.
        for reference in self._references.copy().values():
            item = reference()
            if item is not None:
                yield item
