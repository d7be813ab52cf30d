"""Cached storage: memory that a budget holds for saved arrays until they are in a store."""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from offgrad_storage import Handle, StoreError

from offgrad.memory import Storage
from offgrad.session.saved_array import Array, SavedArray, address

if TYPE_CHECKING:
    from offgrad.session.memory_budget import MemoryBudget


class CachedArray(NamedTuple):
    """A saved array, and the data to write for it."""

    saved: ref[SavedArray]
    data: Array
    attributes: Mapping[str, object]


class StoreWrite(NamedTuple):
    """A write, and the array given to the store for it, which nothing else references."""

    handle: ref[Handle]
    source: ref[Array]

    @property
    def is_pending(self) -> bool:
        """Whether the store holds the memory: also of a dead handle, if its write had begun."""
        handle = self.handle()
        return self.source() is not None and not (handle is not None and handle.captured)


class CachedStorage:
    """The memory of a storage, held for the saved arrays in it. It is freed with the last of them.

    Attributes:
        storage: the memory.
        nbytes: its size; 0 while an eviction counts it.
        arrays: the dirty arrays: not yet put in the store.
        evicted: the arrays put in the store, whose writes may be pending.
        writes: the writes of these.
        failure: why one of the last writes failed; None if none did.
    """

    __slots__ = (
        "__weakref__", "_budget", "_freed", "arrays", "evicted", "failure", "nbytes", "storage",
        "writes",
    )  # fmt: skip

    def __init__(self, storage: Storage, budget: "MemoryBudget", freed: deque[int]) -> None:
        self.storage = storage
        self.nbytes = storage.root.nbytes
        self.arrays: list[CachedArray] = []
        self.evicted: list[CachedArray] = []
        self.failure: StoreError | None = None
        self.writes: list[StoreWrite] = []
        self._budget = budget
        self._freed = freed

    def __del__(self) -> None:
        del self.storage, self.arrays, self.evicted  # before the budget counts the memory as free
        self._freed.append(self.nbytes)

    def clear(self) -> None:
        """Write all arrays, unless they are written, and wait for that.

        Raises:
            StoreError: some cannot be written, and stay.
        """
        with self._budget.lock:
            self._budget.clear(self)

    def end_writes(self) -> None:
        """Once all writes are done, drop the written arrays; those that failed become dirty."""
        for array in self.evicted:
            saved = array.saved()
            if saved is None:
                continue
            saved.evicting_from = None
            try:
                saved.handle.check()
            except StoreError as error:
                self.failure = error.with_traceback(None)  # a traceback would hold memory
                self.arrays.append(array)
                saved.cached_in = self
                saved.ledger.failed_to_write(saved)
                saved.note_copy(self.storage, address(array.data) - address(self.storage.root))
        self.evicted, self.writes = [], []
