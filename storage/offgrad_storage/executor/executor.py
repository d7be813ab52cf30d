"""Write-behind and prefetch: the operations of a store, on I/O threads.

``write`` queues an array, and an I/O thread writes it; until then, reads copy the array itself.
A ``read`` runs at once in the calling thread. The executor is composed of an ``EntryTable``, a
``PackTable``, an ``IOScheduler`` and ``Workers``.

Ctrl-C splits no operation: each is one masked block, in which waiting, I/O, codecs and callbacks of
the user are interruptible.

The threads refer to the executor and its backend but not to the store, so a store can die unclosed.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  (see the end of this file)
import contextlib
import dataclasses
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage._checks import check_count
from offgrad_storage.backend import Backend
from offgrad_storage.base import Allocate, StoreStats
from offgrad_storage.codecs import Codec
from offgrad_storage.entry import Entry, Fetch, Handle, Pack, State
from offgrad_storage.errors import QuotaExceededError, StoreError
from offgrad_storage.executor.encoding import Encoder
from offgrad_storage.executor.entry_table import EntryTable, process
from offgrad_storage.executor.invariants import check_invariants
from offgrad_storage.executor.pack_table import PackTable
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
        if not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be positive, got {timeout_seconds}")
        self.backend = backend
        self.lossless = codec is None or codec.lossless
        self._timeout_seconds = timeout_seconds
        self._hold = hold
        self._encodes = codec is not None
        self._encoder = Encoder(codec, seed)
        self._workers = Workers(self._do_next_job, threads, backend.name)
        self._table = table = EntryTable(backend, inflight_nbytes, self._workers.inbox)
        self._packs = packs = PackTable(table, hold, max_pack_nbytes, self._start_thread)
        if not threads:
            packs.below = 0
        self._scheduler = IOScheduler(table, packs, self._encoder)
        table.wake = self._workers.wake
        table.leave_pack = packs.leave_locked
        table.end_prefetch = packs.end_prefetch_locked
        table.end_abandoned = self._end_abandoned_locked
        self._published = self._finishing = self._finished = False
        table.store = weakref.ref(store, self._workers.inbox.put)
        _executors[weakref.ref(store, _end_abandoned)] = self
        _end_abandoned()

    # ---- operations of the store

    def write(self, handle: Handle, array: Array) -> None:
        """Take ``array`` as the value of a new handle; wait while too much is in flight."""
        entry, table, threads = handle._entry, self._table, self._workers.max_threads
        with masked:
            if table.closed or table.forks != process.forks:
                table.check(entry)
            if table.failures:
                with table.lock:
                    table.raise_failures(entry)
            data = array
            if self._encodes and not threads:
                with interruptible:
                    data = self._encoder.encode(entry, array)
            if self.backend.prepare is not None:
                self._prepare(entry, self.backend.prepare)
            if threads and self._packs.below and array.nbytes:
                if self._encodes and self._encoder.applies(array):
                    self._packs.provide(entry)
                elif array.nbytes < self._packs.below and self._packs.put(handle, array):
                    return
            with table.lock:
                table.handle_deaths()
                table.check(entry)
                if threads and not table.fits_in_flight(entry.nbytes):
                    self._packs.wait_for_room_locked(entry, entry.nbytes)
                over_quota = False
                try:
                    table.reserve(entry)
                except QuotaExceededError:
                    if not threads:
                        raise
                    over_quota = True
                if over_quota:  # outside of the handler of the first error
                    self._packs.reserve_locked(entry)
                table.add(handle, entry)
                table.hold_source(handle, entry, array)
                if threads:
                    table.writes[entry] = None
                    self._wake_for_write(entry)
                    return
                table.begin_write(entry)
                job = table.begin_job("writing", entry)
            failure = None
            try:
                failure = self._scheduler.write_now(entry, data)
            finally:
                with table.lock:
                    table.end_job(job)
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
            raise self._table.store_error(error, "making room", entry) from error

    def _start_thread(self, entry: Entry) -> None:
        try:
            self._workers.start_thread()
        except RuntimeError as error:
            raise self._table.store_error(error, "starting an I/O thread", entry) from error

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
                target, filled = self._take_prefetched(handle, out, since)
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

    def _take_prefetched(
        self, handle: Handle, out: Array | None, since: float
    ) -> tuple[Array | None, bool]:
        """End the prefetch for a get into ``out``: its array, which nobody else has, if filled.

        An array that the user passed to ``prefetch`` is only for a get that returns it: to others
        it may be another thread's by now.
        """
        entry, table = handle._entry, self._table
        table.check_process(entry)
        with table.lock:
            fetch = self._end_prefetch(handle)
            if fetch is None:
                return None, False
            array, fetch.array = fetch.array, None  # the thread that read it may hold the fetch
            if fetch.packed:
                return (array if out is None else None), False
            if fetch.error is not None:
                raise table.report(fetch.error)
            if not (fetch.is_own or out is None or out is array):
                return None, False
            table.figures.prefetch_hits += fetch.done
            if fetch.done:
                table.count_get(entry, since)
            return array, fetch.done

    def _end_prefetch(self, handle: Handle, hit: bool = True) -> Fetch | None:
        """End the prefetch of a handle, once no thread reads for it; with the lock held.

        None if there is none, or another thread ends it.
        """
        entry, table = handle._entry, self._table
        table.handle_deaths()
        table.check(entry)
        fetch = handle._fetch
        if fetch is None:
            return None
        if fetch.packed:
            self._packs.end_prefetch_locked(entry, hit)
        elif table.reads.pop(entry, self) is not None:
            while not fetch.done:
                table.wait()
                if handle._fetch is not fetch:
                    return None
        if handle._fetch is not fetch:
            return None
        handle._fetch = None
        return fetch

    def prefetch(self, handle: Handle, out: Array | None, allocate: Allocate) -> None:
        """Have a thread fill ``out`` or a new array, unless a prefetch does so already.

        For an array in a pack only the pack is prefetched; ``get`` copies the array from it.
        """
        entry, table = handle._entry, self._table
        with masked:
            table.check(entry)
            if not self._workers.max_threads:
                return
            while True:
                fetch = handle._fetch
                if fetch is not None:
                    if out is None or out is fetch.array:
                        return
                    self.cancel_prefetch(handle)
                target, pack = out, entry.pack
                if target is None and pack is None:
                    with interruptible:
                        target = allocate(entry.shape, entry.dtype)
                with table.lock:
                    table.handle_deaths()
                    table.check(entry)
                    if handle._fetch is not None:
                        continue
                    pack = entry.pack
                    handle._fetch = Fetch(target, out is None, packed=pack is not None)
                    if pack is None:
                        try:
                            self._start_thread(entry)
                        except StoreError:
                            handle._fetch = None
                            raise
                        table.reads[entry] = None
                        self._workers.wake()
                        return
                    must_load = self._packs.want_locked(entry, pack)
                if must_load:
                    self._packs.load(pack)
                return

    def cancel_prefetch(self, handle: Handle) -> None:
        """Forget the prefetch under way, if any; wait while a thread fills its array."""
        entry, table = handle._entry, self._table
        table.check_process(entry)
        with masked, table.lock:
            if table.closed and handle._fetch is None:
                return
            fetch = None
            with contextlib.suppress(StoreError):  # closed
                fetch = self._end_prefetch(handle, hit=False)
            if fetch is None:
                return
            fetch.array = None
            if fetch.error in table.unreported:  # a later get meets the error of reading again
                table.unreported.remove(fetch.error)

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
                raise table.report(entry.error)
            source = table.begin_read(entry)
            job = table.begin_job("copying", entry)
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
                table.end_job(job)
                if copy is not None:
                    table.replace_source(entry, copy)

    def check_written(self, entry: Entry) -> None:
        """Raise the error of the write of ``entry``, if it has failed."""
        if entry.error is not None:
            self._table.check_process(entry)
            with masked, self._table.lock:
                if entry.error is not None:
                    raise self._table.report(entry.error)

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
        table = self._table
        table.check()
        with masked, table.lock:
            table.handle_deaths()
            if table.retry_failed():
                self._workers.wake()
            while True:
                if not table.has_pending_arrays():  # each may move to an open pack
                    self._packs.seal_all_locked()
                if not (table.pending or self._packs.copying):
                    return
                table.wait_for_write(None)

    def trim(self) -> None:
        """Write all packs, wait for reads of packs, and drop those that no prefetch wants."""
        table = self._table
        table.check()
        with masked, table.lock:
            table.handle_deaths()
            if table.retry_failed():
                self._workers.wake()
            written, read = [*self._packs.open.values()], [*self._packs.loading]
            self._packs.seal_all_locked()
            written += [each for each in table.pending if isinstance(each, Pack)]
            while any(
                each.state is State.ARRIVING or each in table.pending for each in written
            ) or any(each in self._packs.loading for each in read):
                table.wait_for_write(None)
            self._packs.trim_locked()

    def publish(self) -> None:
        """Have the backend make stored arrays readable for others; no array is written then."""
        table = self._table
        with masked:
            self.flush()
            with table.lock:
                while self.backend.is_publishing:
                    table.wait()
                self.backend.is_publishing = True
            try:
                self._publish()
            finally:
                with table.lock:
                    self.backend.is_publishing = False
                    self._workers.wake_all()
                    table.notify_all()

    def _publish(self) -> None:
        table = self._table
        with table.lock:
            while any(job.action == "writing" for job in table.jobs):
                table.wait()
            entries = self._tracked()
            placed = [entry if entry.pack is None else entry.pack for entry in entries]
            for entry in placed:  # its handle may die meanwhile
                entry.busy += 1
            job = table.begin_job("writing metadata", None)
        failure = None
        try:
            with interruptible:
                self.backend.publish(entries)
        except Exception as error:
            failure = table.store_error(error, "writing metadata", None)
        finally:
            with table.lock:
                for entry in placed:
                    entry.busy -= 1
                    table.leave_if_unused(entry)
                table.end_job(job)
        if failure is not None:
            try:
                raise failure from failure.__cause__
            finally:
                del failure  # else the error holds itself by its traceback

    def _check(self) -> None:
        """Raise AssertionError unless the sums agree with the tables."""
        with masked, self._table.lock:
            if not self._finished:
                self._table.find_deaths()
                check_invariants(self)

    def _tracked(self) -> list[Entry]:
        table = self._table
        found = table.kept | {entry.serial: entry for entry in table.live.values()}
        return [found[serial] for serial in sorted(found)]

    # ---- the end

    def close(self) -> None:
        """End all work, join the threads and close the backend; raise unreported errors."""
        table = self._table
        if table.is_forked():
            return
        with masked:
            began = time.monotonic()
            self.begin_close()
            with table.lock:
                while not self._finished:
                    if self._workers.running or table.jobs or self._packs.copying:
                        self._wait_for_answer(began)
                    else:
                        self._finish_locked()
                errors, table.unreported = table.unreported, []
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
                    if not self.backend.persistent:
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
        since = max([began, table.last_answer, *(job.began for job in table.jobs)])
        silent = time.monotonic() - since
        if silent < self._timeout_seconds or not table.jobs:
            return
        table.gave_up = table.abandoned = True  # the last thread or job closes the backend
        self._finished = True
        table.notify_all()
        self._unregister()
        jobs = ", ".join(map(str, table.jobs))
        waiting = [str(entry) for entry in table.writes]
        if waiting:
            jobs += f"; {len(waiting)} writes wait for it, first of {waiting[0]}"
        raise self._silence(silent, jobs)

    def _silence(self, seconds: float, jobs: str) -> StoreError:
        return StoreError(
            f"the drive has not answered for {seconds:.0f} seconds while the store was closed: "
            f"{jobs}",
            store=self.backend.name,
            fix="Check the drive, or raise timeout_seconds of the store if it is only slow. The "
            "store's files are freed when the process ends",
        )

    def _finish_locked(self) -> None:
        """No thread and no job is left: publish, close the backend, and release the memory."""
        table = self._table
        self._finishing = True
        job = table.begin_job("closing", None)  # another thread's close waits for it
        table.lock.release()
        errors = []
        try:
            if self.backend.persistent and self.backend.tracks_entries and not self._published:
                self._published = True
                try:
                    self.backend.publish(self._tracked())
                except Exception as error:
                    errors.append(table.store_error(error, "writing metadata", None))
            try:
                self.backend.close()
            except Exception as error:
                errors.append(table.store_error(error, "closing", None))
        finally:
            table.lock.acquire()
            table.end_job(job)
            table.unreported += errors
            self._packs.release_locked()
            table.release_all()
            self._finished = True
            self._unregister()
            table.notify_all()

    def _end_abandoned_locked(self) -> None:
        """Close the backend, once no thread and no job is left to use it."""
        table = self._table
        if table.abandoned and not (self._workers.running or table.jobs or self._finishing):
            self._finish_locked()

    def _unregister(self) -> None:
        for reference, executor in list(_executors.items()):
            if executor is self:
                _executors.pop(reference, None)

    def abandon(self) -> None:
        """The store has died unclosed. Never waits: the last thread closes the backend."""
        table = self._table
        if table.is_forked() or self._workers or self._finishing:
            return  # an inbox tells the threads
        table.closed = table.abandoned = True
        with masked, table.lock:
            if not self._finished:
                self._finish_locked()

    # ---- the I/O threads

    def _do_next_job(self) -> bool:
        """Do a job, or sleep; return whether the thread goes on."""
        table, workers = self._table, self._workers
        with table.lock:
            table.handle_deaths()
            if table.abandoned and not self.backend.persistent:
                table.cancel_all()
            job = self._scheduler.next_job()
            if job is None and table.closed and self._is_done_locked():
                workers.running -= 1
                self._end_abandoned_locked()
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

    def _is_done_locked(self) -> bool:
        """Closed: whether this thread has nothing more to do; seals the packs of a kept store."""
        table = self._table
        if not self.backend.persistent:
            return True
        if self._packs.copying or table.has_pending_arrays():
            return False
        self._packs.seal_all_locked()
        self._workers.wake_all()
        return not table.pending


def _copied(target: Array, out: Array) -> Array:
    if target is not out:
        np.copyto(out, target)
    return out


# By a weak reference to the store of each. A store that dies without threads is closed here.
_executors: dict[weakref.ref[Any], Executor] = {}


def _end_abandoned(reference: object = None) -> None:
    """Close the backends of dead stores without threads.

    A callback of weak references, which SIGINT may skip: so the next store looks as well.
    """
    for store, executor in list(_executors.items()):
        if store() is None:
            executor.abandon()


def _close_at_exit() -> None:
    closing = []
    for executor in list(_executors.values()):
        if executor._table.is_forked():
            continue
        try:
            executor.begin_close()
            closing.append(executor)
        except StoreError as error:
            print(f"offgrad_storage: at exit: {error}", file=sys.stderr)
    for executor in closing:
        try:
            executor.close()
        except StoreError as error:
            # A failed write matters only where the data would have outlived the process.
            if executor.backend.persistent or executor._table.gave_up:
                print(f"offgrad_storage: at exit: {error}", file=sys.stderr)


# At exit, a backend may need threads of other packages, as zarr does. Those end before atexit runs,
# but after callbacks registered later than theirs: so concurrent.futures.thread is imported first.
getattr(threading, "_register_atexit", atexit.register)(_close_at_exit)
