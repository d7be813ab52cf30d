"""Prefetches: an I/O thread reads an array before the program gets it.

The handle of the array holds its prefetch, a ``Fetch``. For an array in a pack only the pack is
prefetched, and ``get`` copies the array from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from offgrad_storage.base import Allocate
from offgrad_storage.entry import Entry, Fetch, Handle
from offgrad_storage.errors import StoreError
from offgrad_storage.executor.entry_table import EntryTable
from offgrad_storage.executor.pack_cache import PackCache
from offgrad_storage.executor.workers import Workers
from offgrad_storage.interrupts import interruptible, masked

Array = NDArray[Any]


class Prefetches:
    """Begins the prefetches of a store, and ends them: with a get, or cancelled.

    Args:
        table: the entries of the store.
        cache: its packs in memory.
        workers: its threads.
        start_thread: makes sure that an I/O thread runs; with the lock held.
    """

    def __init__(
        self,
        table: EntryTable,
        cache: PackCache,
        workers: Workers,
        start_thread: Callable[[Entry], object],
    ) -> None:
        self._table = table
        self._cache = cache
        self._workers = workers
        self._start_thread = start_thread

    def begin(self, handle: Handle, out: Array | None, allocate: Allocate) -> None:
        """Have a thread fill ``out`` or a new array, unless a prefetch does so already."""
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
                    self.cancel(handle)
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
                    must_load = self._cache.want_locked(entry, pack)
                if must_load:
                    self._cache.load(pack)
                return

    def take(self, handle: Handle, out: Array | None, since: float) -> tuple[Array | None, bool]:
        """End the prefetch for a get into ``out``: its array, which nobody else has, if filled.

        Call it in a masked block; ``since`` is when the get began. An array that the user passed
        to ``begin`` is only for a get that returns it: to others it may be another thread's by now.
        """
        entry, table = handle._entry, self._table
        table.check_process(entry)
        with table.lock:
            fetch = self._end_locked(handle)
            if fetch is None:
                return None, False
            array, fetch.array = fetch.array, None  # the thread that read it may hold the fetch
            if fetch.packed:
                return (array if out is None else None), False
            if fetch.error is not None:
                raise table.errors.report(fetch.error)
            if not (fetch.is_own or out is None or out is array):
                return None, False
            table.figures.prefetch_hits += fetch.done
            if fetch.done:
                table.count_get(entry, since)
            return array, fetch.done

    def cancel(self, handle: Handle) -> None:
        """Forget the prefetch under way, if any; wait while a thread fills its array."""
        entry, table = handle._entry, self._table
        table.check_process(entry)
        with masked, table.lock:
            if table.closed and handle._fetch is None:
                return
            fetch = None
            with contextlib.suppress(StoreError):  # closed
                fetch = self._end_locked(handle, hit=False)
            if fetch is None:
                return
            fetch.array = None
            unreported = table.errors.unreported
            if fetch.error in unreported:  # a later get meets the error of reading again
                unreported.remove(fetch.error)

    def _end_locked(self, handle: Handle, hit: bool = True) -> Fetch | None:
        """End the prefetch of a handle, once no thread reads for it.

        None if there is none, or another thread ends it.
        """
        entry, table = handle._entry, self._table
        table.handle_deaths()
        table.check(entry)
        fetch = handle._fetch
        if fetch is None:
            return None
        if fetch.packed:
            self._cache.end_prefetch_locked(entry, hit)
        elif table.reads.pop(entry, self) is not None:
            while not fetch.done:
                table.wait()
                if handle._fetch is not fetch:
                    return None
        if handle._fetch is not fetch:
            return None
        handle._fetch = None
        return fetch
