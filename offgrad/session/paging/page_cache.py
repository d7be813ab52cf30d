"""PageCache: the pages of one placement, within a bound of memory.

A page is read when it is used, and ahead of that along the predicted order. Where the bound leaves
no room, the page with the furthest next use is evicted; a dirty one is written first. A page in use
stays: a reference to its array protects it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from offgrad_storage import AbstractArrayStore, ForkedStoreError, Handle, StoreError
from offgrad_storage.interrupts import MaskedLock

from offgrad import memory
from offgrad.memory import OutOfMemoryError, format_nbytes
from offgrad.session.paging.page import Array, Page
from offgrad.session.paging.page_table import PageTable
from offgrad.session.paging.page_writer import PageWriter, has_failed
from offgrad.session.paging.read_ahead import ReadAhead
from offgrad.session.paging.use_order import NEVER, UseOrder

_FAR = 3  # a page is evicted for one read ahead if its next use is so many times as far
_DIRTY_COST = 3  # a clean page is evicted instead of a dirty one that is used so many times later
_LONG = NEVER // 2  # distances from here on are those of pages without a predicted use
_MANY = 8  # pages in a window; one of fewer needs each read ahead


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

    def place_alike(self, number: int, tensor: Any, role: str) -> None:
        """Page a tensor that belongs to a parameter."""


def title(page: Page) -> str:
    """Return role and name of a page, for messages."""
    row = page.row
    return f"{row.op} {row.module}.{row.slot}" if row.module else f"{row.op} {row.slot}"


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
        self.table = PageTable(bound_nbytes)
        self.open_store = open_store
        self._is_strict = is_strict
        self._writer = PageWriter(owner, self.table, open_store)
        self._reads = ReadAhead(order, self.table, self._begin_to_read)

    def add(self, page: Page) -> None:
        """Count a new page, which is resident; others are evicted to make room.

        Raises:
            OutOfMemoryError: the bound is strict, and pages in use leave no room.
            StoreError: a page cannot be written.
        """
        with self.lock:
            self.table.add(page)
            self.order.use(page.name)
            self._make_room(0, page)

    # Use

    def used(self, page: Page) -> None:
        """Learn that a resident page is used; read others ahead."""
        with self.lock:
            page.row.hits += 1
            self._follow(page)

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
                page.row.hits += 1
            array = page.resident
            if array is None:
                array = self._read(page)
                page.row.read_stall_seconds += time.perf_counter() - began
            self._follow(page)
            return array

    def rescue(self, page: Page) -> None:
        """Make a page resident whose write is pending."""
        self._writer.rescue(page)

    def clean(self, page: Page) -> Handle:
        """Return the handle of the present content, which is written if need be.

        Raises:
            StoreError: it cannot be written.
        """
        with self.lock:
            return self._writer.clean(page)

    def read_ahead(self) -> None:
        """Read the next pages of the predicted order, as far as the bound leaves room for them."""
        try:
            self._writer.reap()
        except StoreError:  # where room is needed, it is raised again
            return
        self._reads.run()

    def _follow(self, page: Page) -> None:
        """Learn a use, and read what comes next."""
        self.order.use(page.name)
        self.read_ahead()

    def _read(self, page: Page) -> Array:
        handle, buffer = page.handle, page.buffer
        assert handle is not None
        is_ahead = buffer is not None
        page.row.hits += is_ahead
        if buffer is None:
            self._make_room(page.nbytes, page)
            try:
                buffer = memory.empty(page.shape, page.dtype)
            except OutOfMemoryError as error:
                self.owner.name_rows()
                text = f"reading {title(page)} of {list(page.shape)}: {error}"
                raise OutOfMemoryError(text) from error
            if page.resident is not None:  # read to free memory for this
                return page.resident
        else:
            page.buffer = None
        self.table.hold(page, page.nbytes)
        try:
            array = self._get(handle, buffer, is_ahead)
        except ForkedStoreError as error:
            self.table.hold(page, 0)
            raise self._of_parent(page, error) from None
        except BaseException:
            self.table.hold(page, 0)
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

    def _of_parent(self, page: Page, error: ForkedStoreError) -> ForkedStoreError:
        self.owner.name_rows()
        return ForkedStoreError(
            error.message,
            store=error.store,
            handle=f"paged {title(page)}",
            fix="Bring the model into memory before the fork, by offgrad.offload_model(model, "
            "'keep'), or make it in the child",
        )

    def _begin_to_read(self, page: Page, number: int, new_nbytes: int) -> bool:
        """Make the page of the use `number` resident soon; return whether there is room for it.

        And for new pages that come before it. In a window of many pages only those used much later
        are evicted: where uses turn back, as from forward to backward, nearer ones would have to be
        read again, while others have no more use before the read must begin.
        """
        if page.leaving is not None:
            if not self._writer.is_cleaned(page):
                self.rescue(page)
            return True
        nbytes = page.nbytes + new_nbytes
        if page.nbytes <= self.bound_nbytes // _MANY:
            number += (_FAR - 1) * (number - self.order.first)
        return self._find_room(nbytes, number) and memory.fits(nbytes)

    # Room

    @property
    def held_nbytes(self) -> int:
        """The bytes of memory that pages take, and packs of small ones in the store."""
        return self.table.held_nbytes + self._writer.packs_nbytes

    def pages(self) -> list[Page]:
        """Return all live pages."""
        with self.lock:
            return self.table.live()

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
        self._reads.cancel_all()
        for page in self.table.held():
            self._evict(page)
        while self._writer.leaving_nbytes and not self.owner.is_writing:
            self._wait_for_first()
        return self.held_nbytes < held_nbytes

    def _make_room(self, nbytes: int, wanted: Page) -> None:
        """Evict pages, and wait for their writes, until `nbytes` more are within the bound."""
        writer = self._writer
        while self.held_nbytes + nbytes > self.bound_nbytes:
            writer.reap()
            excess = self.held_nbytes + nbytes - self.bound_nbytes
            if excess <= 0:
                return
            if writer.leaving_nbytes >= excess:
                self._wait_for_first()
            elif not self._evict_furthest(-1):
                if writer.leaving_nbytes:
                    self._wait_for_first()
                elif self.table.ahead_nbytes:
                    self._reads.cancel_furthest()
                elif self._is_strict:
                    raise self._too_little(nbytes, wanted)
                else:
                    return

    def _wait_for_first(self) -> None:
        page = self._writer.first_leaving
        try:
            self._writer.wait_for_first()
        except ForkedStoreError as error:
            raise self._of_parent(page, error) from None

    def _find_room(self, nbytes: int, number: int) -> bool:
        """Begin to evict pages used later than `number`; return whether there is room by now."""
        while self.held_nbytes - self._writer.leaving_nbytes + nbytes > self.bound_nbytes:
            if not self._evict_furthest(number):
                return False
        return self.held_nbytes + nbytes <= self.bound_nbytes

    def _evict_furthest(self, number: int) -> bool:
        """Evict the page with the furthest next use after `number`; return False if there is none.

        If it must be written first, a page that need not, and is a third as far, goes instead.
        Those that will be evicted next are cleaned.

        Raises:
            StoreError: it cannot be written, and stays.
        """
        order, writer = self.order, self._writer
        writer.end_cleaning()
        candidates = [
            (order.distance(page.name), page)
            for page in self.table.held()
            if (page.is_resident or self._is_cleaned(page)) and order.next_use(page.name) > number
        ]
        far = max((distance for distance, _ in candidates), default=0) / _DIRTY_COST
        candidates.sort(
            key=lambda each: (each[0] >= far and each[1].is_clean, each[0]), reverse=True
        )
        for rank, (_, page) in enumerate(candidates, start=1):
            if self._evict(page):
                following = candidates[rank:]
                writer.clean_ahead(each for distance, each in following if far <= distance < _LONG)
                return True
        return False

    def _is_cleaned(self, page: Page) -> bool:
        return page.leaving is not None and self._writer.is_cleaned(page)

    def _evict(self, page: Page) -> bool:
        """Let a page leave memory, unless it is in use."""
        if self._is_cleaned(page):
            self._writer.leave_after_cleaning(page)
            return True
        array = page.take()
        if array is None:
            return False
        if page.handle is not None and has_failed(page.handle):
            page.is_dirty = True
        if page.is_clean:
            self.table.hold(page, 0)
            return True
        if (page.is_dirty or page.handle is None) and self.owner.is_writing:
            page.restore(array)
            return False
        try:
            self._writer.leave(page, array)
        except ForkedStoreError as error:
            raise self._of_parent(page, error) from None
        return True

    def _too_little(self, nbytes: int, wanted: Page) -> OutOfMemoryError:
        self.owner.name_rows()
        used = [each for each in self.table.live() if each.resident_nbytes and each is not wanted]
        held = ", ".join(f"{format_nbytes(each.nbytes)} of {title(each)}" for each in used[:4])
        if len(used) > 4:
            held += f" and {len(used) - 4} more"
        # The largest parameter with its gradient and AdamW's two averages.
        step_nbytes = 4 * max(each.nbytes for each in (wanted, *self.table.live()))
        return OutOfMemoryError(
            f"paged tensors are limited to {format_nbytes(self.bound_nbytes)}: a page of "
            f"{format_nbytes(nbytes or wanted.nbytes)} ({title(wanted)} of "
            f"{list(wanted.shape)}) needs room while {format_nbytes(self.held_nbytes)} are in use "
            f"({held or 'by it alone'}): by one operation, or by references of the program, as a "
            "state_dict holds them. An optimizer's step needs a parameter, its gradient and its "
            "state at once: raise the budget to "
            f"{format_nbytes(max(self.held_nbytes + nbytes, step_nbytes))} or more, or use fewer "
            "at a time. 'disk' with window= is no such bound: pages in use may exceed it"
        )
