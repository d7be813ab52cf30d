"""Cached storage: memory that a budget holds for saved arrays until they are in a store.

The budget counts memory until it is free. A weak reference to its owner is cleared a moment
earlier. So an owner of memory has a token, too: a small array in a slot that Python clears after
the memory's. The budget watches the token. The garbage collector does not track arrays: it would
clear weak references to them earlier, too.
"""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np
from offgrad_storage import AbstractArrayStore, Handle, StoreError
from offgrad_storage.interrupts import MaskedLock

from offgrad.memory import Storage
from offgrad.session.saved_array import Array, SavedArray, address
from offgrad.session.states import InMemory, Stored

if TYPE_CHECKING:
    from offgrad.session.memory_budget import MemoryBudget


class CachedArray(NamedTuple):
    """A saved array, and the data to write for it."""

    saved: ref[SavedArray]
    data: Array
    attributes: Mapping[str, object]


class _Source:
    """Owns the memory of an array given to a store. Slots are cleared in alphabetical order."""

    __slots__ = ("__array_interface__", "base", "token")

    def __init__(self, data: Array, token: Array) -> None:
        self.__array_interface__ = data.reshape(-1).view("u1").__array_interface__
        self.base = data
        self.token = token


class StoreWrite:
    """A write, and the memory given to the store for it.

    Attributes:
        handle: a weak reference to the handle; None until the store has returned it.
    """

    __slots__ = ("_token", "handle")

    def __init__(self) -> None:
        self.handle: ref[Handle] | None = None
        self._token: ref[Array] | None = None

    def source(self, data: Array) -> Array:
        """Return the C-contiguous `data` as a new array, for the store alone."""
        token = np.empty(0)
        self._token = ref(token)
        return np.ndarray(data.shape, data.dtype, np.asarray(_Source(data, token)))

    def wait(self, store: AbstractArrayStore) -> None:
        """Wait until the write has ended."""
        handle = None if self.handle is None else self.handle()
        if handle is not None:
            handle.wait_written()
        elif self.is_pending:
            store.flush()

    @property
    def is_pending(self) -> bool:
        """Whether the store holds the memory: also of a dead handle, if its write had begun."""
        if self._token is None or self._token() is None:
            return False
        handle = None if self.handle is None else self.handle()
        return handle is None or handle.is_pending


class Room(ref[Array]):
    """The room that one cached storage takes in its budget, which holds this object strongly.

    The callback is a C function. Python drops an interrupt in a Python callback, and the rest of
    the callback.

    Attributes:
        cached: a weak reference to the cached storage.
        nbytes: the size of the room; 0 while an eviction counts it.
        uid: of the storage.
    """

    __slots__ = ("cached", "nbytes", "uid")

    cached: "ref[CachedStorage]"
    nbytes: int
    uid: int


class Eviction:
    """Memory that is being written, still held by its arrays or by the store alone.

    Attributes:
        cached: a weak reference to the cached storage.
        nbytes: the size of the memory.
        putting: held by the thread that puts the arrays in the store, until all are put.
        is_put: whether they are.
        writes: of these arrays, not yet seen done.
    """

    __slots__ = ("cached", "is_put", "nbytes", "putting", "writes")

    def __init__(self, cached: "CachedStorage") -> None:
        self.cached = ref(cached)
        self.nbytes = cached.room.nbytes
        self.putting = MaskedLock()
        self.is_put = False
        self.writes = cached.writes

    def look(self) -> None:
        """Drop writes that are done, or have failed, up to the first pending one."""
        while self.writes and not self.writes[0].is_pending:
            self.writes.popleft()


class CachedStorage:
    """The memory of a storage, held for the saved arrays in it. It is freed with the last of them.

    Slots are cleared in alphabetical order.

    Attributes:
        arrays: the dirty arrays: not yet put in the store.
        budget: holds the memory.
        evicted: the arrays put in the store, whose writes may be pending.
        eviction: counts the memory, from the first put to the end of the last write.
        failure: why one of the last writes failed; None if none did.
        room: in the budget.
        storage: the memory.
        token: see above.
        writes: the writes of the evicted arrays.
    """

    __slots__ = (
        "__weakref__", "arrays", "budget", "evicted", "eviction", "failure", "room", "storage",
        "token", "writes",
    )  # fmt: skip

    def __init__(self, storage: Storage, budget: "MemoryBudget", freed: deque[Any]) -> None:
        self.token = np.empty(0)
        self.storage = storage
        self.room = Room(self.token, freed.append)
        self.room.cached = ref(self)
        self.room.nbytes = storage.root.nbytes
        self.room.uid = storage.uid
        self.arrays: list[CachedArray] = []
        self.evicted: list[CachedArray] = []
        self.eviction: Eviction | None = None
        self.failure: StoreError | None = None
        self.writes: deque[StoreWrite] = deque()
        self.budget = budget

    def clear(self) -> None:
        """Write all arrays, unless they are written, and wait for that.

        Raises:
            StoreError: some cannot be written, and stay.
        """
        with self.budget.lock:
            self.budget.clear(self)

    def raise_failure(self) -> None:
        """Raise, once, why one of the last writes failed."""
        failure, self.failure = self.failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # this frame would hold the exception that holds it

    def end_writes(self) -> None:
        """Once all writes are done, drop the written arrays; those that failed become dirty."""
        evicted: list[tuple[CachedArray, SavedArray, Stored, StoreError | None]] = []
        for array in self.evicted:
            saved = array.saved()
            if saved is not None and saved.stored is not None:
                evicted.append((array, saved, saved.stored, _failure(saved.stored.handle)))
        # Below no store is called, so that nothing is interrupted.
        for array, saved, stored, failure in evicted:
            if failure is None:
                saved.enter(stored)
                continue
            self.failure = failure
            self.arrays.append(array)
            saved.enter(InMemory(self))
            saved.ledger.failed_to_write(saved)
            saved.note_copy(self.storage, address(array.data) - address(self.storage.root))
        self.evicted, self.writes = [], deque()


def _failure(handle: Handle) -> StoreError | None:
    """Return the error of a failed write."""
    try:
        handle.check()
    except StoreError as error:
        return error.with_traceback(None)  # a traceback would hold memory
    return None
