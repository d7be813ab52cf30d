"""WeakRegistry: the objects of a kind that are alive, for threads that add and look at once."""

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """Holds objects weakly, by identity.

    Unlike a WeakSet it may be iterated over while another thread adds: every step is one operation
    on a dict, which the interpreter makes atomic.
    """

    def __init__(self) -> None:
        self._references: dict[int, ref[T]] = {}

    def add(self, item: T) -> None:
        """Add `item` until it dies."""
        references, key = self._references, id(item)
        references[key] = ref(item, lambda _: references.pop(key, None))

    def __iter__(self) -> Iterator[T]:
        # A copy is one step; list() is not: a garbage collection within it may remove what died.
        for reference in self._references.copy().values():
            item = reference()
            if item is not None:
                yield item
