"""Write-behind and prefetch: the operations of a store, on I/O threads.

``write`` queues an array, and an I/O thread writes it; until then, reads copy the array itself.
A ``get`` reads at once in the calling thread. The executor is composed of an ``EntryTable``, a
``PackTable``, an ``IOScheduler`` and ``Workers``; ``Prefetches``, ``Publisher`` and ``Closing`` are
operations on these in files of their own.

Ctrl-C splits no operation: each is one masked block, in which waiting, I/O, codecs and callbacks of
the user are interruptible.

The threads refer to the executor and its backend but not to the store, so a store can die unclosed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage._checks import check_count
from offgrad_storage.backend import Backend
from offgrad_storage.base import Allocate, StoreStats
from offgrad_storage.codecs import Codec
from offgrad_storage.entry import Entry, Handle, Pack, State
from offgrad_storage.errors import QuotaExceededError, StoreError
from offgrad_storage.executor.closing import Closing
from offgrad_storage.executor.encoding import Encoder
from offgrad_storage.executor.entry_table import EntryTable
from offgrad_storage.executor.forks import process
from offgrad_storage.executor.invariants import check_invariants
from offgrad_storage.executor.pack_table import PackTable
from offgrad_storage.executor.prefetching import Prefetches
from offgrad_storage.executor.publishing import Publisher
from offgrad_storage.executor.scheduler import IOScheduler
from offgrad_storage.executor.workers import Workers
from offgrad_storage.interrupts import interruptible, masked

Array = NDArray[Any]


class Executor:
    """The operations of a store.

    Args:
        store: watched: its end ends the threads.
        backend: moves the bytes.
        threads: bound of the I/O threads; with 0, writes happen in the calling thread.
        inflight_nbytes: bound of the bytes of memory held for pending writes; one larger array may
            go alone.
        hold: allocates the memory of packs, and of copies of arrays whose write failed.
        max_pack_nbytes: bound of the bytes of a pack; 0 for no packs.
        codec: encodes arrays, in the I/O threads if there are any; None for none.
        seed: of the codec's random rounding.
        timeout_seconds: ``close`` gives up after so many seconds without an answer of the drive.
    """

    def __init__(
        self,
        store: object,
        backend: Backend,
        *,
        threads: int,
        inflight_nbytes: int,
        hold: Allocate,
        max_pack_nbytes: int,
        codec: Codec | None = None,
        seed: int = 0,
        timeout_seconds: float = 60.0,
    ) -> None:
        check_count("threads", threads)
        check_count("max_pack_nbytes", max_pack_nbytes)
        self.backend = backend
        self.lossless = codec is None or codec.lossless
        self._hold = hold
        self._encodes = codec is not None
        self._encoder = Encoder(codec, seed)
        self._workers = Workers(self._do_next_job, threads, backend.name)
        self._table = table = EntryTable(backend, inflight_nbytes, self._workers.inbox)
        self._packs = packs = PackTable(table, hold, max_pack_nbytes, self._start_thread)
        if not threads:
            packs.open.below = 0
        self._scheduler = IOScheduler(table, packs, self._encoder)
        self._prefetches = Prefetches(table, packs.cache, self._workers, self._start_thread)
        self._publisher = Publisher(table, self._workers, self.flush)
        self._closing = Closing(table, packs, self._workers, timeout_seconds)
        table.wake = self._workers.wake
        table.leave_pack = packs.leave_locked
        table.end_prefetch = packs.cache.end_prefetch_locked
        table.jobs.end_abandoned = self._closing.end_abandoned_locked
        self._closing.watch(store)

    # ---- operations of the store

    def write(self, handle: Handle, array: Array) -> None:
        """Take ``array`` as the value of a new handle; wait while too much is in flight."""
        entry, table, threads = handle._entry, self._table, self._workers.max_threads
        packs = self._packs.open
        with masked:
            if table.closed or table.forks != process.forks:
                table.check(entry)
            if table.errors.failed_writes:
                with table.lock:
                    table.errors.raise_failures(entry)
            data = array
            if self._encodes and not threads:
                with interruptible:
                    data = self._encoder.encode(entry, array)
            if self.backend.prepare is not None:
                self._prepare(entry, self.backend.prepare)
            if threads and packs.below and array.nbytes:
                if self._encodes and self._encoder.applies(array):
                    packs.provide(entry)
                elif array.nbytes < packs.below and packs.put(handle, array):
                    return
            with table.lock:
                table.handle_deaths()
                table.check(entry)
                if threads and not table.fits_in_flight(entry.nbytes):
                    packs.wait_for_room_locked(entry, entry.nbytes)
                over_quota = False
                try:
                    table.reserve(entry)
                except QuotaExceededError:
                    if not threads:
                        raise
                    over_quota = True
                if over_quota:  # outside of the handler of the first error
                    packs.reserve_locked(entry)
                table.add(handle, entry)
                table.hold_source(handle, entry, array)
                if threads:
                    table.writes[entry] = None
                    self._wake_for_write(entry)
                    return
                table.begin_write(entry)
                job = table.jobs.begin("writing", entry)
            failure = None
            try:
                failure = self._scheduler.write_now(entry, data)
            finally:
                with table.lock:
                    table.jobs.end(job)
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # else the error holds itself by its traceback

    def _prepare(self, entry: Entry, prepare: Callable[[Entry], None]) -> None:
        try:
            with interruptible:
                self._scheduler.retry_after_release(lambda: prepare(entry))
        except OSError as error:
            raise self._table.errors.wrap(error, "making room", entry) from error

    def _start_thread(self, entry: Entry) -> None:
        try:
            self._workers.start_thread()
        except RuntimeError as error:
            raise self._table.errors.wrap(error, "starting an I/O thread", entry) from error

    def _wake_for_write(self, entry: Entry) -> None:
        """Wake a thread for the queued ``entry``; undo its put if there is no thread."""
        try:
            self._start_thread(entry)
        except StoreError:
            self._table.undo_put(entry)
            raise
        self._workers.wake()

    def get(self, handle: Handle, out: Array | None, allocate: Allocate) -> Array:
        """The stored array: in ``out``, or in the array of a prefetch, or in a new one."""
        entry, since = handle._entry, time.perf_counter()
        with masked:
            target = None
            if handle._fetch is not None:
                target, filled = self._prefetches.take(handle, out, since)
                if filled:
                    assert target is not None
                    return target if out is None else _copied(target, out)
            if out is not None and out.flags.c_contiguous:
                target = out
            elif target is None:
                self._table.check(entry)
                with interruptible:
                    target = allocate(entry.shape, entry.dtype)
            self._scheduler.read(entry, target, since)
            return target if out is None else _copied(target, out)

    def prefetch(self, handle: Handle, out: Array | None, allocate: Allocate) -> None:
        """Have a thread fill ``out`` or a new array, unless a prefetch does so already."""
        self._prefetches.begin(handle, out, allocate)

    def cancel_prefetch(self, handle: Handle) -> None:
        """Forget the prefetch under way, if any; wait while a thread fills its array."""
        self._prefetches.cancel(handle)

    def wait_captured(self, entry: Entry) -> None:
        """Wait until the source of ``entry`` may change; its write goes first."""
        with masked:
            while not (entry.captured or self._table.is_forked()):
                self.wait_written(entry)
                if not entry.captured:
                    self._copy_failed(entry)

    def wait_written(self, entry: Entry) -> None:
        """Wait until the write of ``entry``, which goes first, has ended or failed."""
        table = self._table
        if entry.captured or table.is_forked():
            return  # no thread reads from the memory of a fork
        with masked, table.lock:
            table.handle_deaths()
            if entry in table.writes:
                table.writes.move_to_end(entry, last=False)
            while not (entry.captured or entry.state is State.FAILED):
                table.wait_for_write(entry)

    def _copy_failed(self, entry: Entry) -> None:
        """Copy the array of a failed write into memory of the store."""
        table = self._table
        copy = None
        with contextlib.suppress(MemoryError), interruptible:
            copy = self._hold(entry.shape, entry.dtype)
        with table.lock:
            if entry.state is not State.FAILED:
                return
            if copy is None and entry.error is not None:
                raise table.errors.report(entry.error)
            source = table.begin_read(entry)
            job = table.jobs.begin("copying", entry)
        try:
            with interruptible:
                np.copyto(copy, source)  # type: ignore[arg-type]
        except BaseException:
            copy = None
            raise
        finally:
            source = None
            with table.lock:
                table.end_read(entry, pinned=True)
                table.jobs.end(job)
                if copy is not None:
                    table.replace_source(entry, copy)

    def check_written(self, entry: Entry) -> None:
        """Raise the error of the write of ``entry``, if it has failed."""
        if entry.error is not None:
            self._table.check_process(entry)
            with masked, self._table.lock:
                if entry.error is not None:
                    raise self._table.errors.report(entry.error)

    def stats(self) -> StoreStats:
        """The figures so far."""
        table = self._table
        table.check_process(None)
        with masked, table.lock:
            table.find_deaths()
            return dataclasses.replace(table.figures)

    def check(self, entry: Entry | None = None) -> None:
        """Raise unless the store may be used, by this process."""
        self._table.check(entry)

    @property
    def packs_nbytes(self) -> int:
        """Bytes of memory that packs hold now."""
        return self._packs.nbytes

    def flush(self) -> None:
        """Complete pending writes, and wait for them."""
        table, packs = self._table, self._packs.open
        table.check()
        with masked, table.lock:
            table.handle_deaths()
            if table.retry_failed():
                self._workers.wake()
            while True:
                if not table.has_pending_arrays():  # each may move to an open pack
                    packs.seal_all_locked()
                if not (table.pending or packs.copying):
                    return
                table.wait_for_write(None)

    def trim(self) -> None:
        """Write all packs, wait for reads of packs, and drop those that no prefetch wants."""
        table, packs, cache = self._table, self._packs.open, self._packs.cache
        table.check()
        with masked, table.lock:
            table.handle_deaths()
            if table.retry_failed():
                self._workers.wake()
            written, read = [*packs.by_kind.values()], [*cache.loading]
            packs.seal_all_locked()
            written += [each for each in table.pending if isinstance(each, Pack)]
            while any(
                each.state is State.ARRIVING or each in table.pending for each in written
            ) or any(each in cache.loading for each in read):
                table.wait_for_write(None)
            cache.trim_locked()

    def publish(self) -> None:
        """Have the backend make stored arrays readable for others; no array is written then."""
        self._publisher.publish()

    def close(self) -> None:
        """End all work, join the threads and close the backend; raise unreported errors."""
        self._closing.close()

    def _check(self) -> None:
        """Raise AssertionError unless the sums agree with the tables."""
        with masked, self._table.lock:
            if not self._closing.finished:
                self._table.find_deaths()
                check_invariants(self)

    # ---- the I/O threads

    def _do_next_job(self) -> bool:
        """Do a job, or sleep; return whether the thread goes on."""
        table, workers = self._table, self._workers
        with table.lock:
            table.handle_deaths()
            if table.abandoned and not self.backend.persistent:
                table.cancel_all()
            job = self._scheduler.next_job()
            if job is None and table.closed and self._closing.is_done_locked():
                workers.running -= 1
                self._closing.end_abandoned_locked()
                table.notify_all()
                return False
            if job is None:
                job = self._scheduler.next_job()  # of a pack that was just sealed
            if job is None:
                workers.sleep()
        if job is not None:
            job()
            return True
        item = workers.take()
        with table.lock:
            workers.woke(item)
            if item is not None:
                table.on_death(item)
                workers.wake_all()
        return True


def _copied(target: Array, out: Array) -> Array:
    if target is not out:
        np.copyto(out, target)
    return out
