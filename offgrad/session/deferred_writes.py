"""Deferred writes: arrays that are not written while the program references their memory anyway.

Inputs, targets, masks and buffers stay in memory as long as the program has them. The session
references their storage weakly, and its successor, which keeps the memory: once the program has
dropped the storage, the session writes the memory with the next save or backward pass. Before an
in-place change the arrays are written, so that backward gets the saved values.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from weakref import ref

from offgrad_storage import AbstractArrayStore, Handle

from offgrad import memory
from offgrad.memory import Storage
from offgrad.memory.registry import WeakRegistry
from offgrad.session.saved_array import SavedArray, StorageRange
from offgrad.session.states import Deferred, Stored

_MIN_TO_PRUNE = 64


class _StorageRef(ref[Storage]):
    """A weak reference to the program's storage, and one to the `SharedStorage`."""

    shared: "ref[SharedStorage] | None" = None


class SharedStorage:
    """A storage of the program at one version, shared with the saved arrays in it.

    It is freed with the last of them.

    Attributes:
        storage: a weak reference to the program's storage.
        version: of the storage, when the arrays were saved.
        arrays: the saved arrays.
    """

    __slots__ = (
        "__weakref__",
        "_is_adopted",
        "_successor",
        "_writes",
        "arrays",
        "storage",
        "version",
    )

    def __init__(self, storage: Storage, writes: "DeferredWrites") -> None:
        self.version = storage.version
        self.arrays: WeakRegistry[SavedArray] = WeakRegistry()
        self._successor = storage.make_successor()
        self._is_adopted = False
        self._writes = writes
        self.storage = _StorageRef(storage, writes.on_release)
        self.storage.shared = ref(self)

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
                saved.enter(deferred._replace(data=memory.copy(deferred.data), begin=None))

    def adopt(self) -> Storage | None:
        """Return the memory, as the session's own, once the program has dropped it; else None."""
        if self.storage() is not None:
            return None
        if not self._is_adopted:
            for saved in self.arrays:
                deferred = saved.deferred
                if deferred is not None and deferred.begin is not None:
                    saved.note_copy(self._successor, deferred.begin)
            self._is_adopted = True
        return self._successor


class DeferredWrites:
    """All deferred writes of one session. For use with its lock held.

    Attributes:
        released: references to storages that the program has dropped.
        on_release: appends to it; called when a storage dies, at any moment. A C function, which
            no Ctrl-C interrupts.

    Args:
        lock: the session's.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.released: deque[_StorageRef] = deque()
        self.on_release: Callable[[Any], object] = self.released.append
        self._lock = lock
        self._by_storage: dict[int, ref[SharedStorage]] = {}
        self._max_storages = _MIN_TO_PRUNE
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
        known = self._by_storage.get(storage.uid)
        shared = None if known is None else known()
        if shared is None or shared.version != storage.version:
            shared = SharedStorage(storage, self)
            storage.add_pending_write(shared)
            self._prune()
            self._by_storage[storage.uid] = ref(shared)
        shared.arrays.add(saved)
        begin = part.begin if part.can_be_shared else None
        saved.enter(Deferred(shared, part.data, begin, store, attributes))
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
            reference = self.released[0].shared
            shared = None if reference is None else reference()
            storage = None if shared is None else shared.adopt()
            if shared is not None and storage is not None:
                for saved in shared.arrays:
                    try:
                        handle = self._write(saved)
                    except memory.OutOfMemoryError:
                        return
                    if handle is not None:
                        yield storage, handle
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
            storage = shared.storage() or shared.adopt()
            if storage is not None:
                self._by_storage.pop(storage.uid, None)  # later saves share the changed memory
            for saved in shared.arrays:
                handle = self._write(saved)
                if handle is not None:
                    if storage is not None:  # if this wait is interrupted, the next change waits
                        storage.add_pending_write(handle)
                    handle.wait_captured()

    def _prune(self) -> None:
        """Forget storages without saved arrays, once there are many."""
        if len(self._by_storage) >= self._max_storages:
            self._by_storage = {
                uid: known for uid, known in self._by_storage.items() if known() is not None
            }
            self._max_storages = max(_MIN_TO_PRUNE, 2 * len(self._by_storage))

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
            handle = deferred.store.put(data, attributes=deferred.attributes)
        finally:
            self._writing = was_writing
            saved.ledger.waited_to_write(saved.row, time.perf_counter() - began)
        saved.enter(Stored(handle))
        saved.ledger.wrote(saved)
        return handle
