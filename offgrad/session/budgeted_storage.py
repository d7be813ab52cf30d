"""Residence: memory held for what was saved of it, until that is known to be in a store."""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from offgrad_storage import Handle, StoreError

from offgrad.memory import Storage
from offgrad.session.layout import Array, address
from offgrad.session.saved_array import Entry

if TYPE_CHECKING:
    from offgrad.session.budget import Residents


class Lodger(NamedTuple):
    """An entry, and what is to be written for it."""

    entry: ref[Entry]
    data: Array
    facts: Mapping[str, object]


class Write(NamedTuple):
    """A write, and the array the store was given for it, which nobody else holds."""

    handle: ref[Handle]
    source: ref[Array]

    @property
    def pending(self) -> bool:
        """Whether the store holds the memory; if it was under way, even when the handle is dead."""
        handle = self.handle()
        return self.source() is not None and not (handle is not None and handle.captured)


class Residence:
    """The memory of a storage, held for the entries in it. It goes with the last of them.

    Attributes:
        lodgers: what is not put into the store.
        put, writes: what is, perhaps still to be written.
        failure: why some of that could not be written the last time.
    """

    __slots__ = (
        "__weakref__", "_freed", "_residents", "failure", "lodgers", "nbytes", "put", "storage",
        "writes",
    )  # fmt: skip

    def __init__(self, storage: Storage, residents: "Residents", freed: deque[int]) -> None:
        self.storage = storage
        self.nbytes = storage.root.nbytes
        self.lodgers: list[Lodger] = []
        self.put: list[Lodger] = []
        self.failure: StoreError | None = None
        self.writes: list[Write] = []
        self._residents = residents
        self._freed = freed

    def __del__(self) -> None:
        del self.storage, self.lodgers, self.put  # before anyone is told
        self._freed.append(self.nbytes)

    def clear(self) -> None:
        """Have all entries written, unless they are, and wait for that.

        Raises:
            StoreError: some cannot be, and stay.
        """
        with self._residents.lock:
            self._residents.clear(self)

    def end(self) -> None:
        """All writes are done: let go of the entries written; the others are lodgers again."""
        for lodger in self.put:
            entry = lodger.entry()
            if entry is None:
                continue
            entry.leaving = None
            try:
                entry.handle.check()
            except StoreError as error:
                self.failure = error.with_traceback(None)  # which would keep memory
                self.lodgers.append(lodger)
                entry.residence = self
                entry.tally.not_written(id(entry))
                entry.is_also_in(self.storage, address(lodger.data) - address(self.storage.root))
        self.put, self.writes = [], []
