"""PageTable: the pages of one cache, and the memory that each takes."""

from collections import deque
from typing import Any
from weakref import ref

from offgrad.session.paging.page import Page, PageName

_STREAMING = 8  # times the bound


class _PageRef(ref[Page]):
    """A weak reference to a page, and the memory that is counted for it."""

    __slots__ = ("ahead_nbytes", "held_nbytes", "key", "name", "nbytes")

    name: PageName
    key: int
    nbytes: int
    held_nbytes: int
    ahead_nbytes: int


class PageTable:
    """Finds live pages, and counts the memory they take; that of dead ones ends by itself.

    For use with the lock of the cache held.

    Args:
        bound_nbytes: the maximum of memory that pages take; also an attribute.
    """

    def __init__(self, bound_nbytes: int) -> None:
        self.bound_nbytes = bound_nbytes
        self._pages: dict[int, _PageRef] = {}
        self._by_name: dict[PageName, _PageRef] = {}
        self._held: dict[int, _PageRef] = {}
        self._dead: deque[Any] = deque()  # of weak references, whose callbacks take no lock
        self._total_nbytes = 0
        self._held_nbytes = 0
        self._ahead_nbytes = 0

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def total_nbytes(self) -> int:
        """The bytes of all pages, wherever they are."""
        self.settle()
        return self._total_nbytes

    @property
    def is_streaming(self) -> bool:
        """Whether pages take many times the bound, so that hardly any stays for its next use.

        Then room is used for reads and writes in time, else for pages that stay.
        """
        return self.total_nbytes > _STREAMING * self.bound_nbytes

    @property
    def held_nbytes(self) -> int:
        """The bytes of memory that pages take."""
        self.settle()
        return self._held_nbytes

    @property
    def ahead_nbytes(self) -> int:
        """The bytes of memory that are read ahead."""
        return self._ahead_nbytes

    def add(self, page: Page) -> None:
        """Count a new page, which is resident."""
        reference = _PageRef(page, self._dead.append)
        reference.name, reference.key, reference.nbytes = page.name, id(page), page.nbytes
        reference.held_nbytes = reference.ahead_nbytes = 0
        self.settle()
        self._pages[reference.key] = self._by_name[page.name] = reference
        self._total_nbytes += page.nbytes
        self.hold(page, page.nbytes)

    def hold(self, page: Page, nbytes: int, *, ahead: bool = False) -> None:
        """Count the memory that a page takes, and whether it is read ahead."""
        self._count(self._pages[id(page)], nbytes, nbytes if ahead else 0)

    def find(self, name: Any) -> Page | None:
        """Return the page of a name; None if there is none."""
        reference = self._by_name.get(name)
        return None if reference is None else reference()

    def expected_nbytes(self, name: Any) -> int:
        """Return the bytes of a page that exists, or will: of a gradient as of its parameter."""
        page = self.find(name) or self.find(PageName(name.parameter, "parameters"))
        return 0 if page is None else page.nbytes

    def live(self) -> list[Page]:
        """Return all pages."""
        return [page for each in list(self._pages.values()) if (page := each()) is not None]

    def held(self) -> list[Page]:
        """Return the pages that take memory."""
        return [page for each in list(self._held.values()) if (page := each()) is not None]

    def settle(self) -> None:
        """Forget pages that have died."""
        while self._dead:
            reference: _PageRef = self._dead.popleft()
            self._count(reference, 0, 0)
            self._total_nbytes -= reference.nbytes
            if self._pages.get(reference.key) is reference:
                del self._pages[reference.key]
            if self._by_name.get(reference.name) is reference:
                del self._by_name[reference.name]

    def _count(self, reference: _PageRef, held_nbytes: int, ahead_nbytes: int) -> None:
        if held_nbytes:
            self._held[reference.key] = reference
        elif self._held.get(reference.key) is reference:
            del self._held[reference.key]
        self._held_nbytes += held_nbytes - reference.held_nbytes
        self._ahead_nbytes += ahead_nbytes - reference.ahead_nbytes
        reference.held_nbytes, reference.ahead_nbytes = held_nbytes, ahead_nbytes
