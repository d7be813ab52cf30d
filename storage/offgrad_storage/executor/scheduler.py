"""The jobs of the I/O threads, and their order: prefetches, free jobs, then writes.

Consecutive jobs of arrays that are adjacent in a file run as one: a system call for several MB is
faster than one for each array.
"""

from __future__ import annotations

import errno
import functools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.backend import Backend
from offgrad_storage.entry import (
    Entry,
    Fetch,
    Pack,
    State,
)
from offgrad_storage.errors import StoreClosedError, StoreError
from offgrad_storage.executor.encoding import Encoder
from offgrad_storage.executor.packs import PackTable
from offgrad_storage.executor.workers import Workers

Array = NDArray[Any]
T = TypeVar("T")

_MAX_RUN_NBYTES = 16 << 20  # bytes of the arrays of one I/O
_MAX_RUN_LENGTH = 64  # arrays of one I/O
_EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


@dataclass(slots=True)
class _WriteResult:
    """Result of a write: the bytes it takes, or the pack the array moved to, or a failure."""

    stored_nbytes: int = 0
    pack: Pack | None = None
    failure: StoreError | None = None
    interrupt: BaseException | None = None
    seconds: float = 0.0


class IOScheduler(PackTable):
    """Chooses the next job of an I/O thread, and does it.

    Args:
        backend: moves the bytes.
        workers: the I/O threads.
        inflight_nbytes: bound of the bytes of arrays with a pending write.
        encoder: encodes arrays before they are written.
    """

    def __init__(
        self, backend: Backend, workers: Workers, inflight_nbytes: int, encoder: Encoder
    ) -> None:
        super().__init__(backend, workers, inflight_nbytes)
        self._encoder = encoder
        # A run of all the bytes in flight would make puts wait until the whole run is written.
        self._max_run_nbytes = min(_MAX_RUN_NBYTES, inflight_nbytes // 4)

    def _next_job(self) -> Callable[[], object] | None:
        with self._lock:
            if not (self._write_waiters and self._writes):
                if self._reads:
                    return self._next_read()
                if self._free_jobs:
                    self._active += 1
                    return functools.partial(self._run_free_job, self._free_jobs.popleft())
            if self._writes:
                run = self._pop_run(self._writes, self._is_written_plain)
                for entry in run:
                    self._begin_write(entry)
                return functools.partial(self._write_run, run)
            return None

    def _next_read(self) -> Callable[[], object]:
        run = self._pop_run(self._reads, _is_stored_plain)
        self._active += len(run)
        if isinstance(run[0], Pack):
            return functools.partial(self.prefetch_pack, run[0])
        fetches: list[tuple[Entry, Fetch]] = []
        for entry in run:
            assert entry.fetch is not None
            entry.busy += 1
            fetches.append((entry, entry.fetch))
        return functools.partial(self._fetch_run, fetches)

    def _pop_run(
        self, queue: OrderedDict[Entry, None], plain: Callable[[Entry], bool]
    ) -> list[Entry]:
        """Pop the first of ``queue``, and its successors while adjacent to the run and ``plain``.

        Sorted by place.
        """
        entry, _ = queue.popitem(last=False)
        run, nbytes = [entry], entry.nbytes
        while queue and plain(entry) and len(run) < _MAX_RUN_LENGTH:
            entry = next(iter(queue))
            nbytes += entry.nbytes
            if nbytes > self._max_run_nbytes or not plain(entry):
                break
            if self.backend.is_adjacent(run[-1], entry):
                run.append(entry)
            elif self.backend.is_adjacent(entry, run[0]):  # backward reads in reverse order
                run.insert(0, entry)
            else:
                break
            del queue[entry]
        return run

    def _is_written_plain(self, entry: Entry) -> bool:
        return not (isinstance(entry, Pack) or self._encoder.applies(_source_of(entry)))

    def read(self, entry: Entry, out: Array, since: float | None = None) -> None:
        """Fill the C-contiguous ``out`` in the calling thread; ``since`` is when its get began."""
        self._check_process(entry)
        with self._lock:
            self._check_open(entry)
            self._end_pack_prefetch(entry)
            source = self._begin_read(entry)
            loaded = None if entry.pack is None else self._in_memory(entry.pack)
        pinned = source is not None
        failure: StoreError | None = None
        try:
            if source is not None:
                self._encoder.copy_as_stored(source, out)
            else:
                self._read_stored(entry, out, loaded)
        except Exception as error:
            failure = self._store_error(error, "reading", entry)
        finally:
            source = None
            with self._lock:
                self._end_read(entry, pinned)
                if since is not None and failure is None:
                    self._count_get(entry, since)
        if failure is not None:
            raise failure

    def _read_stored(self, entry: Entry, out: Array, loaded: Array | None) -> None:
        """Fill ``out`` from the backend; ``loaded`` are the bytes of the pack of ``entry``."""
        if not self._encoder.is_encoded(entry):
            self._read_bytes(entry, out, loaded)
            return
        data: Array = self._buffers.empty(entry.payload_nbytes, np.uint8)
        self._read_bytes(entry, data, loaded)
        self._encoder.decode(data, out)

    def _read_bytes(self, entry: Entry, out: Array, loaded: Array | None) -> None:
        if entry.pack is None:
            self.backend.read(entry, out)
        else:
            self._read_from_pack(entry, entry.pack, out, loaded)

    def _goes_into_pack(self, data: Array) -> bool:
        return 0 < data.nbytes < self.backend.packs_below and bool(self._workers.max_threads)

    def _write_run(self, run: list[Entry]) -> None:
        if len(run) == 1 or not self._write_together(run):
            for entry in run:
                self._encode_and_write(entry)

    def _write_together(self, run: list[Entry]) -> bool:
        began = time.perf_counter()
        try:
            sizes = self.backend.write_run(run, [_source_of(entry) for entry in run])
        except Exception:  # writing each alone shows which of them fails, and why
            return False
        with self._lock:
            self._figures.write_seconds += time.perf_counter() - began
            for entry, stored_nbytes in zip(run, sizes, strict=True):
                self._record_written(entry, stored_nbytes)
                self._end_write(entry, None)
        return True

    def _encode_and_write(self, entry: Entry) -> None:
        try:
            # Do not bind the encoded array to a name: no reference may survive the notification
            # of waiters.
            written = self._try_to_write(entry, self._encoder.encode(entry, _source_of(entry)))
        except Exception as error:
            written = _WriteResult(failure=self._store_error(error, "encoding", entry))
        self._finish_write(entry, written)

    def _write(self, entry: Entry, data: Array) -> None:
        self._finish_write(entry, self._try_to_write(entry, data))

    def _try_to_write(self, entry: Entry, data: Array) -> _WriteResult:
        began = time.perf_counter()
        written = _WriteResult()
        try:
            if self._goes_into_pack(data) and not isinstance(entry, Pack):
                written.pack = self.pack_encoded(entry, data)
            if written.pack is None:
                written.stored_nbytes = self._retry_after_release(
                    lambda: self.backend.write(entry, data)
                )
        except BaseException as error:
            written.failure = self._store_error(error, "writing", entry)
            if not isinstance(error, Exception):
                written.interrupt = error
        written.seconds = time.perf_counter() - began
        return written

    def _finish_write(self, entry: Entry, written: _WriteResult) -> None:
        with self._lock:
            self._figures.write_seconds += written.seconds
            if written.pack is not None:
                self._move_to_pack(entry, written.pack)
            elif written.failure is None:
                self._record_written(entry, written.stored_nbytes)
            self._end_write(entry, written.failure)
        if written.interrupt is not None:
            raise written.interrupt

    def _retry_after_release(self, action: Callable[[], T]) -> T:
        """Do ``action``; if the disk is full, retry it after releasing free space."""
        try:
            return action()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            with self._lock:
                if not self.backend.release_free():
                    raise
        return action()

    def _fetch_run(self, run: list[tuple[Entry, Fetch]]) -> None:
        if len(run) == 1 or not self._fetch_together(run):
            for entry, fetch in run:
                self._fetch(entry, fetch)

    def _fetch_together(self, run: list[tuple[Entry, Fetch]]) -> bool:
        began = time.perf_counter()
        try:
            self.backend.read_run(
                [entry for entry, _ in run], [_target_of(each) for _, each in run]
            )
        except Exception:
            return False
        with self._lock:
            self._figures.read_seconds += time.perf_counter() - began
            for entry, fetch in run:
                self._end_fetch(entry, fetch)
        return True

    def _fetch(self, entry: Entry, fetch: Fetch) -> None:
        began = time.perf_counter()
        fetch.error = entry.error
        try:
            if fetch.error is None:
                self.read(entry, _target_of(fetch))
        except Exception as error:
            fetch.error = self._store_error(error, "prefetching", entry)
        with self._lock:
            self._figures.read_seconds += time.perf_counter() - began
            self._end_fetch(entry, fetch)

    def _end_fetch(self, entry: Entry, fetch: Fetch) -> None:
        self._active -= 1
        entry.busy -= 1
        fetch.done = True
        if entry.fetch is not fetch or entry.dropped:
            fetch.array = None
        reportable = not (entry.dropped or isinstance(fetch.error, StoreClosedError))
        if fetch.error is not None and fetch.error is not entry.error and reportable:
            self._unreported_errors.append(fetch.error)
        self._free_if_unused(entry)
        self._lock.notify_all()

    def _run_free_job(self, free_job: Callable[[], object]) -> None:
        try:
            free_job()
        except Exception as error:
            self._unreported_errors.append(self._store_error(error, "freeing space", None))
        with self._lock:
            self._active -= 1
            self._lock.notify_all()


def _is_stored_plain(entry: Entry) -> bool:
    if isinstance(entry, Pack) or entry.state is not State.STORED:
        return False
    return entry.pack is None and entry.encoded_nbytes is None


def _source_of(entry: Entry) -> Array:
    assert entry.source is not None
    return entry.source


def _target_of(fetch: Fetch) -> Array:
    assert fetch.array is not None
    return fetch.array
