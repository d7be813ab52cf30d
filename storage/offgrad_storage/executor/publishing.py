"""Publishing: the backend makes the stored arrays readable for others, as a Zarr group is.

It sees arrays at rest: no array is written meanwhile, and none that it was told of is freed.
"""

from __future__ import annotations

from collections.abc import Callable

from offgrad_storage.executor.entry_table import EntryTable
from offgrad_storage.executor.workers import Workers
from offgrad_storage.interrupts import interruptible, masked


class Publisher:
    """Publishes the arrays of a store, one call at a time.

    Args:
        table: the entries of the store.
        workers: its threads, which begin no write while it publishes.
        flush: completes pending writes.
    """

    def __init__(self, table: EntryTable, workers: Workers, flush: Callable[[], object]) -> None:
        self._backend = table.backend
        self._table = table
        self._workers = workers
        self._flush = flush

    def publish(self) -> None:
        """Have the backend make stored arrays readable for others; no array is written then."""
        table, backend = self._table, self._backend
        with masked:
            self._flush()
            with table.lock:
                while backend.is_publishing:
                    table.wait()
                backend.is_publishing = True
            try:
                self._publish()
            finally:
                with table.lock:
                    backend.is_publishing = False
                    self._workers.wake_all()
                    table.notify_all()

    def _publish(self) -> None:
        table = self._table
        with table.lock:
            while any(job.action == "writing" for job in table.jobs.under_way):
                table.wait()
            entries = table.tracked()
            placed = [entry if entry.pack is None else entry.pack for entry in entries]
            for entry in placed:  # its handle may die meanwhile
                entry.busy += 1
            job = table.jobs.begin("writing metadata", None)
        failure = None
        try:
            with interruptible:
                self._backend.publish(entries)
        except Exception as error:
            failure = table.errors.wrap(error, "writing metadata", None)
        finally:
            with table.lock:
                for entry in placed:
                    entry.busy -= 1
                    table.leave_if_unused(entry)
                table.jobs.end(job)
        if failure is not None:
            try:
                raise failure from failure.__cause__
            finally:
                del failure  # else the error holds itself by its traceback
