"""PageCache: the pages of one placement, within a bound of memory.

A page is read when it is used, and ahead of that along the predicted order. Where the bound leaves
no room, the page with the furthest next use is evicted; a dirty one is written first. A page in use
stays: a reference to its array protects it.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import ref

from offgrad_storage import AbstractArrayStore, Handle, StoreError
from offgrad_storage.interrupts import MaskedLock, interruptible

from offgrad import memory
from offgrad.memory import OutOfMemoryError, format_nbytes
from offgrad.session.paging.page import Array, Page, PageName
from offgrad.session.paging.use_order import UseOrder

_MAX_AHEAD = 512  # uses of the predicted order that are looked at


class Owner(Protocol):
    """Learns in which order pages will be used.

    Attributes:
        is_writing: whether a page is handed to a store; for use with the lock held.
    """

    is_writing: bool

    def announce(self, pages: Sequence[Any]) -> None:
        """Learn the order in which pages will be used, of which some may be other owners'."""

    def name_rows(self) -> None:
        """Put the names that parameters have now into the rows of their pages."""


class _PageRef(ref[Page]):
    """A weak reference to a page, and the memory that is counted for it."""

    __slots__ = ("ahead_nbytes", "held_nbytes", "key", "name")

    name: PageName
    key: int
    held_nbytes: int
    ahead_nbytes: int


def _title(page: Page) -> str:
    row = page.row
    return f"{row.op} {row.module}.{row.slot}" if row.module else f"{row.op} {row.slot}"


def _has_failed(handle: Handle) -> bool:
    """Return whether the write has failed: the store still has the array in memory."""
    return not (handle.captured or handle.is_pending)


class PageCache:
    """The pages of one placement.

    Args:
        owner: gets the order of backward passes.
        order: of uses, shared by all caches of one owner.
        lock: of the owner; reentrant.
        open_store: returns the store.
        bound_nbytes: the maximum of memory that pages take, those read ahead and those that are
            being written included.
        is_strict: whether pages in use may not exceed the bound, either.
    """

    def __init__(
        self,
        owner: Owner,
        order: UseOrder,
        lock: MaskedLock,
        open_store: Callable[[], AbstractArrayStore],
        bound_nbytes: int,
        is_strict: bool,
    ) -> None:
        self.owner = owner
        self.order = order
        self.lock = lock
        self.bound_nbytes = bound_nbytes
        self._open_store = open_store
        self._is_strict = is_strict
        self._pages: dict[int, _PageRef] = {}
        self._by_name: dict[PageName, _PageRef] = {}
        self._dead: deque[Any] = deque()  # of weak references, whose callbacks take no lock
        self._held_nbytes = 0
        self._ahead_nbytes = 0
        self._leaving: deque[Page] = deque()
        self._ahead_number = 0  # uses before this one have been read ahead
        self._rebuilds = -1

    # Adding

    def add(self, page: Page) -> None:
        """Count a new page, which is resident; others are evicted to make room.

        Raises:
            OutOfMemoryError: the bound is strict, and pages in use leave no room.
            StoreError: a page cannot be written.
        """
        reference = _PageRef(page, self._dead.append)
        reference.name, reference.key = page.name, id(page)
        reference.held_nbytes = reference.ahead_nbytes = 0
        with self.lock:
            self._settle()
            self._pages[reference.key] = self._by_name[page.name] = reference
            self._hold(page, page.nbytes)
            self.order.use(page.name)
            self._make_room(0, page)

    # Use

    def used(self, page: Page) -> None:
        """Learn that a resident page is used, and read ahead."""
        with self.lock:
            self.order.use(page.name)
            page.row.hits += 1
            self.read_ahead()

    def load(self, page: Page) -> Array:
        """Return the content of a page that is not resident, and make it resident.

        Raises:
            StoreError: it cannot be read, or a page that must leave cannot be written.
            OutOfMemoryError: there is no room.
        """
        with self.lock:
            began = time.perf_counter()
            if page.leaving is not None:
                self.rescue(page)
            array = page._array
            if array is None:
                array = self._read(page)
                page.row.read_stall_seconds += time.perf_counter() - began
            self.order.use(page.name)
            self.read_ahead()
            return array

    def rescue(self, page: Page) -> None:
        """Make a page resident whose write is pending."""
        assert page.leaving is not None
        if page.handle is not None and _has_failed(page.handle):
            page.is_dirty = True
        page.restore(page.leaving)
        with suppress(ValueError):
            self._leaving.remove(page)

    def clean(self, page: Page) -> Handle:
        """Return the handle of the present content, which is written if need be.

        Raises:
            StoreError: it cannot be written.
        """
        with self.lock:
            is_used = page.is_used()
            array = page._array
            if page.handle is None or (array is not None and page.is_dirty):
                assert array is not None
                self._write(page, array)
                if is_used:  # whoever has the memory may change it without notice
                    handle, page.handle, page.is_dirty = page.handle, None, True
                    assert handle is not None
                    with interruptible:
                        handle.wait_captured()
                    return handle
            assert page.handle is not None
            return page.handle

    def _read(self, page: Page) -> Array:
        handle, buffer = page.handle, page.buffer
        assert handle is not None
        is_ahead = buffer is not None
        page.row.hits += is_ahead
        if buffer is None:
            self._make_room(page.nbytes, page)
            buffer = memory.empty(page.shape, page.dtype)
            if page._array is not None:  # read to free memory for this
                return page._array
            self._hold(page, page.nbytes)
        else:
            page.buffer = None
            self._hold(page, page.nbytes)
        try:
            array = self._get(handle, buffer, is_ahead)
        except BaseException:
            self._hold(page, 0)
            raise
        page.row.reads += 1
        page.row.read_nbytes += page.nbytes
        page.restore(array)
        return array

    def _get(self, handle: Handle, buffer: Array, is_ahead: bool) -> Array:
        try:
            return handle.get(buffer)
        except StoreError:
            if not is_ahead:
                raise
            return handle.get(buffer)  # what failed was perhaps long ago

    def read_ahead(self) -> None:
        """Read the next pages of the predicted order, as far as the bound leaves room for them."""
        try:
            self._reap()
        except StoreError:  # where room is needed, it is raised again
            return
        order = self.order
        if self._rebuilds != order.rebuilds:
            self._rebuilds, self._ahead_number = order.rebuilds, 0
        for number, name in order.upcoming(_MAX_AHEAD):
            if number < self._ahead_number:
                continue
            page = self._page(name)
            if page is not None and not page.is_resident and page.buffer is None:
                if page.leaving is not None:
                    self.rescue(page)
                elif not self._read_ahead(page, number):
                    return
            self._ahead_number = number + 1

    def _read_ahead(self, page: Page, number: int) -> bool:
        """Begin to read a page; return False if there is no room for it."""
        handle = page.handle
        assert handle is not None
        if not handle.store.reads_ahead:
            return True
        limit = self.bound_nbytes // 2
        if self._ahead_nbytes and self._ahead_nbytes + page.nbytes > limit:
            return False
        try:
            if not self._find_room(page.nbytes, number) or not memory.fits(page.nbytes):
                return False
            buffer = memory.empty(page.shape, page.dtype)
            if page.is_resident or page.buffer is not None:
                return True
            handle.prefetch(buffer)
        except (StoreError, MemoryError):  # the use of the page raises it again
            return False
        page.buffer = buffer
        self._hold(page, page.nbytes, ahead=True)
        return True

    # Room

    @property
    def held_nbytes(self) -> int:
        """The bytes of memory that pages take."""
        self._settle()
        return self._held_nbytes

    @property
    def ahead_nbytes(self) -> int:
        """The bytes of memory that are read ahead."""
        return self._ahead_nbytes

    def reclaim(self) -> bool:
        """Drop what is read ahead, and evict all pages that are not in use; wait for the writes.

        Inside a write, of which the store asks for memory, another would wait for the first: then
        only pages that need no write are evicted.

        Returns:
            Whether that freed memory.

        Raises:
            StoreError: a page cannot be written, and stays.
        """
        held_nbytes = self.held_nbytes
        for page in self._live():
            self._cancel(page)
        self._ahead_number = 0
        for page in self._live():
            self._evict(page)
        while self._leaving and not self.owner.is_writing:
            self._wait_for_first()
        return self.held_nbytes < held_nbytes

    def _make_room(self, nbytes: int, wanted: Page) -> None:
        """Evict pages, and wait for their writes, until `nbytes` more are within the bound."""
        while self.held_nbytes + nbytes > self.bound_nbytes:
            self._reap()
            excess = self._held_nbytes + nbytes - self.bound_nbytes
            if excess <= 0:
                return
            if sum(each.nbytes for each in self._leaving) >= excess:
                self._wait_for_first()
            elif not self._evict_furthest(-1):
                if self._leaving:
                    self._wait_for_first()
                elif self._ahead_nbytes:
                    self._cancel_furthest()
                elif self._is_strict:
                    raise self._too_little(nbytes, wanted)
                else:
                    return

    def _find_room(self, nbytes: int, number: int) -> bool:
        """Begin to evict pages used later than `number`; return whether there is room by now."""
        leaving_nbytes = sum(each.nbytes for each in self._leaving)
        while self.held_nbytes - leaving_nbytes + nbytes > self.bound_nbytes:
            before = len(self._leaving)
            if not self._evict_furthest(number):
                return False
            if len(self._leaving) > before:
                leaving_nbytes += self._leaving[-1].nbytes
        return self._held_nbytes + nbytes <= self.bound_nbytes

    def _evict_furthest(self, number: int) -> bool:
        """Evict the page with the furthest next use after `number`; return False if there is none.

        Raises:
            StoreError: it cannot be written, and stays.
        """
        candidates = [
            (next_use, page)
            for page in self._live()
            if page.is_resident and (next_use := self.order.next_use(page.name)) > number
        ]
        candidates.sort(key=lambda each: each[0], reverse=True)
        return any(self._evict(page) for _, page in candidates)

    def _evict(self, page: Page) -> bool:
        """Let a page leave memory, unless it is in use."""
        array = page.take()
        if array is None:
            return False
        if page.handle is not None and _has_failed(page.handle):
            page.is_dirty = True
        if not page.is_dirty and page.handle is not None and page.handle.captured:
            self._hold(page, 0)
            return True
        if page.is_dirty or page.handle is None:
            if self.owner.is_writing:
                page.restore(array)
                return False
            try:
                self._write(page, array)
            except BaseException:
                page.restore(array)
                raise
        page.leaving = array
        self._leaving.append(page)
        return True

    def _write(self, page: Page, array: Array) -> None:
        """Begin to write the content of a page; changes of the memory wait for that."""
        began = time.perf_counter()
        attributes = {"role": page.name.role}
        owner = self.owner
        is_nested, owner.is_writing = owner.is_writing, True
        try:
            handle = self._open_store().put(array, attributes=attributes)
        except StoreError:  # perhaps of an earlier write, which is raised once
            handle = self._open_store().put(array, attributes=attributes)
        finally:
            owner.is_writing = is_nested
        page.handle, page.is_dirty = handle, False
        storage = page.storage()
        if storage is not None and not handle.captured:
            storage.add_pending_write(handle)
        page.row.writes += 1
        page.row.stored_nbytes += handle.stored_nbytes
        page.row.written_nbytes += handle.stored_nbytes
        page.row.write_stall_seconds += time.perf_counter() - began

    def _reap(self) -> None:
        """Free the memory of pages that are written.

        Raises:
            StoreError: a write has failed; the page is resident again.
        """
        while self._leaving:
            page = self._leaving[0]
            handle = page.handle
            if page.leaving is not None and handle is not None:
                if handle.is_pending:
                    return
                if _has_failed(handle):
                    array = page.leaving
                    page.is_dirty = True
                    page.restore(array)
                    self._leaving.popleft()
                    handle.check()
                    return
                page.leaving = None
                self._hold(page, 0)
            self._leaving.popleft()

    def _wait_for_first(self) -> None:
        page = self._leaving[0]
        began = time.perf_counter()
        if page.handle is not None:
            page.handle.wait_written()
        page.row.write_stall_seconds += time.perf_counter() - began
        self._reap()

    def _cancel(self, page: Page) -> None:
        """End the read ahead of a page."""
        handle = page.handle
        if page.buffer is not None and handle is not None:
            page.buffer = None
            self._hold(page, 0)
            handle.store.cancel_prefetch(handle)

    def _cancel_furthest(self) -> None:
        ahead = [page for page in self._live() if page.buffer is not None]
        self._cancel(max(ahead, key=lambda page: self.order.next_use(page.name)))
        self._ahead_number = 0

    def _hold(self, page: Page, nbytes: int, *, ahead: bool = False) -> None:
        """Count the memory that a page takes, and whether it is read ahead."""
        self._count(self._pages[id(page)], nbytes, nbytes if ahead else 0)

    def _count(self, reference: _PageRef, held_nbytes: int, ahead_nbytes: int) -> None:
        self._held_nbytes += held_nbytes - reference.held_nbytes
        self._ahead_nbytes += ahead_nbytes - reference.ahead_nbytes
        reference.held_nbytes, reference.ahead_nbytes = held_nbytes, ahead_nbytes

    def _settle(self) -> None:
        """Forget pages that have died."""
        while self._dead:
            reference: _PageRef = self._dead.popleft()
            self._count(reference, 0, 0)
            if self._pages.get(reference.key) is reference:
                del self._pages[reference.key]
            if self._by_name.get(reference.name) is reference:
                del self._by_name[reference.name]

    def _page(self, name: Any) -> Page | None:
        reference = self._by_name.get(name)
        return None if reference is None else reference()

    def _live(self) -> list[Page]:
        return [page for each in list(self._pages.values()) if (page := each()) is not None]

    def _too_little(self, nbytes: int, wanted: Page) -> OutOfMemoryError:
        self.owner.name_rows()
        used = [each for each in self._live() if each.resident_nbytes and each is not wanted]
        held = ", ".join(f"{format_nbytes(each.nbytes)} of {_title(each)}" for each in used[:4])
        return OutOfMemoryError(
            f"paged tensors are limited to {format_nbytes(self.bound_nbytes)}: a page of "
            f"{format_nbytes(nbytes or wanted.nbytes)} ({_title(wanted)} of "
            f"{list(wanted.shape)}) needs room while {format_nbytes(self._held_nbytes)} are in use "
            f"({held or 'by it alone'}). An optimizer's step needs a parameter, its gradient and "
            "its state at once: raise the budget to at least that"
        )

    def pages(self) -> list[Page]:
        """Return all live pages."""
        with self.lock:
            return self._live()
