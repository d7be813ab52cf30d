"""The states of stored arrays, and the transitions between them.

An array that was put is queued, being written, and then stored, failed or cancelled. Its source is
released when it has left the first two states and no read uses it. Its place is freed when its
handle is dead and no I/O is under way there.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from offgrad_storage._checks import check_count
from offgrad_storage.backend import Backend
from offgrad_storage.base import StoreStats
from offgrad_storage.entry import Entry, Pack, State
from offgrad_storage.errors import (
    ForkedStoreError,
    StoreClosedError,
    StoreError,
    as_store_error,
    copy_for_raise,
)
from offgrad_storage.executor.finalizer_lock import FinalizerLock
from offgrad_storage.executor.workers import Workers

Array = NDArray[Any]


class _Process:
    """Counts the forks between this process and the first: cheaper to compare than its number."""

    forks = 0

    def count_fork(self) -> None:
        self.forks += 1


process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process.count_fork)


class EntryStates:
    """All entries of a store, and its figures. Call its methods with the lock held.

    Args:
        backend: moves the bytes.
        workers: the I/O threads.
        inflight_nbytes: bound of the bytes of arrays with a pending write; one larger array may go
            alone.
    """

    def __init__(self, backend: Backend, workers: Workers, inflight_nbytes: int) -> None:
        check_count("inflight_nbytes", inflight_nbytes)
        self.backend = backend
        self._workers = workers
        self._max_inflight_nbytes = inflight_nbytes
        self._forks = process.forks
        self._pid = os.getpid()
        self._lock = FinalizerLock(self._on_handle_dead)
        self._writes: OrderedDict[Entry, None] = OrderedDict()
        self._reads: OrderedDict[Entry, None] = OrderedDict()
        self._free_jobs: deque[Callable[[], object]] = deque()
        self._write_waiters = 0
        self._active = 0  # reads, writes and free jobs under way
        self._arrays_pending = 0  # arrays in flight, without packs
        self._closed = self._abandoned = False
        self._unreported_errors: list[StoreError] = []
        self._entries: dict[int, Entry] = {}  # by serial, if the backend tracks them
        self._figures = StoreStats()

    # ---- space, and arrays in flight

    def _fits_in_flight(self, entry: Entry) -> bool:
        inflight = self._figures.inflight_nbytes
        return not inflight or inflight + entry.nbytes <= self._max_inflight_nbytes

    def _try_reserve(self, entry: Entry) -> None:
        """Have the backend reserve space for ``entry``.

        Raises:
            QuotaExceededError, StoreFullError: it has none.
        """
        try:
            stored_nbytes = self.backend.reserve(entry)
        except OSError as error:
            raise self._store_error(error, "making room", entry) from error
        entry.reserved = True
        self._set_stored_nbytes(entry, stored_nbytes)

    def _set_stored_nbytes(self, entry: Entry, stored_nbytes: int) -> None:
        change = stored_nbytes - entry.stored_nbytes
        self.backend.used_nbytes += change
        if not isinstance(entry, Pack):  # the figures count the arrays in it
            self._figures.stored_nbytes += change
        entry.stored_nbytes = stored_nbytes

    def _register(self, entry: Entry) -> None:
        """Count ``entry``, whose bytes are in the store or in flight from now on."""
        figures = self._figures
        figures.puts += 1
        figures.live_handles += 1
        figures.logical_nbytes += entry.nbytes
        if self.backend.tracks_entries:
            self._entries[entry.serial] = entry

    def _unregister(self, entry: Entry) -> None:
        self._figures.live_handles -= 1
        self._figures.logical_nbytes -= entry.nbytes

    def _hold_source(self, entry: Entry, source: Array) -> None:
        """Keep ``source`` in flight, to write it."""
        entry.source = source
        self._figures.inflight_nbytes += entry.nbytes
        self._arrays_pending += 1

    def _release_source(self, entry: Entry) -> None:
        if entry.captured or entry.pins or entry.state in (State.QUEUED, State.WRITING):
            return
        entry.source = None  # before any thread is notified
        entry.captured = True
        self._figures.inflight_nbytes -= entry.nbytes
        self._arrays_pending -= not isinstance(entry, Pack)
        self._lock.notify_all()

    def _start_thread(self, entry: Entry) -> None:
        try:
            self._workers.start_thread()
        except RuntimeError as error:
            raise self._store_error(error, "starting an I/O thread", entry) from error

    def _wait_for_write(self, entry: Entry | None) -> None:
        """Wait until a write ends, or something else changes.

        Raises:
            StoreClosedError: the store was closed meanwhile, and has not captured ``entry``.
        """
        began = time.perf_counter()
        self._write_waiters += 1
        try:
            self._lock.wait()
        finally:
            self._write_waiters -= 1
            self._figures.put_stall_seconds += time.perf_counter() - began
        if self._closed and (entry is None or (entry.source is None and not entry.captured)):
            raise self._closed_error(entry)

    # ---- writes

    def _begin_write(self, entry: Entry) -> None:
        entry.state = State.WRITING
        entry.busy += 1
        self._active += 1

    def _record_written(self, entry: Entry, stored_nbytes: int) -> None:
        """The backend has written ``entry`` in ``stored_nbytes``."""
        try:
            self.backend.shrink(entry, stored_nbytes)
        except Exception as error:  # the array itself is stored
            self._unreported_errors.append(self._store_error(error, "freeing space", entry))
        self._set_stored_nbytes(entry, stored_nbytes)
        if not isinstance(entry, Pack):
            self._figures.written_nbytes += stored_nbytes

    def _end_write(self, entry: Entry, error: StoreError | None) -> None:
        self._active -= 1
        entry.busy -= 1
        entry.state = State.STORED if error is None else State.FAILED
        entry.error = error
        if error is not None and not isinstance(error, StoreClosedError):
            self._unreported_errors.append(error)
        self._release_source(entry)
        self._free_if_unused(entry)
        self._lock.notify_all()

    def _cancel_write(self, entry: Entry) -> None:
        if self._writes.pop(entry, self) is None:
            entry.state = State.CANCELLED
            self._release_source(entry)

    def _cancel_all(self) -> None:
        for entry in list(self._writes):
            self._cancel_write(entry)
        for entry in self._reads:
            entry.fetch = None  # no thread will fill it: `cancel_prefetch` must not wait for one
        self._reads.clear()
        self._free_jobs.clear()

    # ---- reads

    def _begin_read(self, entry: Entry) -> Array | None:
        """The array to read from, pinned; None if the bytes are in the backend."""
        if entry.error is not None:
            raise self._report(entry.error)
        self._active += 1
        if entry.source is not None:
            entry.pins += 1
        else:
            entry.busy += 1
        return entry.source

    def _end_read(self, entry: Entry, pinned: bool) -> None:
        self._active -= 1
        if pinned:
            entry.pins -= 1
            self._release_source(entry)
        else:
            entry.busy -= 1
        self._free_if_unused(entry)
        self._lock.notify_all()

    def _count_get(self, entry: Entry, since: float) -> None:
        """Count a get of ``entry`` that began at ``since`` and ends now."""
        figures = self._figures
        figures.gets += 1
        figures.read_nbytes += entry.nbytes
        figures.get_stall_seconds += time.perf_counter() - since

    # ---- the end of an entry

    def _on_handle_dead(self, entry: Entry) -> None:
        """The handle of ``entry`` has died. The garbage collector may be calling: never raises."""
        entry.dropped = True
        if not self.backend.persistent:
            self._entries.pop(entry.serial, None)
        if not entry.reserved:
            return
        self._unregister(entry)
        if self._reads.pop(entry, self) is None:
            entry.fetch = None
        if not self.backend.persistent:
            self._cancel_write(entry)
            self._free_if_unused(entry)

    def _free_if_unused(self, entry: Entry) -> None:
        if not (entry.dropped and entry.reserved) or entry.busy or entry.pins:
            return
        if self.backend.persistent or self._closed:
            return
        self._free_place(entry)
        self._lock.notify_all()

    def _free_place(self, entry: Entry) -> None:
        entry.reserved = False
        self._set_stored_nbytes(entry, 0)
        try:
            free_job = self.backend.free(entry)
        except Exception as error:  # the garbage collector may be calling
            self._unreported_errors.append(self._store_error(error, "freeing space", entry))
            return
        if free_job is not None:
            self._free_jobs.append(free_job)
            self._workers.wake()

    # ---- errors; these need no lock

    def _is_forked(self) -> bool:
        return self._forks != process.forks

    def _check_process(self, entry: Entry | None) -> None:
        if self._is_forked():
            raise ForkedStoreError(
                f"the store belongs to process {self._pid}, this is its fork {os.getpid()}",
                store=self.backend.name,
                handle=str(entry or ""),
                fix="Make another store in the child, or use this one in the parent only",
            )

    def _check_open(self, entry: Entry | None) -> None:
        if self._closed:
            raise self._closed_error(entry)

    def _closed_error(self, entry: Entry | None) -> StoreClosedError:
        return StoreClosedError(
            "the store is closed",
            store=self.backend.name,
            handle=str(entry or ""),
            fix="Close a store after the last use of its handles",
        )

    def _store_error(self, error: BaseException, action: str, entry: Entry | None) -> StoreError:
        handle = "" if entry is None else str(entry)
        return as_store_error(error, action, store=self.backend.name, handle=handle)

    def _report(self, error: StoreError) -> StoreError:
        """A copy of ``error`` to raise; ``close`` need not raise it any more."""
        if error in self._unreported_errors:
            self._unreported_errors.remove(error)
        return copy_for_raise(error)
