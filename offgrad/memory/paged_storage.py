"""PagedStorage: memory that may be elsewhere until it is read."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray
from offgrad_storage.interrupts import masked

from offgrad.memory.storage import Storage, new_uid


class Page(Protocol):
    """The content of a storage, in memory or in a store."""

    @property
    def nbytes(self) -> int:
        """The bytes of the content."""

    @property
    def resident_nbytes(self) -> int:
        """The bytes of memory that it takes now."""

    @property
    def transit(self) -> str:
        """``"pages read ahead"`` or ``"pages being written"``; empty while it is neither."""

    @property
    def array(self) -> NDArray[Any]:
        """The content, read from its store if need be. It stays while a reference to it exists."""

    def will_change(self) -> None:
        """The memory is about to be changed: what a store has of it is no longer valid."""

    def snapshot(self) -> "Page":
        """Return a page of the present content, which no change reaches."""

    def place_copy(self, tensor: Any) -> None:
        """Page a copy, if it is one of optimizer state: gradients are paged for their tensors."""

    @property
    def announce(self) -> "Callable[[Sequence[Page]], None]":
        """Takes pages in the order in which they will be used, those of others included."""


class PagedStorage(Storage):
    """A storage whose memory comes when it is read, and goes when nothing references it.

    Tensors over it hold no array. A storage that exists becomes paged by `page_out`, so that it
    stays the same object for every tensor that has it.

    Attributes:
        page: the content.
    """

    page: Page
    is_paged = True

    @property
    def root(self) -> NDArray[Any]:  # type: ignore[override]
        """The memory, which is read from the store if it is there."""
        return self.page.array

    @property
    def nbytes(self) -> int:
        return self.page.nbytes

    @property
    def resident_nbytes(self) -> int:
        return self.page.resident_nbytes

    @property
    def purpose(self) -> str:
        return self.page.transit or self.role

    def write(self, operation: str) -> None:
        super().write(operation)
        self.page.will_change()

    def place_alike(self, tensor: Any, role: str) -> None:
        super().place_alike(tensor, role)
        if self.placer is None:
            self.page.place_copy(tensor)

    def snapshot(self) -> "PagedStorage":
        """Return a storage of the present content, which no change reaches."""
        copy = object.__new__(PagedStorage)
        copy.uid = new_uid()
        copy.role = self.role
        copy.page = self.page.snapshot()
        return copy

    def export(self) -> None:
        super().export()
        if self.pending_writes:
            self._wait_for_writes()
        self.page.will_change()  # NumPy does not report changes


def announce_uses(storages: Iterable[Storage]) -> None:
    """Tell all that page these storages the order in which they will be used."""
    pages = [each.page for each in storages if isinstance(each, PagedStorage)]
    for announce in dict.fromkeys(page.announce for page in pages):
        announce(pages)


def turn_paged(storage: Storage, page: Page) -> None:
    """Make the content of `storage` that of `page`."""
    with masked:  # at each moment the storage has a root
        storage.page = page  # type: ignore[attr-defined]
        storage.__class__ = PagedStorage
        del storage.__dict__["root"]


def turn_resident(storage: Storage, root: NDArray[Any]) -> None:
    """Make `root` the memory of a storage that was paged."""
    with masked:
        storage.__dict__["root"] = root
        storage.__class__ = Storage
        for name in ("page", "max_batch_nbytes"):
            storage.__dict__.pop(name, None)
