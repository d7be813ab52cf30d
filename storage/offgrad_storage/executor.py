"""Write-behind and prefetch: moves stored arrays through their states, on I/O threads.

An array put is queued, written, and then stored; until then it is read from the array itself.
Reads that someone waits for run at once in the waiting thread; the I/O threads do prefetches, then
what freeing takes, then writes, except that a write someone waits for goes first.

The threads know the executor and its backend but not the store, so a store can die unclosed.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  (see the end of this file)
import contextlib
import dataclasses
import errno
import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import NDArray

from .backend import Backend
from .base import StoreStats
from .codecs import Codec
from .entry import Entry, Fetch, Pack
from .errors import StoreClosedError, StoreError
from .gather import Gathering
from .workers import Workers

Array = NDArray[Any]
T = TypeVar("T")

_SPENT = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


class Executor(Gathering):
    """Does what a store is asked for, and keeps its figures.

    Args:
        backend: moves the bytes.
        threads: most I/O threads; with 0, writes happen in the calling thread.
        inflight_nbytes: most bytes of arrays with a pending write; one larger array may go alone.
        codec: what arrays are encoded with, in the I/O threads if there are any.
    """

    def __init__(
        self, backend: Backend, threads: int, inflight_nbytes: int, codec: Codec | None = None
    ) -> None:
        super().__init__(backend, inflight_nbytes, codec)
        if threads < 0:
            raise ValueError(f"threads must be at least 0, got {threads}")
        self._closing = threading.Lock()  # whoever closes second waits for the first
        self._workers = Workers(self._step, self._last_step, threads, backend.name)
        _executors.add(self)

    # ---- what a store asks for

    def write(self, entry: Entry, array: Array) -> None:
        """Take ``array`` as the value of ``entry``; wait while too much is in flight."""
        self.check(entry)
        if not self._workers.limit:
            data = self.encode(entry, array)
        try:
            self._with_room(lambda: self.backend.prepare(entry))
        except OSError as error:
            raise self._store_error(error, "making room", entry) from None
        if self._gathers(array) and not self._may_encode(array):
            self.put_gathered(entry, array)
            return
        with self._lock:
            self._grow(entry)
            while self._workers and not self._fits(entry):
                self._wait_for_write(entry)
            self._reserve(entry)
            entry.source = array
            self._register(entry)
            self._figures.inflight_nbytes += entry.nbytes
            if self._workers:
                self._writes[entry] = None
                self._workers.wake()
                return
            self._begin_write(entry)
        self._write(entry, data)
        if entry.error is not None:
            raise self._deliver(entry.error)

    def read(self, entry: Entry, out: Array, since: float | None = None) -> None:
        """Fill the C-contiguous ``out`` in the calling thread; ``since`` is when its get began."""
        self._check_process(entry)
        with self._lock:
            self._check_open(entry)
            self._take_gathered(entry)
            source = self._begin_read(entry)
            loaded = None if entry.pack is None else self._in_memory(entry.pack)
        pinned = source is not None
        failure: StoreError | None = None
        try:
            if source is not None:
                self.copy_as_stored(entry, source, out)
            else:
                self.read_stored(entry, out, loaded)
        except Exception as error:
            failure = self._store_error(error, "reading", entry)
        finally:
            source = None
            with self._lock:
                self._end_read(entry, pinned)
                if since is not None and failure is None:
                    self._got(entry, since)
        if failure is not None:
            raise failure

    def prefetch(self, entry: Entry, out: Array | None) -> bool:
        """Have a thread fill the C-contiguous ``out``; False if a prefetch is under way already.

        Of a gathered array only the pack is read ahead: ``get`` fills ``out``, or what it gets.
        """
        self._check_process(entry)
        with self._lock:
            self._check_open(entry)
            if entry.fetch is not None:
                return False
            entry.fetch = Fetch(out, gathered=entry.pack is not None)
            if entry.pack is not None:
                self._want(entry.pack)
            else:
                self._grow(entry)
                self._reads[entry] = None
                self._workers.wake()
            return True

    def take(self, entry: Entry, since: float | None = None) -> tuple[Array | None, bool]:
        """The array of the prefetch under way, if any, and whether it is filled; waits for it.

        If it is filled, that ends a get that began at ``since``.
        """
        self._check_process(entry)
        with self._lock:
            self._check_open(entry)
            fetch = entry.fetch
            if fetch is None:
                return None, False
            if fetch.gathered:
                self._take_gathered(entry)
                return fetch.array, False
            if self._reads.pop(entry, self) is not None:
                while not fetch.done:
                    self._lock.wait()
                if entry.fetch is not fetch:  # another thread has taken it
                    return None, False
                self._figures.prefetch_hits += 1
            entry.fetch = None
            if fetch.error is not None:
                raise self._deliver(fetch.error)
            if fetch.done and since is not None:
                self._got(entry, since)
            return fetch.array, fetch.done

    def cancel_prefetch(self, entry: Entry) -> None:
        """Forget the prefetch under way, if any; wait while a thread fills its array."""
        self._check_process(entry)
        with self._lock:
            fetch = entry.fetch
            if fetch is None:
                return
            if fetch.gathered:
                self._unwant(entry)
                return
            if self._reads.pop(entry, self) is not None:
                while not fetch.done:
                    self._lock.wait()
            if entry.fetch is fetch:
                entry.fetch = None
            # An error of reading comes again when somebody wants the array.
            if fetch.error is not entry.error and fetch.error in self._undelivered:
                self._undelivered.remove(fetch.error)

    def wait_captured(self, entry: Entry) -> None:
        """Wait until the source of ``entry`` may change; its write goes first."""
        if self._forked():
            return  # a fork has memory of its own, which nobody is reading from
        with self._lock:
            if entry in self._writes:
                self._writes.move_to_end(entry, last=False)
            while not entry.captured:
                self._wait_for_write(entry)

    def drop(self, entry: Entry) -> None:
        """The handle of ``entry`` has died. Never waits: the garbage collector calls it."""
        if self._closed or self._forked():
            return
        if not self._lock.post(entry) and self._workers:
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
        """End all work, join the threads and close the backend; raise what nobody was told."""
        if self._forked():
            return
        with self._lock:
            first = not self._closed
            if first:
                self._closed = True
                if not self.backend.keeps:
                    self._cancel_all()
                self._workers.stop()
                self._lock.notify_all()
        with self._closing:
            self._workers.join()
            self._end_packs()
            with self._lock:
                while self._active:  # reads in the threads of callers
                    self._lock.wait()
            if first:
                self._publish_for_good()
            self.backend.close()
        self._figures.live_handles = self._figures.logical_nbytes = 0
        if not self.backend.keeps:
            self.backend.used_nbytes = self._figures.stored_nbytes = 0
        errors, self._undelivered = self._undelivered, []
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"also: {other}")
            raise errors[0]

    def flush(self) -> None:
        """Write what is pending, and wait for it."""
        self.check()
        with self._lock:
            self._seal_all()
            while self._writes or self._copying or self._figures.inflight_nbytes:
                self._wait_for_write(None)
                self._seal_all()  # what was encoded meanwhile may be in a new pack

    def publish(self) -> None:
        """Have the backend make what is stored readable for others."""
        self.flush()
        with self._lock:
            entries = _in_order(self._entries)
        try:
            self.backend.publish(entries)
        except Exception as error:
            raise self._store_error(error, "writing metadata", None) from None

    def abandon(self) -> None:
        """The store has died unclosed. Never waits: the last thread closes the backend."""
        if self._closed or self._forked():
            return
        self._closed = self._abandoned = True
        self._workers.stop()
        if not self._workers:
            self.backend.close()

    # ---- the I/O threads

    def _step(self) -> None:
        with self._lock:
            if self._abandoned and not self.backend.keeps:
                self._cancel_all()
        job = self._next_job()
        if job is not None:
            job()

    def _last_step(self) -> None:
        if self._abandoned:
            self._end_packs()
            self._publish_for_good()
            self.backend.close()

    def _publish_for_good(self) -> None:
        entries, self._entries = self._entries, {}
        if self.backend.lists and self.backend.keeps:
            try:
                self.backend.publish(_in_order(entries))
            except Exception as error:
                self._undelivered.append(self._store_error(error, "writing metadata", None))

    def _end_packs(self) -> None:
        """With no I/O thread left: write the open packs if they are to last; forget them all."""
        if self.backend.keeps:
            with self._lock:
                while self._copying:  # in the threads of callers
                    self._lock.wait()
                self._seal_all()
            while (job := self._next_job()) is not None:
                job()
        with self._lock:
            self._forget_packs()

    def _next_job(self) -> Callable[[], object] | None:
        with self._lock:
            if not (self._write_waiters and self._writes):
                if self._reads:
                    entry, _ = self._reads.popitem(last=False)
                    if isinstance(entry, Pack):
                        self._active += 1
                        return functools.partial(self.load_ahead, entry)
                    fetch = entry.fetch
                    assert fetch is not None
                    self._active += 1
                    entry.busy += 1
                    return functools.partial(self._fetch, entry, fetch)
                if self._chores:
                    self._active += 1
                    return functools.partial(self._do_chore, self._chores.popleft())
            if self._writes:
                entry, _ = self._writes.popitem(last=False)
                self._begin_write(entry)
                return functools.partial(self._encode_and_write, entry)
            return None

    def _gathers(self, data: Array) -> bool:
        return bool(self._workers.limit) and 0 < data.nbytes < self.backend.gathers_below

    def _may_encode(self, array: Array) -> bool:
        return self.codec is not None and self.codec.applies(array)

    def _encode_and_write(self, entry: Entry) -> None:
        assert entry.source is not None
        try:
            data = self.encode(entry, entry.source)
        except Exception as error:
            with self._lock:
                self._end_write(entry, self._store_error(error, "encoding", entry))
        else:
            self._write(entry, data)

    def _write(self, entry: Entry, data: Array) -> None:
        stored_nbytes, failure, pack = 0, None, None
        began = time.perf_counter()
        try:
            if entry.encoded_nbytes is not None and self._gathers(data):
                pack = self.gather(entry, data)
            if pack is None:
                stored_nbytes = self._with_room(lambda: self.backend.write(entry, data))
        except BaseException as error:
            failure = self._store_error(error, "writing", entry)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                self._figures.write_seconds += time.perf_counter() - began
                if pack is not None:
                    self._move_into(entry, pack)
                elif failure is None:
                    self._settle(entry, stored_nbytes)
                self._end_write(entry, failure)

    def _with_room(self, action: Callable[[], T]) -> T:
        """Do ``action``; if the disk is full, once more after some was given back."""
        try:
            return action()
        except OSError as error:
            if error.errno not in _SPENT:
                raise
            with self._lock:
                if not self.backend.release_free():
                    raise
        return action()

    def _fetch(self, entry: Entry, fetch: Fetch) -> None:
        began = time.perf_counter()
        fetch.error = entry.error
        try:
            if fetch.error is None:
                assert fetch.array is not None
                self.read(entry, fetch.array)
        except Exception as error:
            fetch.error = self._store_error(error, "prefetching", entry)
        with self._lock:
            self._figures.read_seconds += time.perf_counter() - began
            self._active -= 1
            entry.busy -= 1
            fetch.done = True
            wanted = not (entry.dropped or isinstance(fetch.error, StoreClosedError))
            if fetch.error is not None and fetch.error is not entry.error and wanted:
                self._undelivered.append(fetch.error)
            self._free_if_unused(entry)
            self._lock.notify_all()

    def _do_chore(self, chore: Callable[[], object]) -> None:
        try:
            chore()
        except Exception as error:
            self._undelivered.append(self._store_error(error, "freeing space", None))
        with self._lock:
            self._active -= 1
            self._lock.notify_all()


def _in_order(entries: dict[int, Entry]) -> list[Entry]:
    return [entries[serial] for serial in sorted(entries)]


_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


def _close_at_exit() -> None:
    for executor in list(_executors):
        # Nobody is left to read what a store that keeps nothing failed to write.
        ignored = () if executor.backend.keeps else (StoreError,)
        with contextlib.suppress(*ignored):
            executor.close()


# At exit, a backend may still need threads of others, as zarr does. These end before atexit runs,
# but after what is registered here, later than theirs: so concurrent.futures.thread comes first.
getattr(threading, "_register_atexit", atexit.register)(_close_at_exit)
