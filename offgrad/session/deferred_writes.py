"""Deferred writes: arrays that are not written while the program references their memory anyway.

Inputs, targets, masks and buffers stay in memory as long as the program has them. The session
references their storage weakly and is its adopter: when the program drops it, the session gets the
memory and writes it with the next save or backward pass. Before an in-place change the arrays are
written, so that backward gets the saved values.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary, ref

from offgrad_storage import AbstractArrayStore, Handle

from offgrad import memory
from offgrad.memory import Storage
from offgrad.memory.registry import WeakRegistry
from offgrad.session.saved_array import Array, SavedArray, StorageRange


class SharedStorage:
    """A storage of the program at one version, shared with the saved arrays in it.

    It is freed with the last of them.

    Attributes:
        storage: a weak reference to the program's storage.
        version: of the storage, when the arrays were saved.
        arrays: the saved arrays.
        owned: the memory, once the program has dropped it.
    """

    __slots__ = ("__weakref__", "_writes", "arrays", "owned", "storage", "version")

    def __init__(self, storage: Storage, writes: "DeferredWrites") -> None:
        self.storage = ref(storage)
        self.version = storage.version
        self.arrays: WeakRegistry[SavedArray] = WeakRegistry()
        self.owned: Storage | None = None
        self._writes = writes

    @property
    def captured(self) -> bool:
        """False: while it lives, a saved array needs the memory."""
        return False

    def wait_captured(self) -> None:
        """Write all arrays, and wait for that."""
        self._writes.write_now(self)

    def copy(self) -> None:
        """Give each array a copy of its own."""
        for saved in self.arrays:
            deferred = saved.deferred
            if deferred is not None:
                saved.deferred = deferred._replace(data=memory.copy(deferred.data), begin=None)

    def adopt(self, storage: Storage) -> None:
        """Take over the memory that the program has dropped. Called by a finalizer."""
        for saved in self.arrays:
            deferred = saved.deferred
            if deferred is not None and deferred.begin is not None:
                saved.note_copy(storage, deferred.begin)
        self.owned = storage
        self._writes.released.append(ref(self))


class DeferredWrite(NamedTuple):
    """The write of one saved array, for later.

    Attributes:
        shared: the memory.
        data: the array's part of it, its elements in memory order.
        begin: the first byte of that part; None if its bytes have gaps.
        store: where to write.
        attributes: facts for the store.
    """

    shared: SharedStorage
    data: Array
    begin: int | None
    store: AbstractArrayStore
    attributes: Mapping[str, object]

    def copy(self) -> tuple[Storage, Array]:
        """Return a copy of the elements."""
        data = memory.copy(self.data)
        return Storage(data), data


class DeferredWrites:
    """All deferred writes of one session. For use with its lock held.

    Attributes:
        released: memory that the program has dropped; finalizers, which cannot take a lock, append
            to it.

    Args:
        lock: the session's.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.released: deque[ref[SharedStorage]] = deque()
        self._lock = lock
        self._by_storage: WeakValueDictionary[int, SharedStorage] = WeakValueDictionary()
        self._writing = False
        self._process = os.getpid()

    def defer(
        self,
        saved: SavedArray,
        part: StorageRange,
        store: AbstractArrayStore,
        attributes: Mapping[str, object],
    ) -> None:
        """Write `part` for `saved` once the program has dropped its storage."""
        storage = part.storage
        shared = self._by_storage.get(storage.uid)
        if shared is None or shared.version != storage.version:
            shared = self._by_storage[storage.uid] = SharedStorage(storage, self)
            storage.add_adopter(shared)
        shared.arrays.add(saved)
        begin = part.begin if part.can_be_shared else None
        saved.deferred = DeferredWrite(shared, part.data, begin, store, attributes)
        if begin is not None:
            saved.note_copy(storage, begin)

    def write_released(self) -> Iterator[tuple[Storage, Handle]]:
        """Begin the writes of released memory; yield the memory and handle of each.

        If a store has no memory for a write, the rest stays released.

        Raises:
            StoreError: of the store; arrays that are not written stay released.
        """
        # A store that needs memory calls back here; in a fork the store is the parent's.
        if self._writing or os.getpid() != self._process:
            return
        while self.released:
            shared = self.released[0]()
            if shared is not None and shared.owned is not None:
                for saved in shared.arrays:
                    try:
                        handle = self._write(saved)
                    except memory.OutOfMemoryError:
                        return
                    if handle is not None:
                        yield shared.owned, handle
            self.released.popleft()

    def write_now(self, shared: SharedStorage) -> None:
        """Write all arrays of `shared` and wait, so that its memory may change.

        Raises:
            StoreError: of the store; arrays that are not written stay deferred.
        """
        if os.getpid() != self._process:
            shared.copy()  # the store is the parent's, whose threads may hold the lock
            return
        with self._lock:
            storage = shared.owned or shared.storage()
            if storage is not None:
                self._by_storage.pop(storage.uid, None)  # later saves share the changed memory
            for saved in shared.arrays:
                handle = self._write(saved)
                if handle is not None:
                    if storage is not None:  # if this wait is interrupted, the next change waits
                        storage.add_pending_write(handle)
                    handle.wait_captured()

    def _write(self, saved: SavedArray) -> Handle | None:
        """Begin to write `saved`; return None if it is written already."""
        deferred, was_writing = saved.deferred, self._writing
        if deferred is None:
            return None
        self._writing = True
        began = time.perf_counter()
        try:
            # The store gets a view of its own, or a copy if the bytes have gaps.
            is_dense = deferred.begin is not None
            data = deferred.data.view() if is_dense else memory.copy(deferred.data)
            saved.stored = deferred.store.put(data, attributes=deferred.attributes)
        finally:
            self._writing = was_writing
            saved.ledger.waited_to_write(saved.row, time.perf_counter() - began)
        saved.ledger.wrote(saved)
        saved.deferred = None
        return saved.stored
