"""PageWriter: the writes of pages, in time for their memory to be free when others need it."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Protocol

from offgrad_storage import AbstractArrayStore, Handle, StoreError
from offgrad_storage.interrupts import interruptible

from offgrad.session.paging.page import Array, Page, PageName
from offgrad.session.paging.page_table import PageTable
from offgrad.session.paging.use_order import NEVER, UseOrder

_MAX_LOOKED_AT = 16  # changed pages, at each use
_MIN_SPAN = 32


class Writing(Protocol):
    """Who hands pages to a store.

    Attributes:
        is_writing: whether a page is handed to a store; for use with the lock held.
    """

    is_writing: bool


def has_failed(handle: Handle) -> bool:
    """Return whether the write has failed: the store still has the array in memory."""
    return not (handle.captured or handle.is_pending)


class PageWriter:
    """Writes dirty pages. For use with the lock of the cache held.

    A page whose room is needed *leaves*: its memory is free when the write ends. A changed page
    whose next use is far away is *cleaned* before that: it is resident again when the write ends,
    and leaves without a wait.

    Args:
        owner: of the cache.
        order: of uses.
        table: of the pages.
        open_store: returns the store.
        bound_nbytes: of the cache.
    """

    def __init__(
        self,
        owner: Writing,
        order: UseOrder,
        table: PageTable,
        open_store: Callable[[], AbstractArrayStore],
        bound_nbytes: int,
    ) -> None:
        self._owner = owner
        self._order = order
        self._table = table
        self._open_store = open_store
        self._bound_nbytes = bound_nbytes
        self._leaving: deque[Page] = deque()
        self._cleaning: deque[Page] = deque()
        self._changed: dict[PageName, None] = {}
        self._may_clean = True
        self._near: int | None = None
        self._rebuilds = -1
        self._next_horizon = 0

    @property
    def leaving_nbytes(self) -> int:
        """The bytes of memory that will be free when writes end."""
        return sum(each.nbytes for each in self._leaving)

    @property
    def first_leaving(self) -> Page:
        """The page that has begun to leave first; there must be one."""
        return self._leaving[0]

    @property
    def last_leaving(self) -> Page | None:
        """The page that has begun to leave last."""
        return self._leaving[-1] if self._leaving else None

    def note_change(self, page: Page) -> None:
        """The content of a page is about to change."""
        self._changed.pop(page.name, None)
        self._changed[page.name] = None
        if len(self._changed) > 2 * len(self._table):  # most are of pages that have died
            live = (each for each in self._changed if self._table.find(each) is not None)
            self._changed = dict.fromkeys(live)

    def is_cleaned(self, page: Page) -> bool:
        """Return whether a page stays in memory when its write ends."""
        return page in self._cleaning

    def leave(self, page: Page, array: Array) -> None:
        """Free the memory of a page, which has been taken from it, when its write ends.

        Raises:
            StoreError: the write cannot begin; the page is resident.
        """
        if page.is_dirty or page.handle is None:
            try:
                self.write(page, array)
            except BaseException:
                page.restore(array)
                raise
        page.leaving = array
        self._leaving.append(page)

    def leave_after_cleaning(self, page: Page) -> None:
        """Free the memory of a page that is being cleaned when its write ends."""
        self._cleaning.remove(page)
        self._leaving.append(page)

    def write(self, page: Page, array: Array) -> None:
        """Begin to write the content of a page; changes of the memory wait for that."""
        began = time.perf_counter()
        attributes = {"role": page.name.role}
        owner = self._owner
        is_nested, owner.is_writing = owner.is_writing, True
        try:
            handle = self._open_store().put(array, attributes=attributes)
        except StoreError:  # perhaps of an earlier write, which is raised once
            handle = self._open_store().put(array, attributes=attributes)
        finally:
            owner.is_writing = is_nested
        page.handle, page.is_dirty = handle, False
        self._may_clean = True
        storage = page.storage()
        if storage is not None and not handle.captured:
            storage.add_pending_write(handle)
        page.row.writes += 1
        page.row.stored_nbytes += handle.stored_nbytes
        page.row.written_nbytes += handle.stored_nbytes
        page.row.write_stall_seconds += time.perf_counter() - began

    def clean(self, page: Page) -> Handle:
        """Return the handle of the present content, which is written if need be.

        Raises:
            StoreError: it cannot be written.
        """
        is_used = page.is_used()
        array = page.resident
        if page.handle is None or (array is not None and page.is_dirty):
            assert array is not None
            self.write(page, array)
            if is_used:  # whoever has the memory may change it without notice
                handle, page.handle, page.is_dirty = page.handle, None, True
                assert handle is not None
                with interruptible:
                    handle.wait_captured()
                return handle
        assert page.handle is not None
        return page.handle

    def clean_ahead(self) -> None:
        """Begin to write changed pages that will have left memory before their next use.

        An error is raised when their room is needed, and they are written again.
        """
        self._end_cleaning()
        if not self._changed or not self._may_clean or self._owner.is_writing:
            return
        if self._table.total_nbytes <= self._bound_nbytes:
            return
        horizon = self._horizon()
        if horizon is None:
            return
        budget = self._bound_nbytes // 4
        pending = sum(each.nbytes for each in (*self._leaving, *self._cleaning))
        for name in [*islice(self._changed, _MAX_LOOKED_AT)]:
            page = self._table.find(name)
            if page is not None and pending and pending + page.nbytes > budget:
                return
            del self._changed[name]
            if page is None or not page.is_resident or not page.is_dirty:
                continue
            is_far = horizon < self._order.next_use(name) < NEVER
            array = page.take() if is_far else None
            if array is None:
                self._changed[name] = None  # the last, so that others are looked at before
            else:
                self._begin_cleaning(page, array)
                pending += page.nbytes

    def _horizon(self) -> int | None:
        """Return the use before which all pages together exceed the bound, if it is near.

        It moves with the uses, so it is computed now and then.
        """
        order = self._order
        first, rebuilds = order.first, order.rebuilds
        if rebuilds != self._rebuilds or first >= self._next_horizon:
            self._near = order.reach(self._bound_nbytes, self._table.expected_nbytes)
            self._rebuilds = rebuilds
            span = _MIN_SPAN if self._near is None else (self._near - first) // 4
            self._next_horizon = first + span
        return self._near

    def _begin_cleaning(self, page: Page, array: Array) -> None:
        try:
            self.write(page, array)
        except (StoreError, MemoryError):
            page.restore(array)
            self._may_clean = False  # until a write has succeeded
        except BaseException:
            page.restore(array)
            raise
        else:
            page.leaving = array
            self._cleaning.append(page)

    def _end_cleaning(self) -> None:
        """Make pages resident whose writes have ended."""
        for page in [*self._cleaning]:
            if page.handle is None or not page.handle.is_pending:
                self.rescue(page)

    def rescue(self, page: Page) -> None:
        """Make a page resident whose write is pending."""
        assert page.leaving is not None
        if page.handle is not None and has_failed(page.handle):
            page.is_dirty = True
        page.restore(page.leaving)
        for each in (self._leaving, self._cleaning):
            with suppress(ValueError):
                each.remove(page)

    def reap(self) -> None:
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
                if has_failed(handle):
                    self.rescue(page)
                    handle.check()
                    return
                page.leaving = None
                self._table.hold(page, 0)
            self._leaving.popleft()

    def wait_for_first(self) -> None:
        """Wait for the write of the page that began to leave first.

        Raises:
            StoreError: it has failed, or belongs to the parent of this process; the page is
                resident again.
        """
        page = self._leaving[0]
        began = time.perf_counter()
        if page.handle is not None:
            page.handle.wait_written()
            if page.handle.is_pending:  # the parent process writes it; no thread of a fork does
                self.rescue(page)
                page.handle.store.flush()
        page.row.write_stall_seconds += time.perf_counter() - began
        self.reap()
