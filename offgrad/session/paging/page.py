"""Page: the content of one paged storage, in memory, in a store, or on its way."""

from collections.abc import Callable, Sequence
from functools import cache
from sys import getrefcount
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import ref

import numpy as np
from numpy.typing import NDArray
from offgrad_storage import Handle

from offgrad import memory
from offgrad.memory import Storage
from offgrad.session.ledger import LedgerRow

if TYPE_CHECKING:
    from offgrad.session.paging.page_cache import PageCache

Array: TypeAlias = NDArray[Any]


class PageName(NamedTuple):
    """What a page holds: the same for the gradients of all steps.

    Attributes:
        parameter: the number of the parameter that it belongs to.
        role: ``"parameters"``, ``"gradients"`` or ``"optimizer state"``.
        serial: the number among all of that role.
    """

    parameter: int
    role: str
    serial: int = 0


class Page:
    """The content of a storage. For use with the lock of its cache held, but for `array`.

    It is *resident* while `_array` is set, *leaving* while a write of it is pending, being *read
    ahead* while `buffer` is set, and else only in its store. It is *dirty* if the store has no copy
    of its present content.

    Attributes:
        name: what it holds.
        cache: bounds the memory of all its pages.
        storage: a weak reference to the storage.
        shape, dtype, nbytes: of the content.
        handle: of its copy in the store; of an older content while the page is dirty.
        is_dirty: whether that copy is missing or outdated.
        leaving: the memory whose write is pending.
        buffer: the memory that is read ahead.
        row: counts its reads and writes.

    The thread that is about to change the content has a *claim* on it until it has got the array:
    the page stays.
    """

    __slots__ = (
        "__weakref__", "_array", "_claimant", "buffer", "cache", "dtype", "handle", "is_dirty",
        "leaving", "name", "nbytes", "row", "shape", "storage",
    )  # fmt: skip

    def __init__(
        self, name: PageName, storage: Storage, cache: "PageCache", row: LedgerRow
    ) -> None:
        array = storage.root
        self.name = name
        self.cache = cache
        self.storage = ref(storage)
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes
        self.handle: Handle | None = None
        self.is_dirty = True
        self.leaving: Array | None = None
        self.buffer: Array | None = None
        self.row = row
        self._claimant = 0
        self._array: Array | None = array

    @property
    def array(self) -> Array:
        """The content, read from its store if need be. It stays while a reference to it exists."""
        array = self._array
        if array is None:
            array = self.cache.load(self)
        elif self.cache.order.last is not self.name:
            self.cache.used(self)
        if self._claimant and self._claimant == get_ident():
            self._claimant = 0
        return array

    @property
    def resident(self) -> Array | None:
        """The array in memory, of which no write is pending; None if there is none."""
        return self._array

    @property
    def is_resident(self) -> bool:
        """Whether it is in memory, and no write of it is pending."""
        return self._array is not None

    @property
    def is_clean(self) -> bool:
        """Whether its store has the present content, and needs the memory no longer."""
        return not self.is_dirty and self.handle is not None and self.handle.captured

    @property
    def resident_nbytes(self) -> int:
        """The bytes of memory that it takes."""
        is_out = self._array is None and self.leaving is None and self.buffer is None
        return 0 if is_out else self.nbytes

    @property
    def transit(self) -> str:
        """The purpose of memory that is on its way from or to the store."""
        if self._array is not None or not self.resident_nbytes:
            return ""
        if self.leaving is None:
            return "pages read ahead"
        is_written = self.handle is not None and not self.handle.is_pending
        return "" if is_written else "pages being written"

    def will_change(self) -> None:
        """The memory is about to be changed."""
        with self.cache.lock:
            if self.leaving is not None:
                self.cache.rescue(self)
            self.is_dirty = True
            if self._array is not None:
                self.handle = None
            # The caller may get the array only after this: until then nothing refers to it.
            self._claimant = get_ident()

    def snapshot(self) -> "StoredCopy":
        """Return a page of the present content in the store, which no change reaches.

        Raises:
            StoreError: it cannot be written.
        """
        return StoredCopy(self.cache.clean(self))

    def place_copy(self, tensor: Any) -> None:
        """Page a copy of optimizer state; that of a gradient is paged with its parameter's."""
        if self.name.role == "optimizer state":
            self.cache.owner.place_alike(self.name.parameter, tensor, self.name.role)

    @property
    def announce(self) -> "Callable[[Sequence[Any]], None]":
        """Takes pages in the order in which they will be used, those of other owners included."""
        return self.cache.owner.announce

    def take(self) -> Array | None:
        """Take the array away from the page; None, and no change, if the array is in use."""
        array, self._array = self._array, None
        is_free = False
        try:
            is_free = array is not None and not self._claimant and _is_unreferenced(array)
        finally:
            if not is_free:
                self._array = array
        return array if is_free else None

    def is_used(self) -> bool:
        """Return whether it is resident and something refers to its array."""
        if self._array is None:
            return False
        array = self.take()
        if array is not None:
            self._array = array
        return array is None

    def restore(self, array: Array) -> None:
        """Make `array` the resident content."""
        self._array, self.leaving, self.buffer = array, None, None
        if self.is_dirty:
            self.handle = None


class StoredCopy:
    """A content that does not change: each use reads it, and nothing keeps it in memory."""

    resident_nbytes = 0
    transit = ""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.nbytes = handle.nbytes

    @property
    def array(self) -> Array:
        """The content, in new memory."""
        return self._handle.get(memory.empty(self._handle.shape, self._handle.dtype))

    def will_change(self) -> None:
        """Raise: a change would be lost."""
        raise RuntimeError("a snapshot of paged memory cannot be changed; clone it")

    def snapshot(self) -> "StoredCopy":
        """Return itself."""
        return self

    def place_copy(self, tensor: Any) -> None:
        """Do nothing: a snapshot is no state."""

    def announce(self, pages: Sequence[Any]) -> None:
        """Do nothing: the order of reads is not predicted."""


def _counts(array: Array) -> tuple[int, int]:
    base = array.base
    return getrefcount(array), 0 if base is None else getrefcount(base)


def _is_unreferenced(array: Array) -> bool:
    """Return whether only the caller's variable refers to `array`, and nothing to its memory.

    Every view of the memory refers to the array or to its base.
    """
    return _counts(array) == _expected_counts(array.base is not None)


def measure_references() -> None:
    """Measure what `_is_unreferenced` compares with, for which later there may be no memory."""
    _expected_counts(True)
    _expected_counts(False)


@cache
def _expected_counts(is_pooled: bool) -> tuple[int, int]:
    # Versions of Python differ in how many references a call adds.
    array = memory.empty(memory.POOL_THRESHOLD if is_pooled else 1, np.uint8)
    return _measure(array)


def _measure(array: Array) -> tuple[int, int]:
    return _counts(array)
