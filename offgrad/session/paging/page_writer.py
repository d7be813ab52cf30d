"""PageWriter: the writes of pages, in time for their memory to be free when others need it."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from offgrad_storage import AbstractArrayStore, Handle, StoreError
from offgrad_storage.interrupts import interruptible

from offgrad.session.paging.page import Array, Page
from offgrad.session.paging.page_table import PageTable


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

    A page whose room is needed *leaves*: its memory is free when the write ends. A dirty page that
    will be evicted next is *cleaned* before that: it is resident again when the write ends, and
    leaves without a wait.

    Args:
        owner: of the cache.
        table: of the pages.
        open_store: returns the store.
    """

    def __init__(
        self,
        owner: Writing,
        table: PageTable,
        open_store: Callable[[], AbstractArrayStore],
    ) -> None:
        self._owner = owner
        self._table = table
        self._open_store = open_store
        self._leaving: deque[Page] = deque()
        self._cleaning: deque[Page] = deque()
        self._may_clean = True
        self._store: AbstractArrayStore | None = None

    @property
    def packs_nbytes(self) -> int:
        """The bytes of memory that packs of small pages hold in the store."""
        return 0 if self._store is None else self._store.packs_nbytes

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
            store = self._store = self._open_store()
            try:
                handle = store.put(array, attributes=attributes)
            except StoreError:  # perhaps of an earlier write, which is raised once
                handle = store.put(array, attributes=attributes)
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

    def clean_ahead(self, pages: Iterable[Page]) -> None:
        """Begin to write those of `pages` that are dirty, so that their room is soon free.

        They are the next to be evicted, of which a quarter of the bound is looked at. An error is
        raised when their room is needed, and they are written again.
        """
        table = self._table
        if not self._may_clean or self._owner.is_writing or not table.is_streaming:
            return
        nbytes = table.bound_nbytes // 4
        for page in pages:
            if nbytes <= 0:
                return
            nbytes -= page.nbytes
            array = page.take() if page.is_dirty else None
            if array is not None:
                self._begin_cleaning(page, array)

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

    def end_cleaning(self) -> None:
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
