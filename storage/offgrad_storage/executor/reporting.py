"""The errors of a store: each is raised once, by the call that meets it, a later put or ``close``.

An array whose write failed stays in memory, and the next put raises its error. The write is tried
once more at ``flush``, and where puts need the memory.
"""

from __future__ import annotations

import os

from offgrad_storage.backend import Backend
from offgrad_storage.entry import Entry, State
from offgrad_storage.errors import (
    ForkedStoreError,
    StoreClosedError,
    StoreError,
    as_store_error,
    copy_for_raise,
)


class Errors:
    """Makes the errors of a store, and keeps them until a call has raised them.

    Call its methods with the table's lock held, except for those that only make an error.

    Args:
        backend: moves the bytes.

    Attributes:
        unreported: errors that no call has raised.
        failed_writes: entries in the state FAILED; with the error until a call has raised it.
        failed_nbytes: bytes of memory that these hold.
    """

    def __init__(self, backend: Backend) -> None:
        self.unreported: list[StoreError] = []
        self.failed_writes: dict[Entry, StoreError | None] = {}
        self.failed_nbytes = 0
        self._told: set[Entry] = set()  # retried after a call has raised their error
        self._backend = backend
        self._pid = os.getpid()

    # ---- making an error; these need no lock

    def wrap(self, error: BaseException, action: str, entry: Entry | None) -> StoreError:
        """``error`` as one of this store."""
        handle = "" if entry is None else str(entry)
        return as_store_error(error, action, store=self._backend.name, handle=handle)

    def closed(self, entry: Entry | None) -> StoreClosedError:
        """The error of a call after ``close``."""
        return StoreClosedError(
            "the store is closed",
            store=self._backend.name,
            handle=str(entry or ""),
            fix="Close a store after the last use of its handles",
        )

    def forked(self, entry: Entry | None) -> ForkedStoreError:
        """The error of a call in a fork of the process that made the store."""
        return ForkedStoreError(
            f"the store belongs to process {self._pid}, this is its fork {os.getpid()}",
            store=self._backend.name,
            handle=str(entry or ""),
            fix="Make another store in the child, or use this one in the parent only",
        )

    # ---- raising it once

    def report(self, error: StoreError) -> StoreError:
        """A copy of ``error`` to raise; neither ``close`` nor a put need raise it any more."""
        if error in self.unreported:
            self.unreported.remove(error)
        for entry, failure in self.failed_writes.items():
            if failure is error:
                self.failed_writes[entry] = None
        return copy_for_raise(error)

    def raise_failures(self, entry: Entry) -> None:
        """Raise the error of an earlier write that failed, once, from the put of ``entry``."""
        errors = [error for error in self.failed_writes.values() if error is not None]
        if errors:
            self.failed_writes = dict.fromkeys(self.failed_writes)
            if not self._backend.persistent:  # else the data will be missing: close raises it, too
                for error in errors:
                    self.report(error)
            raise errors[0].for_array(str(entry)) from errors[0].__cause__

    # ---- failed writes

    def end_write(self, entry: Entry, error: StoreError | None) -> StoreError | None:
        """The write of ``entry`` has ended; return the error that the next put should raise."""
        is_told = entry in self._told
        self._told.discard(entry)
        if error is None:
            return None
        entry.error = error
        if not (is_told or isinstance(error, StoreClosedError)):
            self.unreported.append(error)
        return None if is_told else error

    def add_failed(self, entry: Entry, error: StoreError | None) -> None:
        """The array of ``entry`` stays in memory; ``error`` is for the next put."""
        self.failed_writes[entry] = error
        self.failed_nbytes += entry.held_nbytes

    def retry(self, entry: Entry) -> None:
        """The failed write of ``entry`` is tried once more: its error does not matter."""
        is_told = self.failed_writes[entry] is None and not self._backend.persistent
        if entry.error is not None:
            self.report(entry.error)
        entry.error = None
        self.forget_failed(entry)
        if is_told:
            self._told.add(entry)

    def forget_failed(self, entry: Entry) -> StoreError | None:
        """Forget the failed write of ``entry``; return its error if no call has raised it."""
        if entry.state is not State.WRITING:  # else `end_write` needs it
            self._told.discard(entry)
        if entry not in self.failed_writes:
            return None
        self.failed_nbytes -= entry.held_nbytes
        return self.failed_writes.pop(entry)

    def clear_failed(self) -> None:
        """The store is closed: forget all failed writes."""
        self.failed_writes.clear()
        self.failed_nbytes = 0
