"""The end of a store: ``close``, the death of a store that nobody closed, and the exit of Python.

A closed store takes no new work. Its threads end, then ``close`` closes the backend. Without
``close``, the last thread does, and without threads a callback of a weak reference to the store.

All open stores are in a registry, so that the exit of Python closes them: after the program's
threads have ended, and its handlers of ``atexit`` that were registered later.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  (see the end of this file)
import functools
import sys
import threading
import time
import weakref
from typing import Any

from offgrad_storage.errors import StoreError
from offgrad_storage.executor.entry_table import EntryTable
from offgrad_storage.executor.pack_table import PackTable
from offgrad_storage.executor.workers import Workers
from offgrad_storage.interrupts import masked


class Closing:
    """Ends the work of a store, its threads and its backend, once.

    Methods whose names end in ``_locked`` need the table's lock, the others take it.

    Args:
        table: the entries of the store.
        packs: its packs.
        workers: its threads.
        timeout_seconds: ``close`` gives up after so many seconds without an answer of the drive.

    Attributes:
        finished: whether the backend is closed, or ``close`` has given up on it.
    """

    def __init__(
        self, table: EntryTable, packs: PackTable, workers: Workers, timeout_seconds: float
    ) -> None:
        if not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be positive, got {timeout_seconds}")
        self.finished = self._finishing = self._published = False
        self._backend = table.backend
        self._table = table
        self._packs = packs
        self._workers = workers
        self._timeout_seconds = timeout_seconds

    def watch(self, store: object) -> None:
        """End with ``store``, or at exit, unless ``close`` comes first."""
        self._table.store = weakref.ref(store, self._workers.inbox.put)
        _open[weakref.ref(store, _end_abandoned)] = self
        _end_abandoned()

    def close(self) -> None:
        """End all work, join the threads and close the backend; raise unreported errors."""
        table = self._table
        if table.is_forked():
            return
        with masked:
            began = time.monotonic()
            self.begin_close()
            with table.lock:
                while not self.finished:
                    if self._workers.running or table.jobs.under_way or self._packs.open.copying:
                        self._wait_for_answer(began)
                    else:
                        self._finish_locked()
                errors, table.errors.unreported = table.errors.unreported, []
            self._workers.join(1.0)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"also: {other}")
            raise errors[0]

    def begin_close(self) -> None:
        """Refuse new work, cancel writes unless the store is persistent, and end the threads.

        Raises:
            StoreError: another thread has held the lock for too long.
        """
        table = self._table
        with masked:
            if not table.lock.acquire(timeout=min(self._timeout_seconds, threading.TIMEOUT_MAX)):
                raise self._silence(
                    self._timeout_seconds, "another thread waits for it in a call of the backend"
                )
            try:
                if not table.closed:
                    table.handle_deaths()
                    table.closed = True
                    if not self._backend.persistent:
                        table.cancel_all()
                    self._workers.wake_all()
                    table.notify_all()
            finally:
                table.lock.release()

    def _wait_for_answer(self, began: float) -> None:
        """Wait for a change.

        Raises:
            StoreError: no job has ended for too long.
        """
        table = self._table
        table.wait()
        silent = table.jobs.silent_seconds(began)
        if silent < self._timeout_seconds or not table.jobs.under_way:
            return
        table.jobs.gave_up = table.abandoned = True  # the last thread or job closes the backend
        self.finished = True
        table.notify_all()
        self._unregister()
        jobs = ", ".join(map(str, table.jobs.under_way))
        waiting = [str(entry) for entry in table.writes]
        if waiting:
            jobs += f"; {len(waiting)} writes wait for it, first of {waiting[0]}"
        raise self._silence(silent, jobs)

    def _silence(self, seconds: float, jobs: str) -> StoreError:
        return StoreError(
            f"the drive has not answered for {seconds:.0f} seconds while the store was closed: "
            f"{jobs}",
            store=self._backend.name,
            fix="Check the drive, or raise timeout_seconds of the store if it is only slow. The "
            "store's files are freed when the process ends",
        )

    def _finish_locked(self) -> None:
        """No thread and no job is left: publish, close the backend, and release the memory."""
        table, backend = self._table, self._backend
        self._finishing = True
        job = table.jobs.begin("closing", None)  # another thread's close waits for it
        table.lock.release()
        errors = []
        try:
            if backend.persistent and backend.tracks_entries and not self._published:
                self._published = True
                try:
                    backend.publish(table.tracked())
                except Exception as error:
                    errors.append(table.errors.wrap(error, "writing metadata", None))
            try:
                backend.close()
            except Exception as error:
                errors.append(table.errors.wrap(error, "closing", None))
        finally:
            table.lock.acquire()
            table.jobs.end(job)
            table.errors.unreported += errors
            self._packs.release_locked()
            table.release_all()
            self.finished = True
            self._unregister()
            table.notify_all()

    # ---- the end of the threads

    def is_done_locked(self) -> bool:
        """Closed: whether this thread has nothing more to do; seals the packs of a kept store."""
        table = self._table
        if not self._backend.persistent:
            return True
        if self._packs.open.copying or table.has_pending_arrays():
            return False
        self._packs.open.seal_all_locked()
        self._workers.wake_all()
        return not table.pending

    def end_abandoned_locked(self) -> None:
        """Close the backend, once no thread and no job is left to use it."""
        table = self._table
        is_used = self._workers.running or table.jobs.under_way
        if table.abandoned and not (is_used or self._finishing):
            self._finish_locked()

    # ---- the end of a store that nobody closed

    def abandon(self) -> None:
        """The store has died unclosed. Never waits: the last thread closes the backend."""
        table = self._table
        if table.is_forked() or self._workers or self._finishing:
            return  # an inbox tells the threads
        table.closed = table.abandoned = True
        with masked, table.lock:
            if not self.finished:
                self._finish_locked()

    def close_at_exit(self) -> None:
        """After ``begin_close``: close, and print an error that means lost data."""
        try:
            self.close()
        except StoreError as error:
            # A failed write matters only where the data would have outlived the process.
            if self._backend.persistent or self._table.jobs.gave_up:
                _print_at_exit(error)

    def is_forked(self) -> bool:
        """Whether the store belongs to the parent of this process."""
        return self._table.is_forked()

    @property
    def needs_executors(self) -> bool:
        """Whether it must be closed before the threads of ``concurrent.futures`` end."""
        return self._backend.needs_executors

    def _unregister(self) -> None:
        for reference, closing in _open.copy().items():
            if closing is self:
                _open.pop(reference, None)


# By a weak reference to the store of each. A store that dies without threads is closed here.
_open: dict[weakref.ref[Any], Closing] = {}


def _end_abandoned(reference: object = None) -> None:
    """Close the backends of dead stores without threads.

    A callback of weak references, which SIGINT may skip: so the next store looks as well.
    """
    # A copy: the collector may run this again while a list of pairs is made.
    for store, closing in _open.copy().items():
        if store() is None:
            closing.abandon()


def _close_at_exit(are_executors_ending: bool) -> None:
    begun = []
    waits = are_executors_ending and not _is_last_call()
    for closing in list(_open.values()):
        if closing.is_forked() or (waits and not closing.needs_executors):
            continue
        try:
            closing.begin_close()
            begun.append(closing)
        except StoreError as error:
            _print_at_exit(error)
    for closing in begun:
        closing.close_at_exit()


def _is_last_call() -> bool:
    """Whether this process, one of multiprocessing, ends without handlers of ``atexit``."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return False
    main = threading.main_thread()
    return all(each.daemon or each is main for each in threading.enumerate())


def _print_at_exit(error: StoreError) -> None:
    print(f"offgrad_storage: at exit: {error}", file=sys.stderr)


atexit.register(_close_at_exit, False)
# The threads of concurrent.futures end before, in a callback that is called after those registered
# later: so its module is imported first.
getattr(threading, "_register_atexit", atexit.register)(functools.partial(_close_at_exit, True))
