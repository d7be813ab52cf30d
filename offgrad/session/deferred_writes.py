"""Loans: what is saved for backward and not written, since the program holds it anyway.

Inputs, targets, masks and buffers stay in memory as long as somebody else has them. Their storage
is held weakly and makes the loan its heir: when it dies, the memory is due, and goes to the store
as soon as the session does something. A change in place has it written before, so that backward
gets what was saved.
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
from offgrad.session.layout import Array
from offgrad.session.saved_array import Entry


class Loan:
    """The memory of a storage, as it is at one version, lent to the entries in it.

    It goes with the last of them.
    """

    __slots__ = ("__weakref__", "_loans", "entries", "left", "storage", "version")

    def __init__(self, storage: Storage, loans: "Loans") -> None:
        self.storage = ref(storage)
        self.version = storage.version
        self.entries: WeakRegistry[Entry] = WeakRegistry()
        self.left: Storage | None = None  # the memory, once nobody else holds it
        self._loans = loans

    @property
    def captured(self) -> bool:
        """False: it lives no longer than some entry needs the memory."""
        return False

    def wait_captured(self) -> None:
        """Have all entries written."""
        self._loans.call_in(self)

    def copy(self) -> None:
        """Have all entries keep a copy of their own."""
        for entry in self.entries:
            lent = entry.lent
            if lent is not None:
                entry.lent = lent._replace(data=memory.copy(lent.data), begin=None)

    def adopt(self, storage: Storage) -> None:
        """Nobody else holds the memory any more: it is due. Called by a finalizer."""
        for entry in self.entries:
            lent = entry.lent
            if lent is not None and lent.begin is not None:
                entry.is_also_in(storage, lent.begin)
        self.left = storage
        self._loans.due.append(ref(self))


class Lent(NamedTuple):
    """What is lent to an entry.

    Attributes:
        loan: the memory.
        data: the part of it, with its elements in the order of memory.
        begin: its first byte; None if its bytes do not follow each other there.
        store: where it goes when it is due.
        facts: what the store is told.
    """

    loan: Loan
    data: Array
    begin: int | None
    store: AbstractArrayStore
    facts: Mapping[str, object]

    def copy(self) -> tuple[Storage, Array]:
        """Return a copy of the elements."""
        data = memory.copy(self.data)
        return Storage(data), data


class Loans:
    """All loans of one session. For use with its lock held.

    Attributes:
        due: what nobody else holds any more; finalizers, which cannot take a lock, append to it.

    Args:
        lock: the session's.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.due: deque[ref[Loan]] = deque()
        self._lock = lock
        self._by_storage: WeakValueDictionary[int, Loan] = WeakValueDictionary()
        self._writing = False
        self._process = os.getpid()

    def lend(
        self,
        entry: Entry,
        storage: Storage,
        data: Array,
        begin: int | None,
        store: AbstractArrayStore,
        facts: Mapping[str, object],
    ) -> None:
        """Lend `data`, a part of `storage`, to `entry`."""
        loan = self._by_storage.get(storage.uid)
        if loan is None or loan.version != storage.version:
            loan = self._by_storage[storage.uid] = Loan(storage, self)
            storage.add_adopter(loan)
        loan.entries.add(entry)
        entry.lent = Lent(loan, data, begin, store, facts)
        if begin is not None:
            entry.is_also_in(storage, begin)

    def settle(self) -> Iterator[tuple[Storage, Handle]]:
        """Begin to write what is due; give the memory of each write.

        What a store has no memory for stays where it is, and due.

        Raises:
            StoreError: as the store says it; what is not written stays due.
        """
        # A store that asks for memory asks for relief; in a fork the store is the parent's.
        if self._writing or os.getpid() != self._process:
            return
        while self.due:
            loan = self.due[0]()
            if loan is not None and loan.left is not None:
                for entry in loan.entries:
                    try:
                        handle = self._write(entry)
                    except memory.OutOfMemoryError:
                        return
                    if handle is not None:
                        yield loan.left, handle
            self.due.popleft()

    def call_in(self, loan: Loan) -> None:
        """Write all entries of `loan`; when this returns its memory may change.

        Raises:
            StoreError: as the store says it; what is not written stays lent.
        """
        if os.getpid() != self._process:
            loan.copy()  # the store is the parent's, and the lock may be held by a thread of it
            return
        with self._lock:
            storage = loan.left or loan.storage()
            if storage is not None:
                self._by_storage.pop(storage.uid, None)  # later entries wait for a change anew
            for entry in loan.entries:
                handle = self._write(entry)
                if handle is not None:
                    if storage is not None:  # whatever interrupts this wait, the next try waits
                        storage.add_pending_write(handle)
                    handle.wait_captured()

    def _write(self, entry: Entry) -> Handle | None:
        """Begin to write `entry`, unless it is written."""
        lent, before = entry.lent, self._writing
        if lent is None:
            return None
        self._writing = True
        began = time.perf_counter()
        try:
            # A view of its own, or a copy of what does not lie together.
            data = lent.data.view() if lent.begin is not None else memory.copy(lent.data)
            entry.stored = lent.store.put(data, attributes=lent.facts)
        finally:
            self._writing = before
            entry.tally.waited_to_write(time.perf_counter() - began)
        entry.tally.wrote(id(entry), entry.stored)
        entry.lent = None
        return entry.stored
