"""ReadAhead: reads pages before they are used, along the predicted order."""

from collections.abc import Callable

from offgrad_storage import StoreError

from offgrad import memory
from offgrad.session.paging.page import Page
from offgrad.session.paging.page_table import PageTable
from offgrad.session.paging.use_order import UseOrder


class ReadAhead:
    """Begins reads of one cache's pages. For use with its lock held.

    Args:
        order: of uses.
        table: of the pages.
        prepare: called with a page that is not resident, the number of its use, and the bytes of a
            new page that comes before that, such as a gradient; returns whether it may be read now.
    """

    def __init__(
        self,
        order: UseOrder,
        table: PageTable,
        prepare: Callable[[Page, int, int], bool],
    ) -> None:
        self._order = order
        self._table = table
        self._prepare = prepare
        self._next_number = 0  # uses before this one have been read ahead
        self._rebuilds = -1
        # The last use of a page that does not exist yet, and the bytes of the largest such page.
        self._new_number = -1
        self._new_nbytes = 0

    def run(self) -> None:
        """Begin to read the next pages, as far as there is room for them."""
        order, table = self._order, self._table
        if self._rebuilds != order.rebuilds:
            self._rebuilds, self._next_number = order.rebuilds, 0
        if self._new_number < order.first or self._new_number >= self._next_number:
            self._new_nbytes = 0  # the new page is there, or is looked at once more
        for number, name in order.upcoming(self._next_number):
            page = table.find(name)
            if page is None:
                self._new_number = number
                self._new_nbytes = max(self._new_nbytes, table.expected_nbytes(name))
            elif not page.is_resident and page.buffer is None and not self._read(page, number):
                return
            self._next_number = number + 1

    def _read(self, page: Page, number: int) -> bool:
        """Begin to read a page; return False if there is no room for it."""
        handle = page.handle
        assert handle is not None
        if page.leaving is not None:
            return self._prepare(page, number, self._new_nbytes)
        if not handle.store.reads_ahead:
            return True
        table = self._table
        max_nbytes = table.bound_nbytes // (2 if table.is_streaming else 6)
        if table.ahead_nbytes and table.ahead_nbytes + page.nbytes > max_nbytes:
            return False
        try:
            if not self._prepare(page, number, self._new_nbytes):
                return False
            buffer = memory.empty(page.shape, page.dtype)
            if page.is_resident or page.buffer is not None:
                return True
            handle.prefetch(buffer)
        except (StoreError, MemoryError):  # the use of the page raises it again
            return False
        page.buffer = buffer
        self._table.hold(page, page.nbytes, ahead=True)
        return True

    def cancel_all(self) -> None:
        """End all reads, and drop what is read."""
        for page in self._table.live():
            self._cancel(page)
        self._next_number = 0

    def cancel_furthest(self) -> None:
        """End the read of the page with the furthest next use."""
        ahead = [page for page in self._table.live() if page.buffer is not None]
        self._cancel(max(ahead, key=lambda page: self._order.next_use(page.name)))
        self._next_number = 0

    def _cancel(self, page: Page) -> None:
        handle = page.handle
        if page.buffer is not None and handle is not None:
            page.buffer = None
            self._table.hold(page, 0)
            handle.store.cancel_prefetch(handle)
