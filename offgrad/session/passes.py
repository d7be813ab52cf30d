"""The running backward passes of a session: their order of use, their prefetches, and their end.

The session holds a pass weakly and the engine holds it strongly, so a pass that no call has ended,
because an interrupt came in between, ends with the engine's frame.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from weakref import ref

from offgrad_storage import AbstractArrayStore, Handle, StoreError
from offgrad_storage.interrupts import MaskedLock, masked

from offgrad import memory
from offgrad.memory import Storage
from offgrad.session.budgets import Budgets
from offgrad.session.memory_budget import MemoryBudget
from offgrad.session.prefetcher import Prefetched, Prefetcher
from offgrad.session.saved_array import SavedArray


class PassRef(ref[Prefetcher]):
    """A session's weak reference to a backward pass.

    Attributes:
        budgets: that know the order of use.
        reading: of the prefetcher.
        thread: that runs the pass.
    """

    __slots__ = ("budgets", "reading", "thread")

    budgets: list[MemoryBudget]
    reading: dict[int, ref[SavedArray]]
    thread: int

    @classmethod
    def to(cls, prefetcher: Prefetcher, ended: "deque[ref[Prefetcher]]") -> "PassRef":
        """Return a reference; it is appended to `ended` if the pass ends without `close`."""
        reference = cls(prefetcher, ended.append)  # a C function, which no interrupt can split
        reference.budgets, reference.reading = [], prefetcher.reading
        reference.thread = get_ident()
        return reference

    def end(self, cancel: Callable[[Handle], None]) -> None:
        """Give back the buffers of prefetches that are left; budgets forget the order."""
        for each in self.reading.values():
            saved = each()
            if saved is not None and saved.take_buffer() is not None:
                cancel(saved.handle)
        self.reading.clear()
        while self.budgets:
            self.budgets.pop().finish()


class BackwardPasses:
    """All running passes of one session. For use with its lock held, except as noted.

    Attributes:
        dead: passes that died with their frame, without a call of their `_finish`.
        cancelled: handles whose prefetches are not wanted any more.

    Args:
        lock: the session's.
        window_nbytes: the maximum that a pass reads ahead; also an attribute.
    """

    def __init__(self, lock: MaskedLock, window_nbytes: int) -> None:
        self._lock = lock
        self.window_nbytes = window_nbytes
        self._running: list[PassRef] = []
        self.dead: deque[ref[Prefetcher]] = deque()
        self.cancelled: deque[Handle] = deque()

    def begin(
        self, uses: Sequence[SavedArray], budgets: Budgets, planned: Callable[[], None]
    ) -> Callable[[], None]:
        """Learn the order of use, and begin to prefetch; return a function for the end.

        Call it without the lock.

        Args:
            uses: the saved arrays of the pass, in the order of use.
            budgets: of the session.
            planned: called with the lock held, before the first prefetch.
        """
        prefetcher = Prefetcher(uses, self.window_nbytes, budgets.fit, self.cancelled.append)
        order = prefetcher.order()
        handles: dict[AbstractArrayStore, list[Handle]] = {}
        for saved in order:
            stored = saved.stored
            if stored is not None:
                handles.setdefault(stored.handle.store, []).append(stored.handle)
        for store, wanted in handles.items():
            store.plan(wanted)
        reference = PassRef.to(prefetcher, self.dead)
        with self._lock:
            self._running.append(reference)
            for budget in budgets:
                reference.budgets.append(budget)
                budget.plan([saved for saved in order if saved.budget is budget])
            planned()
            first = prefetcher.advance()
        try:
            self._read_ahead(prefetcher, first)
        except BaseException:
            self._finish(reference, prefetcher)
            raise
        return partial(self._finish, reference, prefetcher)

    def consume(self, saved: SavedArray, storage: Storage, *, was_found: bool) -> None:
        """Tell all passes that `saved` was used, and let them read ahead. Without the lock.

        Args:
            saved: the array.
            storage: where its bytes are now.
            was_found: whether they were there before, neither read nor recomputed.
        """
        wanted: list[tuple[Prefetcher, Prefetched]] = []
        self._lock.acquire()
        try:
            for prefetcher in self.live():
                prefetcher.consume(saved, storage, was_found=was_found)
                first = prefetcher.advance()
                if first is not None:
                    wanted.append((prefetcher, first))
        finally:
            self._lock.release()
        for prefetcher, first in wanted:
            self._read_ahead(prefetcher, first)

    def _read_ahead(self, prefetcher: Prefetcher, wanted: Prefetched | None) -> None:
        """Begin to read `wanted` and the next arrays: without the lock, since that may wait."""
        while wanted is not None and self._read(prefetcher, wanted):
            with self._lock:
                wanted = prefetcher.advance()

    def _read(self, prefetcher: Prefetcher, wanted: Prefetched) -> bool:
        """Begin to read one array; return False if there is no memory for it."""
        handle = wanted.handle
        if handle is None:  # another thread has used it
            return False
        try:
            buffer = memory.empty(handle.shape, handle.dtype)
        except BaseException as error:
            with self._lock:
                prefetcher.give_up(wanted, retry=True)
            if isinstance(error, memory.OutOfMemoryError):
                return False
            raise
        if wanted.handle is None:  # `shrink` was called to make that room
            return False
        try:
            handle.prefetch(buffer)
        except (StoreError, MemoryError):  # the read that uses the array raises it again
            with self._lock:
                prefetcher.give_up(wanted, retry=False)
            return True
        except BaseException:
            self.cancelled.append(handle)
            raise
        with self._lock:
            if not prefetcher.begin_read(wanted, buffer):
                self.cancelled.append(handle)
        return True

    def end_dead(self) -> None:
        """End the passes that died with their frame."""
        while self.dead:
            dead = self.dead.popleft()
            self._running = [each for each in self._running if each is not dead]
            assert isinstance(dead, PassRef)
            dead.end(self.cancelled.append)

    def shrink(self) -> None:
        """Drop all prefetches; the caller cancels them, without the lock."""
        for prefetcher in self.live():
            prefetcher.shrink()

    def cancel_prefetches(self) -> None:
        """Cancel prefetches that are not wanted any more; an interrupt leaves some to the next.

        Call it without the lock: the store waits for a read that has begun.
        """
        while self.cancelled:
            try:
                handle = self.cancelled.popleft()
            except IndexError:  # another thread took it
                return
            try:
                handle.store.cancel_prefetch(handle)
            except StoreError:
                pass
            except BaseException:
                self.cancelled.appendleft(handle)
                raise

    def prefetched_nbytes(self) -> int:
        """Return the bytes that prefetches take. Call it with or without the lock."""
        cancelled_nbytes = sum(each.nbytes for each in self.cancelled.copy())
        return cancelled_nbytes + sum(each.held_nbytes() for each in self.live())

    def live(self) -> list[Prefetcher]:
        """Return the prefetchers of the passes whose frames live."""
        return [each for reference in self._running if (each := reference()) is not None]

    def forget_other_threads(self) -> None:
        """In a forked child: end the passes of other threads, which do not exist there."""
        thread = get_ident()
        for reference in [each for each in self._running if each.thread != thread]:
            self._running.remove(reference)
            prefetcher = reference()
            if prefetcher is not None:
                prefetcher.close()
            reference.end(self.cancelled.append)
        self.cancelled.clear()  # stores of the parent do not read here

    def _finish(self, reference: PassRef, prefetcher: Prefetcher) -> None:
        with masked:
            with self._lock:
                if reference in self._running:
                    self._running.remove(reference)
                    prefetcher.close()
                    reference.end(self.cancelled.append)
            self.cancel_prefetches()
