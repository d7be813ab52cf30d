"""The entries of a store: their states, the transitions between them, and the sums over them.

A weak reference watches each handle. Its callback is a C function that puts the reference into the
inbox of the I/O threads, so no SIGINT and no garbage collection can lose a death, and an idle
thread wakes up and frees the space. The next operation of the store handles it if no thread does.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from offgrad_storage._checks import check_count
from offgrad_storage.backend import Backend
from offgrad_storage.base import StoreStats
from offgrad_storage.entry import Entry, Handle, Pack, State
from offgrad_storage.errors import StoreError
from offgrad_storage.executor.forks import process
from offgrad_storage.executor.jobs import Jobs
from offgrad_storage.executor.observers import observers
from offgrad_storage.executor.reporting import Errors
from offgrad_storage.executor.waiting import Waiters

Array = NDArray[Any]

_POLL_SECONDS = 0.05  # a death wakes no thread that waits here

_NEXT: dict[State, tuple[State, ...]] = {
    State.ARRIVING: (State.QUEUED, State.PACKED, State.CANCELLED, State.LEAVING),
    State.QUEUED: (State.WRITING, State.CANCELLED, State.LEAVING),
    State.WRITING: (
        State.STORED, State.PACKED, State.FAILED, State.CANCELLED, State.LEAVING,
    ),
    State.STORED: (State.LEAVING,),
    State.PACKED: (State.LEAVING,),
    State.FAILED: (State.QUEUED, State.CANCELLED, State.LEAVING),
    State.CANCELLED: (State.LEAVING,),
    State.LEAVING: (State.DEAD,),
    State.DEAD: (),
}  # fmt: skip


class EntryTable:
    """All entries of a store, the queues of those that wait for a thread, and the figures.

    Call its methods inside a masked block, with ``lock`` held, except as noted.

    Args:
        backend: moves the bytes.
        inflight_nbytes: bound of the bytes of memory held for pending writes, packs that are being
            filled included. One larger array may go alone.
        inbox: takes the weak references of dead handles.

    Attributes:
        lock: held briefly, never while a callback of the user runs.
        live: the entries of live handles.
        leaving: entries in the state LEAVING.
        kept: in a persistent store, the entries of dead handles by serial, if the backend tracks
            entries.
        pending: entries and packs whose source counts in flight.
        writes, reads: those that wait for an I/O thread; ``reads`` holds prefetches.
        free_jobs: the slow parts of freeing.
        open_nbytes: memory of packs that are not pending yet.
        jobs: the reads and writes under way.
        errors: the errors of the store, and its writes that failed.
        leave_pack: called with a dead entry that leaves its pack.
        end_prefetch: called with a dead entry whose pack was prefetched.
        wake: has an idle thread look for a job.
    """

    leave_pack: Callable[[Entry], object]
    end_prefetch: Callable[[Entry], object]
    wake: Callable[[], object]

    def __init__(
        self, backend: Backend, inflight_nbytes: int, inbox: queue.SimpleQueue[Any]
    ) -> None:
        check_count("inflight_nbytes", inflight_nbytes)
        self.backend = backend
        self.max_inflight_nbytes = inflight_nbytes
        self.lock = threading.Lock()
        self.figures = StoreStats()
        self.live: dict[weakref.ref[Handle], Entry] = {}
        self.leaving: dict[Entry, None] = {}
        self.kept: dict[int, Entry] = {}
        self.pending: dict[Entry, None] = {}
        self.writes: OrderedDict[Entry, None] = OrderedDict()
        self.reads: OrderedDict[Entry, None] = OrderedDict()
        self.free_jobs: deque[Callable[[], object]] = deque()
        self.errors = Errors(backend)
        self.open_nbytes = self.packs_inflight_nbytes = 0
        self.write_waiters = 0
        self.closed = self.abandoned = False
        self.store: object = None  # a weak reference to the store
        self.forks = process.forks
        self._inbox = inbox
        self._watch = inbox.put
        self._waiters = Waiters(self.lock.release, self.lock.acquire)
        self.notify_all = self._waiters.notify_all
        self.jobs = Jobs(self.notify_all)

    # ---- transitions

    def move(self, entry: Entry, state: State) -> None:
        """Change the state of ``entry``.

        Raises:
            AssertionError: there is no such transition.
        """
        if state not in _NEXT[entry.state]:
            raise AssertionError(f"{entry} cannot go from {entry.state.value} to {state.value}")
        entry.state = state

    def reserve(self, entry: Entry) -> None:
        """Have the backend reserve space for ``entry``.

        Raises:
            QuotaExceededError, StoreFullError: it has none.
        """
        try:
            stored_nbytes = self.backend.reserve(entry)
        except OSError as error:
            raise self.errors.wrap(error, "making room", entry) from error
        self.set_stored_nbytes(entry, stored_nbytes)

    def add(self, handle: Handle, entry: Entry) -> None:
        """Watch ``handle``, and count its array."""
        entry.handle = reference = weakref.ref(handle, self._watch)
        self.live[reference] = entry
        figures = self.figures
        figures.puts += 1
        figures.live_handles += 1
        figures.logical_nbytes += entry.nbytes

    def hold_source(self, handle: Handle, entry: Entry, array: Array) -> None:
        """Take ``array`` in flight for a reserved entry: ARRIVING to QUEUED."""
        self.move(entry, State.QUEUED)
        if self.backend.persistent:  # written even if its handle dies
            entry.source = array
        else:
            handle._source = array
        for observer in observers:
            observer.on_hold(entry, array)
        self._pend(entry)

    def enqueue_pack(self, pack: Pack) -> None:
        """The write of a pack, which is in flight already, waits for a thread."""
        self.move(pack, State.QUEUED)
        self.writes[pack] = None

    def pend_pack(self, pack: Pack) -> None:
        """A pack is sealed: its memory is in flight from now on."""
        self.open_nbytes -= pack.capacity
        self._pend(pack)

    def begin_write(self, entry: Entry) -> bool:
        """QUEUED to WRITING; False if the handle is dead."""
        if entry.source is None:
            handle = entry.handle()
            if handle is None:
                return False  # the inbox tells
            entry.source, handle._source = handle._source, None
        self.move(entry, State.WRITING)
        entry.busy += 1
        return True

    def record_written(self, entry: Entry, stored_nbytes: int) -> None:
        """The backend has written ``entry`` in ``stored_nbytes``."""
        try:
            self.backend.shrink(entry, stored_nbytes)
        except Exception as error:  # the array itself is stored
            self.errors.unreported.append(self.errors.wrap(error, "freeing space", entry))
        self.set_stored_nbytes(entry, stored_nbytes)
        if not isinstance(entry, Pack):
            self.figures.written_nbytes += stored_nbytes

    def end_write(self, entry: Entry, error: StoreError | None) -> None:
        """The write has ended: to STORED, PACKED if it has a pack, or FAILED."""
        entry.busy -= 1
        error_of_put = self.errors.end_write(entry, error)
        if entry.state is State.WRITING:
            if error is None:
                self.move(entry, State.STORED if entry.pack is None else State.PACKED)
            else:
                self._keep_failed(entry, error_of_put)
        self.release_source(entry)
        self.leave_if_unused(entry)
        self.notify_all()

    def retry_failed(self) -> bool:
        """Queue the writes that failed once more; return whether there are any."""
        failed = self.errors.failed_writes
        retried = [entry for entry in failed if self.source_of(entry) is not None]
        for entry in retried:
            self.errors.retry(entry)
            self.move(entry, State.QUEUED)
            self._pend(entry)
            self.writes[entry] = None
        return bool(retried)

    def undo_put(self, entry: Entry) -> None:
        """Forget an array whose put raises: no thread was found to write it, or it failed."""
        self.writes.pop(entry, None)
        del self.live[entry.handle]  # type: ignore[arg-type]
        self.figures.puts -= 1
        self._uncount(entry)
        self._drop_source(entry)
        self.move(entry, State.LEAVING)
        self.release_source(entry)
        if self.backend.persistent:  # it frees nothing
            self.set_stored_nbytes(entry, 0)
        self._leave(entry, free=not self.backend.persistent)

    def release_source(self, entry: Entry) -> None:
        """Let go of the source of ``entry``, unless it is needed."""
        state = entry.state
        if entry not in self.pending or entry.pins or state in (State.QUEUED, State.WRITING):
            return
        if state is State.LEAVING and entry.busy:  # its write has the source
            return
        del self.pending[entry]
        self.figures.inflight_nbytes -= entry.held_nbytes
        if isinstance(entry, Pack):
            self.packs_inflight_nbytes -= entry.capacity
        if state is not State.FAILED:
            self._drop_source(entry)
        self.notify_all()

    def begin_read(self, entry: Entry) -> Array | None:
        """The array to read from, pinned; None if the bytes are in the backend."""
        if entry.state in (State.QUEUED, State.WRITING, State.FAILED):
            source = self.source_of(entry)
            if source is None:
                raise self.errors.closed(entry)  # its handle is dead: no get sees this
            entry.pins += 1
            return source
        entry.busy += 1
        return None

    def end_read(self, entry: Entry, pinned: bool) -> None:
        """The opposite of ``begin_read``."""
        if pinned:
            entry.pins -= 1
            self.release_source(entry)
        else:
            entry.busy -= 1
        self.leave_if_unused(entry)
        self.notify_all()

    def leave_if_unused(self, entry: Entry) -> None:
        """LEAVING to DEAD, once no thread reads or writes the bytes."""
        if entry.state is State.LEAVING and not (entry.busy or entry.pins):
            self.release_source(entry)  # a read may have outlasted the write
            self._leave(entry, free=not (self.backend.persistent or self.closed))

    def end_pack(self, pack: Pack) -> None:
        """The last array of ``pack`` has left it."""
        self.writes.pop(pack, None)
        self.reads.pop(pack, None)
        error = self.errors.forget_failed(pack)
        if error is not None:  # nothing was lost
            self.errors.report(error)
        self._start_leaving(pack)

    def cancel_all(self) -> None:
        """Closing: forget all writes and prefetches that wait."""
        for entry in self.writes:
            self.move(entry, State.CANCELLED)
            self.release_source(entry)
        self.writes.clear()
        for entry in [*self.errors.failed_writes]:
            self.errors.forget_failed(entry)
            self.move(entry, State.CANCELLED)
            self._drop_source(entry)
        for entry in self.reads:
            handle = entry.handle()
            if handle is not None:  # no thread will fill it: `cancel_prefetch` must not wait
                handle._fetch = None
        self.reads.clear()
        self.free_jobs.clear()
        self.notify_all()

    def release_all(self) -> None:
        """The store is closed, and no job is under way: let go of all memory."""
        for entry in [*self.live.values(), *self.leaving, *self.errors.failed_writes]:
            self._drop_source(entry)
            handle = entry.handle()
            if handle is not None:
                handle._source = handle._fetch = None
        self.live.clear()
        self.leaving.clear()
        self.errors.clear_failed()
        self.figures.live_handles = self.figures.logical_nbytes = 0
        if not self.backend.persistent:
            self.backend.used_nbytes = self.figures.stored_nbytes = 0

    # ---- the death of a handle

    def handle_deaths(self) -> None:
        """Handle the deaths in the inbox. Cheap if there are none."""
        inbox, wakes = self._inbox, 0
        for _ in range(inbox.qsize()):
            try:
                item = inbox.get_nowait()
            except queue.Empty:
                break
            if item is None:
                wakes += 1
            else:
                self.on_death(item)
        for _ in range(wakes):
            inbox.put(None)

    def find_deaths(self) -> bool:
        """Handle deaths that a thread has taken from the inbox, too; return whether any was new.

        Linear in the number of live handles.
        """
        before = len(self.live)
        self.handle_deaths()
        for reference in [each for each in self.live if each() is None]:
            self.on_death(reference)
        return len(self.live) < before

    def on_death(self, reference: weakref.ref[Any]) -> None:
        """The handle, or the store, of ``reference`` has died."""
        if reference is self.store:
            self.closed = self.abandoned = True
            self.notify_all()
            return
        entry = self.live.pop(reference, None)
        if entry is None or (self.closed and not self.backend.persistent):
            return
        self._uncount(entry)
        self.reads.pop(entry, None)
        if entry.wants_pack:
            self.end_prefetch(entry)
        if self.backend.persistent:
            if self.backend.tracks_entries:
                self.kept[entry.serial] = entry
            return
        self.writes.pop(entry, None)
        self.errors.forget_failed(entry)
        self._start_leaving(entry)

    def _start_leaving(self, entry: Entry) -> None:
        self.move(entry, State.LEAVING)
        self.leaving[entry] = None
        self.release_source(entry)
        self.leave_if_unused(entry)

    def _leave(self, entry: Entry, free: bool) -> None:
        self.move(entry, State.DEAD)
        self.leaving.pop(entry, None)
        entry.source = None
        if entry.pack is not None:
            self.leave_pack(entry)
        elif free:
            self.free_place(entry)
        self.notify_all()

    def free_place(self, entry: Entry) -> None:
        """Free the place of ``entry`` in the backend."""
        self.set_stored_nbytes(entry, 0)
        try:
            free_job = self.backend.free(entry)
        except Exception as error:
            self.errors.unreported.append(self.errors.wrap(error, "freeing space", entry))
            return
        if free_job is not None:
            self.free_jobs.append(free_job)
            self.wake()

    # ---- sums

    def fits_in_flight(self, nbytes: int) -> bool:
        """Whether ``nbytes`` more may be held in memory; anything may if nothing is held."""
        held = self.figures.inflight_nbytes + self.open_nbytes + self.errors.failed_nbytes
        return not held or held + nbytes <= self.max_inflight_nbytes

    def set_stored_nbytes(self, entry: Entry, stored_nbytes: int) -> None:
        """Count the bytes that ``entry`` takes in the backend."""
        change = stored_nbytes - entry.stored_nbytes
        self.backend.used_nbytes += change
        if not isinstance(entry, Pack):  # the figures count the arrays in it
            self.figures.stored_nbytes += change
        entry.stored_nbytes = stored_nbytes

    def count_get(self, entry: Entry, since: float) -> None:
        """Count a get of ``entry`` that began at ``since`` and ends now."""
        figures = self.figures
        figures.gets += 1
        figures.read_nbytes += entry.nbytes
        figures.get_stall_seconds += time.perf_counter() - since

    def has_pending_arrays(self) -> bool:
        """Whether any array is in flight besides packs."""
        return self.figures.inflight_nbytes > self.packs_inflight_nbytes or any(
            not isinstance(entry, Pack) for entry in self.pending
        )

    def tracked(self) -> list[Entry]:
        """The entries of live handles, and in a persistent store of dead ones, by serial."""
        found = self.kept | {entry.serial: entry for entry in self.live.values()}
        return [found[serial] for serial in sorted(found)]

    def _pend(self, entry: Entry) -> None:
        if entry in self.pending:  # a read has pinned the source of a write that failed
            return
        self.pending[entry] = None
        self.figures.inflight_nbytes += entry.held_nbytes
        if isinstance(entry, Pack):
            self.packs_inflight_nbytes += entry.held_nbytes

    def _uncount(self, entry: Entry) -> None:
        self.figures.live_handles -= 1
        self.figures.logical_nbytes -= entry.nbytes

    # ---- the source

    def source_of(self, entry: Entry) -> Array | None:
        """The array in memory of an entry that is queued, being written or failed."""
        if entry.source is not None:
            return entry.source
        handle = entry.handle()
        return None if handle is None else handle._source

    def _drop_source(self, entry: Entry) -> None:
        entry.source = None  # before any thread is notified
        handle = entry.handle()
        if handle is not None:
            handle._source = None
        entry.captured = True
        for observer in observers:
            observer.on_captured(entry)

    def _keep_failed(self, entry: Entry, error: StoreError | None) -> None:
        """WRITING to FAILED: the array stays in memory; ``error`` is for the next put."""
        if self.closed:
            self.move(entry, State.CANCELLED)
            return
        if not (self.backend.persistent or isinstance(entry, Pack)):
            handle = entry.handle()
            if handle is None:
                return  # the inbox tells
            handle._source, entry.source = entry.source, None
        self.move(entry, State.FAILED)
        self.errors.add_failed(entry, error)

    def replace_source(self, entry: Entry, copy: Array) -> bool:
        """FAILED: keep a copy of the store's own; False if a write is pending again."""
        handle = entry.handle()
        if entry.state is not State.FAILED or entry.pins or handle is None:
            return False
        if entry.source is None:
            handle._source = copy
        else:
            entry.source = copy
        entry.captured = True
        self.notify_all()
        return True

    # ---- waiting

    def wait(self, timeout: float = _POLL_SECONDS) -> None:
        """Wait for a change; it may return without one.

        Raises:
            StoreClosedError: ``close`` has given up on a drive that does not answer.
        """
        self._waiters.wait(timeout)
        self.handle_deaths()
        if self.jobs.gave_up:
            raise self.errors.closed(None)

    def wait_for_write(self, entry: Entry | None) -> None:
        """Wait until a write ends, or something else changes.

        Raises:
            StoreClosedError: the store was closed meanwhile, before it took ``entry``.
        """
        began = time.perf_counter()
        self.write_waiters += 1
        try:
            self.wait()
        finally:
            self.write_waiters -= 1
            self.figures.put_stall_seconds += time.perf_counter() - began
        if self.jobs.gave_up or (self.closed and (entry is None or entry.state is State.ARRIVING)):
            raise self.errors.closed(entry)

    # ---- checks; these need no lock

    def is_forked(self) -> bool:
        """Whether the store belongs to the parent of this process."""
        return self.forks != process.forks

    def check(self, entry: Entry | None = None) -> None:
        """Raise unless the store may be used, by this process."""
        self.check_process(entry)
        if self.closed:
            raise self.errors.closed(entry)

    def check_process(self, entry: Entry | None) -> None:
        """Raise if this process is a fork; call it before taking the lock."""
        if self.is_forked():
            raise self.errors.forked(entry)
