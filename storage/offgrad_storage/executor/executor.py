"""Write-behind and prefetch: the operations of a store, on I/O threads.

``write`` queues an array, and an I/O thread writes it; until then, reads copy the array itself.
A ``read`` runs at once in the calling thread. The I/O threads do prefetches first, then free jobs,
then writes; while a thread waits for a write, writes go first.

The threads refer to the executor and its backend but not to the store, so a store can die unclosed.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  (see the end of this file)
import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from offgrad_storage._checks import check_count
from offgrad_storage.backend import Backend
from offgrad_storage.base import StoreStats
from offgrad_storage.codecs import Codec
from offgrad_storage.entry import Entry, Fetch
from offgrad_storage.errors import QuotaExceededError, StoreError
from offgrad_storage.executor.encoding import Encoder
from offgrad_storage.executor.entry_states import process
from offgrad_storage.executor.scheduler import IOScheduler
from offgrad_storage.executor.workers import Workers

Array = NDArray[Any]


class Executor(IOScheduler):
    """The operations of a store.

    Args:
        backend: moves the bytes.
        threads: bound of the I/O threads; with 0, writes happen in the calling thread.
        inflight_nbytes: bound of the bytes of arrays with a pending write; one larger array may go
            alone.
        codec: encodes arrays, in the I/O threads if there are any; None for none.
        seed: of the codec's random rounding.
    """

    def __init__(
        self,
        backend: Backend,
        threads: int,
        inflight_nbytes: int,
        codec: Codec | None = None,
        seed: int = 0,
    ) -> None:
        check_count("threads", threads)
        workers = Workers(self._do_next_job, self._on_last_thread_exit, threads, backend.name)
        super().__init__(backend, workers, inflight_nbytes, Encoder(codec, seed))
        self.lossless = codec is None or codec.lossless
        self._published = False
        self._close_lock = threading.Lock()  # a second close waits for the first
        _executors.add(self)

    # ---- operations of the store

    def write(self, entry: Entry, array: Array) -> None:
        """Take ``array`` as the value of ``entry``; wait while too much is in flight."""
        backend, threads = self.backend, self._workers.max_threads
        if self._closed or self._forks != process.forks:
            self.check(entry)
        if self._failed_packs:
            with self._lock:
                self._raise_failed_packs(entry)
        data = array if threads else self._encoder.encode(entry, array)
        if backend.prepare is not None:
            self._prepare(entry, backend.prepare)
        small = threads and 0 < array.nbytes < backend.packs_below
        if small and not self._encoder.applies(array):
            self.put_in_pack(entry, array)
            return
        with self._lock:
            if self._closed:
                raise self._closed_error(entry)
            while threads and not self._fits_in_flight(entry):
                self._wait_for_write(entry)
            over_quota = False
            try:
                self._try_reserve(entry)
            except QuotaExceededError:
                over_quota = True
            if over_quota:
                self._reserve(entry)  # waits, outside of the handler of the first error
            self._register(entry)
            self._hold_source(entry, array)
            if threads:
                self._writes[entry] = None
                self._wake_for_write(entry)
                return
            self._begin_write(entry)
        self._write(entry, data)
        if entry.error is not None:
            raise self._report(entry.error)

    def _prepare(self, entry: Entry, prepare: Callable[[Entry], None]) -> None:
        try:
            self._retry_after_release(lambda: prepare(entry))
        except OSError as error:
            raise self._store_error(error, "making room", entry) from error

    def _wake_for_write(self, entry: Entry) -> None:
        """Wake a thread for the queued ``entry``; undo its put if there is no thread."""
        try:
            self._start_thread(entry)
        except StoreError:
            self._cancel_write(entry)
            self._unregister(entry)
            self._figures.puts -= 1
            self._entries.pop(entry.serial, None)
            if self.backend.persistent:  # it frees nothing
                entry.reserved = False
                self._set_stored_nbytes(entry, 0)
            else:
                self._free_place(entry)
            raise
        self._workers.wake()

    def prefetch(self, entry: Entry, out: Array | None) -> bool:
        """Have a thread fill the C-contiguous ``out``; False if a prefetch is under way already.

        For an array in a pack only the pack is prefetched; ``get`` copies the array from it.
        """
        self._check_process(entry)
        with self._lock:
            self._check_open(entry)
            if entry.fetch is not None:
                return False
            entry.fetch = Fetch(out, packed=entry.pack is not None)
            if entry.pack is not None:
                self._add_interest(entry.pack)
            else:
                self._start_thread(entry)
                self._reads[entry] = None
                self._workers.wake()
            return True

    def take_prefetched(
        self, entry: Entry, since: float | None = None
    ) -> tuple[Array | None, bool]:
        """The array of the prefetch under way, if any, and whether it is filled; waits for it.

        If it is filled, count a get that began at ``since``.
        """
        self._check_process(entry)
        with self._lock:
            self._check_open(entry)
            fetch = entry.fetch
            if fetch is None:
                return None, False
            if fetch.packed:
                self._end_pack_prefetch(entry)
                return fetch.array, False
            if self._reads.pop(entry, self) is not None:
                while not fetch.done:
                    self._lock.wait()
                if entry.fetch is not fetch:  # another thread has taken it
                    return None, False
                self._figures.prefetch_hits += 1
            entry.fetch = None
            array, fetch.array = fetch.array, None  # the thread that read it may hold the fetch
            if fetch.error is not None:
                raise self._report(fetch.error)
            if fetch.done and since is not None:
                self._count_get(entry, since)
            return array, fetch.done

    def cancel_prefetch(self, entry: Entry) -> None:
        """Forget the prefetch under way, if any; wait while a thread fills its array."""
        self._check_process(entry)
        with self._lock:
            fetch = entry.fetch
            if fetch is None:
                return
            if fetch.packed:
                self._release_interest(entry)
                return
            if self._reads.pop(entry, self) is not None:
                while not fetch.done:
                    self._lock.wait()
            if entry.fetch is fetch:
                entry.fetch = fetch.array = None
            # A later get meets the error of reading again.
            if fetch.error is not entry.error and fetch.error in self._unreported_errors:
                self._unreported_errors.remove(fetch.error)

    def wait_captured(self, entry: Entry) -> None:
        """Wait until the source of ``entry`` may change; its write goes first."""
        if self._is_forked():
            return  # no thread reads from the memory of a fork
        with self._lock:
            if entry in self._writes:
                self._writes.move_to_end(entry, last=False)
            while not entry.captured:
                self._wait_for_write(entry)

    def check_written(self, entry: Entry) -> None:
        """Raise the error of the write of ``entry``, if it has failed."""
        if entry.error is not None:
            self._check_process(entry)
            with self._lock:
                raise self._report(entry.error)

    def drop(self, entry: Entry) -> None:
        """The handle of ``entry`` has died. Never waits: the garbage collector calls it."""
        if self._closed or self._is_forked():
            return
        if not self._lock.defer(entry) and self._workers:
            self._workers.wake()

    def stats(self) -> StoreStats:
        """The figures so far."""
        self._check_process(None)
        with self._lock:
            return dataclasses.replace(self._figures)

    def check(self, entry: Entry | None = None) -> None:
        """Raise unless the store may be used, by this process."""
        self._check_process(entry)
        self._check_open(entry)

    def close(self) -> None:
        """End all work, join the threads and close the backend; raise unreported errors."""
        if self._is_forked():
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                if not self.backend.persistent:
                    self._cancel_all()
                self._workers.stop()
                self._lock.notify_all()
        with self._close_lock:
            self._workers.join()
            self._finish_packs()
            with self._lock:
                while self._active:  # reads in the threads of callers
                    self._lock.wait()
            self._publish_at_close()
            self.backend.close()
        self._figures.live_handles = self._figures.logical_nbytes = 0
        if not self.backend.persistent:
            self.backend.used_nbytes = self._figures.stored_nbytes = 0
        errors, self._unreported_errors = self._unreported_errors, []
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"also: {other}")
            raise errors[0]

    def flush(self) -> None:
        """Complete pending writes, and wait for them."""
        self.check()
        with self._lock:
            while True:
                if not self._arrays_pending:  # each may move to an open pack
                    self._seal_all()
                if not (self._writes or self._copying or self._figures.inflight_nbytes):
                    return
                self._wait_for_write(None)

    def publish(self) -> None:
        """Have the backend make stored arrays readable for other programs."""
        self.flush()
        with self._lock:
            entries = _by_serial(self._entries)
            placed = [entry if entry.pack is None else entry.pack for entry in entries]
            for entry in placed:  # its handle may die meanwhile
                entry.busy += 1
        try:
            self.backend.publish(entries)
        except Exception as error:
            failure = self._store_error(error, "writing metadata", None)
            raise failure from failure.__cause__
        finally:
            with self._lock:
                for entry in placed:
                    entry.busy -= 1
                    self._free_if_unused(entry)

    def abandon(self) -> None:
        """The store has died unclosed. Never waits: the last thread closes the backend."""
        if self._closed or self._is_forked():
            return
        self._closed = self._abandoned = True
        self._workers.stop()
        if not self._workers:
            self.backend.close()

    # ---- the I/O threads

    def _do_next_job(self) -> None:
        with self._lock:
            if self._abandoned and not self.backend.persistent:
                self._cancel_all()
        job = self._next_job()
        if job is not None:
            job()

    def _on_last_thread_exit(self) -> None:
        if self._abandoned:
            self._finish_packs()
            self._publish_at_close()
            self.backend.close()

    def _publish_at_close(self) -> None:
        if self.backend.tracks_entries and self.backend.persistent and not self._published:
            self._published = True
            try:
                self.backend.publish(_by_serial(self._entries))
            except Exception as error:
                self._unreported_errors.append(self._store_error(error, "writing metadata", None))

    def _finish_packs(self) -> None:
        """Without I/O threads: write the open packs if the store is persistent; release all."""
        if self.backend.persistent:
            with self._lock:
                while self._copying:  # in the threads of callers
                    self._lock.wait()
                self._seal_all()
            while (job := self._next_job()) is not None:
                job()
        with self._lock:
            self._release_packs()


def _by_serial(entries: dict[int, Entry]) -> list[Entry]:
    return [entries[serial] for serial in sorted(entries)]


_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


def _close_at_exit() -> None:
    for executor in list(_executors):
        # A failed write matters only where the data would have outlived the process.
        ignored = () if executor.backend.persistent else (StoreError,)
        with contextlib.suppress(*ignored):
            executor.close()


# At exit, a backend may need threads of other packages, as zarr does. Those end before atexit runs,
# but after callbacks registered later than theirs: so concurrent.futures.thread is imported first.
getattr(threading, "_register_atexit", atexit.register)(_close_at_exit)
