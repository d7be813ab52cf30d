"""The jobs of the I/O threads, and their order: prefetches, free jobs, then writes.

While a thread waits for a write, writes go first. Consecutive jobs of arrays that are adjacent in a
file run as one: a system call for several MB is faster than one for each array.
"""

from __future__ import annotations

import errno
import functools
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.entry import Entry, Fetch, Pack, State
from offgrad_storage.errors import StoreClosedError, StoreError
from offgrad_storage.executor.encoding import Encoder
from offgrad_storage.executor.entry_table import EntryTable
from offgrad_storage.executor.pack_table import PackTable
from offgrad_storage.interrupts import interruptible, masked
from offgrad_storage.memory.buffer_pool import BufferPool

Array = NDArray[Any]
T = TypeVar("T")

_MAX_RUN_NBYTES = 16 << 20  # bytes of the arrays of one I/O
_MAX_RUN_LENGTH = 64  # arrays of one I/O
_EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


class IOScheduler:
    """Chooses the next job of an I/O thread, and does it.

    Args:
        table: the entries of the store, and the queues.
        packs: the packs of the store.
        encoder: encodes arrays before they are written.
    """

    def __init__(self, table: EntryTable, packs: PackTable, encoder: Encoder) -> None:
        self._table = table
        self._packs = packs
        self._encoder = encoder
        self._backend = table.backend
        self._buffers = BufferPool()  # for encoded bytes
        # A run of all the bytes in flight would make puts wait until the whole run is written.
        self._max_run_nbytes = min(_MAX_RUN_NBYTES, table.max_inflight_nbytes // 4)

    # ---- with the lock held

    def next_job(self) -> Callable[[], object] | None:
        """Begin the next job; return it."""
        table = self._table
        while not (table.write_waiters and table.writes) and table.reads:
            fetches = self._next_read()
            if fetches is not None:
                return fetches
        if table.free_jobs and not (table.write_waiters and table.writes):
            job = table.jobs.begin("freeing space", None)
            return functools.partial(self._run_free_job, table.free_jobs.popleft(), job)
        while table.writes and not self._backend.is_publishing:
            run = self._pop_run(table.writes, self._is_written_plain)
            run = [entry for entry in run if table.begin_write(entry)]
            if run:
                nbytes = sum(entry.nbytes for entry in run)
                job = table.jobs.begin("writing", run[0], nbytes)
                return functools.partial(self._write_run, run, job)
        if not table.pending:
            self._packs.open.drop_spares_locked()
        return None

    def _next_read(self) -> Callable[[], object] | None:
        table = self._table
        run = self._pop_run(table.reads, _is_stored_plain)
        first = run[0]
        if isinstance(first, Pack):
            first.busy += 1
            return functools.partial(self._prefetch_pack, first, table.jobs.begin("reading", first))
        fetches: list[tuple[Entry, Fetch]] = []
        for entry in run:
            handle = entry.handle()
            fetch = None if handle is None else handle._fetch
            if fetch is not None:  # else the inbox tells that the handle is dead
                entry.busy += 1
                fetches.append((entry, fetch))
        if not fetches:
            return None
        nbytes = sum(entry.nbytes for entry, _ in fetches)
        job = table.jobs.begin("reading", first, nbytes)
        return functools.partial(self._fetch_run, fetches, job)

    def _pop_run(
        self, waiting: OrderedDict[Entry, None], plain: Callable[[Entry], bool]
    ) -> list[Entry]:
        """Pop the first of a queue, and its successors while adjacent to the run and ``plain``.

        Sorted by place.
        """
        entry, _ = waiting.popitem(last=False)
        run, nbytes = [entry], entry.nbytes
        while waiting and plain(entry) and len(run) < _MAX_RUN_LENGTH:
            entry = next(iter(waiting))
            nbytes += entry.nbytes
            if nbytes > self._max_run_nbytes or not plain(entry):
                break
            if self._backend.is_adjacent(run[-1], entry):
                run.append(entry)
            elif self._backend.is_adjacent(entry, run[0]):  # backward reads in reverse order
                run.insert(0, entry)
            else:
                break
            del waiting[entry]
        return run

    def _is_written_plain(self, entry: Entry) -> bool:
        if isinstance(entry, Pack):
            return False
        source = self._table.source_of(entry)
        return source is not None and not self._encoder.applies(source)

    # ---- in any thread, without the lock

    def read(self, entry: Entry, out: Array, since: float | None = None) -> None:
        """Fill the C-contiguous ``out`` in the calling thread; ``since`` is when its get began."""
        table = self._table
        table.check_process(entry)
        with table.lock:
            table.handle_deaths()
            table.check(entry)
            source = table.begin_read(entry)
            pack = entry.pack if source is None else None
            loaded = None if pack is None else self._packs.cache.in_memory_locked(pack)
            job = table.jobs.begin("reading", entry)
        pinned = source is not None
        failure: StoreError | None = None
        done = False
        try:
            self._fill(entry, out, source, pack, loaded)
            done = True
        except Exception as error:
            failure = table.errors.wrap(error, "reading", entry)
        finally:
            source = loaded = None
            with table.lock:
                table.end_read(entry, pinned)
                table.jobs.end(job)
                if since is not None and done:
                    table.count_get(entry, since)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # else the error holds itself by its traceback

    def _fill(
        self,
        entry: Entry,
        out: Array,
        source: Array | None,
        pack: Pack | None,
        loaded: Array | None,
    ) -> None:
        if source is not None:
            with interruptible:
                self._encoder.copy_as_stored(source, out)
            return
        encoded = self._encoder.is_encoded(entry)
        data = self._buffers.empty(entry.payload_nbytes, np.uint8) if encoded else out
        if pack is not None:
            self._packs.cache.read(entry, pack, data, loaded)
        else:
            with interruptible:
                self._backend.read(entry, data)
        if encoded:
            with interruptible:
                self._encoder.decode(data, out)

    def write_now(self, entry: Entry, data: Array) -> StoreError | None:
        """Write ``data`` in the calling thread, which may be interrupted; return the failure."""
        table = self._table
        began = time.perf_counter()
        written_nbytes = failure = None
        try:
            with interruptible:
                written_nbytes = self._write(entry, data)
        except Exception as error:
            failure = table.errors.wrap(error, "writing", entry)
        finally:
            with table.lock:
                table.figures.write_seconds += time.perf_counter() - began
                if written_nbytes is not None:
                    table.record_written(entry, written_nbytes)
                    table.end_write(entry, None)
                else:
                    entry.busy -= 1
                    table.undo_put(entry)
        return failure

    def _write(self, entry: Entry, data: Array) -> int:
        return self.retry_after_release(lambda: self._backend.write(entry, data))

    def retry_after_release(self, action: Callable[[], T]) -> T:
        """Do ``action``; if the disk is full, retry it after releasing free space."""
        try:
            return action()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            with masked, self._table.lock:
                if not self._backend.release_free():
                    raise
        return action()

    # ---- jobs

    def _write_run(self, run: list[Entry], job: Any) -> None:
        if len(run) == 1 or not self._write_together(run):
            for entry in run:
                self._write_one(entry)
        with self._table.lock:
            self._table.jobs.end(job)

    def _write_together(self, run: list[Entry]) -> bool:
        table = self._table
        began = time.perf_counter()
        try:
            sizes = self._backend.write_run(run, [_source_of(entry) for entry in run])
        except Exception:  # writing each alone shows which of them fails, and why
            return False
        with table.lock:
            table.figures.write_seconds += time.perf_counter() - began
            for entry, stored_nbytes in zip(run, sizes, strict=True):
                table.record_written(entry, stored_nbytes)
                table.end_write(entry, None)
        return True

    def _write_one(self, entry: Entry) -> None:
        table, action = self._table, "encoding"
        stored_nbytes, pack, failure = 0, None, None
        began = time.perf_counter()
        try:
            # The encoded array may be the source, to which no reference may survive the
            # notification of waiting threads.
            data = self._encoder.encode(entry, _source_of(entry))
            began, action = time.perf_counter(), "writing"
            if 0 < data.nbytes < self._packs.open.below and not isinstance(entry, Pack):
                pack = self._packs.open.put_encoded(entry, data)
            if pack is None:
                stored_nbytes = self._write(entry, data)
        except Exception as error:
            failure = table.errors.wrap(error, action, entry)
        data = None  # type: ignore[assignment]
        with table.lock:
            table.figures.write_seconds += time.perf_counter() - began
            if pack is not None:
                table.free_place(entry)
                self._packs.open.point_to_locked(entry, pack)
            elif failure is None:
                table.record_written(entry, stored_nbytes)
            table.end_write(entry, failure)

    def _prefetch_pack(self, pack: Pack, job: Any) -> None:
        self._packs.cache.prefetch(pack)
        table = self._table
        with table.lock:
            pack.busy -= 1
            table.leave_if_unused(pack)
            table.jobs.end(job)

    def _fetch_run(self, run: list[tuple[Entry, Fetch]], job: Any) -> None:
        if len(run) == 1 or not self._fetch_together(run):
            for entry, fetch in run:
                self._fetch(entry, fetch)
        with self._table.lock:
            self._table.jobs.end(job)

    def _fetch_together(self, run: list[tuple[Entry, Fetch]]) -> bool:
        table = self._table
        began = time.perf_counter()
        try:
            self._backend.read_run(
                [entry for entry, _ in run], [_target_of(each) for _, each in run]
            )
        except Exception:
            return False
        with table.lock:
            table.figures.read_seconds += time.perf_counter() - began
            for entry, fetch in run:
                self._end_fetch(entry, fetch)
        return True

    def _fetch(self, entry: Entry, fetch: Fetch) -> None:
        table = self._table
        began = time.perf_counter()
        try:
            self.read(entry, _target_of(fetch))
        except Exception as error:
            fetch.error = table.errors.wrap(error, "prefetching", entry)
        with table.lock:
            table.figures.read_seconds += time.perf_counter() - began
            self._end_fetch(entry, fetch)

    def _end_fetch(self, entry: Entry, fetch: Fetch) -> None:
        table = self._table
        entry.busy -= 1
        fetch.done = True
        handle = entry.handle()
        if handle is None or handle._fetch is not fetch:
            fetch.array = None
        elif fetch.error is not None and not isinstance(fetch.error, StoreClosedError):
            table.errors.unreported.append(fetch.error)
        table.leave_if_unused(entry)
        table.notify_all()

    def _run_free_job(self, free_job: Callable[[], object], job: Any) -> None:
        table = self._table
        failure = None
        try:
            free_job()
        except Exception as error:
            failure = table.errors.wrap(error, "freeing space", None)
        with table.lock:
            if failure is not None:
                table.errors.unreported.append(failure)
            table.jobs.end(job)
            table.notify_all()


def _is_stored_plain(entry: Entry) -> bool:
    if isinstance(entry, Pack) or entry.state is not State.STORED:
        return False
    return entry.encoded_nbytes is None


def _source_of(entry: Entry) -> Array:
    assert entry.source is not None
    return entry.source


def _target_of(fetch: Fetch) -> Array:
    assert fetch.array is not None
    return fetch.array
