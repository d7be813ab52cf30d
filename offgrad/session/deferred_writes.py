"""Deferred writes: arrays that are not written while the program references their memory anyway.

Inputs, targets, masks and buffers stay in memory as long as the program has them. The session
references their storage weakly, and its successor, which keeps the memory: once the program has
dropped the storage, the session writes the memory with the next save or backward pass. Before an
in-place change the arrays are written, so that backward gets the saved values.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any
from weakref import ref

from offgrad_storage import AbstractArrayStore, Handle
from offgrad_storage.interrupts import MaskedLock, masked

from offgrad import memory
from offgrad.memory import Storage
from offgrad.memory.registry import WeakRegistry
from offgrad.session.saved_array import Array, SavedArray, StorageRange
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
        uid: of the storage.
        version: of the storage, when the arrays were saved.
        arrays: the saved arrays.
        process: that saved them; in a fork the stores are the parent's.
    """

    __slots__ = (
        "__weakref__",
        "_is_adopted",
        "_successor",
        "_writes",
        "arrays",
        "process",
        "storage",
        "uid",
        "version",
    )

    def __init__(self, storage: Storage, writes: "DeferredWrites") -> None:
        self.uid, self.version, self.process = storage.uid, storage.version, os.getpid()
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
    """All deferred writes of one session. For use without its lock.

    Stores take an array without the lock, since that may wait. Two threads may put the
    same array: the first handle counts.

    Attributes:
        released: references to storages that the program has dropped.
        on_release: appends to it; called when a storage dies, at any moment. A C function, which
            no Ctrl-C interrupts.

    Args:
        lock: the session's.
        wrote: called with the lock held for each write that has begun.
    """

    def __init__(self, lock: MaskedLock, wrote: Callable[[Handle], None]) -> None:
        self.released: deque[_StorageRef] = deque()
        self.on_release: Callable[[Any], object] = self.released.append
        self._lock = lock
        self._wrote = wrote
        self._by_storage: dict[int, ref[SharedStorage]] = {}
        self._max_storages = _MIN_TO_PRUNE
        self._putting: set[int] = set()  # threads

    def defer(
        self,
        saved: SavedArray,
        part: StorageRange,
        store: AbstractArrayStore,
        attributes: Mapping[str, object],
    ) -> None:
        """Write `part` for `saved` once the program has dropped its storage."""
        storage = part.storage
        begin = part.begin if part.can_be_shared else None
        with self._lock:
            known = self._by_storage.get(storage.uid)
            shared = None if known is None else known()
            if shared is None or shared.version != storage.version:
                shared = SharedStorage(storage, self)
                storage.add_pending_write(shared)
                self._prune()
                self._by_storage[storage.uid] = ref(shared)
            shared.arrays.add(saved)
            saved.enter(Deferred(shared, part.data, begin, store, attributes))
            if begin is not None:
                saved.note_copy(storage, begin)

    @property
    def is_putting(self) -> bool:
        """Whether another thread is putting an array in its store."""
        return bool(self._putting - {get_ident()})

    def write_released(self) -> None:
        """Begin the writes of released memory.

        If a store has no memory for a write, the rest stays released.

        Raises:
            StoreError: of the store; arrays that are not written stay released.
        """
        if get_ident() in self._putting:  # the store needs memory, and calls back for it
            return
        while self.released:
            try:
                reference = self.released.popleft()
            except IndexError:  # another thread took it
                return
            try:
                shared = None if reference.shared is None else reference.shared()
                if shared is not None and shared.process == os.getpid():
                    with self._lock:
                        storage = shared.adopt()
                    for saved in shared.arrays:
                        self._write(saved, storage)
            except memory.OutOfMemoryError:
                self.released.appendleft(reference)
                return
            except BaseException:
                self.released.appendleft(reference)
                raise

    def write_now(self, shared: SharedStorage) -> None:
        """Write all arrays of `shared` and wait, so that its memory may change.

        Raises:
            StoreError: of the store; arrays that are not written stay deferred.
        """
        if shared.process != os.getpid():
            shared.copy()
            return
        with masked:  # stores' waits admit interrupts
            with self._lock:
                self._by_storage.pop(shared.uid, None)  # later saves share the changed memory
                storage, arrays = shared.storage() or shared.adopt(), list(shared.arrays)
            for saved in arrays:
                self._write(saved, storage)
            for saved in arrays:
                saved.wait_captured()  # also for a write that another thread began

    def copy(self, saved: SavedArray) -> Array | None:
        """Return a copy of an array whose bytes have gaps; None if it is written by now.

        Another thread that changes the memory meanwhile has the array written first.
        """
        deferred = saved.deferred
        if deferred is None:
            return None
        data = memory.copy(deferred.data)
        with self._lock:
            return data if saved.deferred is deferred else None

    def forget_other_threads(self) -> None:
        """In a forked child: end the work of other threads, which do not exist there."""
        self._putting.intersection_update((get_ident(),))

    def _prune(self) -> None:
        """Forget storages without saved arrays, once there are many."""
        if len(self._by_storage) >= self._max_storages:
            self._by_storage = {
                uid: known for uid, known in self._by_storage.items() if known() is not None
            }
            self._max_storages = max(_MIN_TO_PRUNE, 2 * len(self._by_storage))

    def _write(self, saved: SavedArray, storage: Storage | None) -> None:
        """Begin to write `saved`, which is in `storage`, unless it is written."""
        deferred, thread = saved.deferred, get_ident()
        if deferred is None:
            return
        is_nested = thread in self._putting
        self._putting.add(thread)
        began = time.perf_counter()
        try:
            # The store gets a view of its own, or a copy if the bytes have gaps.
            is_dense = deferred.begin is not None
            data = deferred.data.view() if is_dense else memory.copy(deferred.data)
            handle = deferred.store.put(data, attributes=deferred.attributes)
        finally:
            if not is_nested:
                self._putting.discard(thread)
            with self._lock:
                saved.ledger.waited_to_write(saved.row, time.perf_counter() - began)
        with self._lock:
            if saved.deferred is not deferred:  # another thread was first
                return
            saved.enter(Stored(handle))
            if storage is not None and not handle.captured:  # its next change waits
                storage.add_pending_write(handle)
            saved.ledger.wrote(saved)
            self._wrote(handle)
