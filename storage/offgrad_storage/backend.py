"""Where bytes live: the four methods that make a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from offgrad_storage.checks import check_count
from offgrad_storage.entry import Entry
from offgrad_storage.errors import QuotaExceededError

Array = NDArray[Any]


class Backend(ABC):
    """Moves the bytes of arrays to some place and back. ``BackendStore`` does everything else.

    Four methods must be there: ``write``, ``read``, ``free`` and ``close``. Each array is an
    ``Entry``, made by the store. Two of its attributes belong to the backend, and nobody else looks
    at them: ``place``, where the array is (None at first), and ``checksum``, what it is known by;
    ``checksum()`` and ``verify()`` of this package make and compare one. A backend is not to change
    any other but ``kind``, and ``encoded_nbytes`` where it encodes arrays itself; it must not refer
    to its store.

    ``write`` and ``read`` may run in several threads at once, for different entries, or several
    reads of one. ``reserve``, ``shrink``, ``is_adjacent``, ``release_free`` and ``free`` are
    called one at a time, under the store's lock: they must be quick and not call the store.

    What ``write``, ``read`` and the like raise becomes a StoreError of their array; so does an
    OSError of ``prepare`` and ``reserve``. What ``shrink`` and ``free`` raise is kept for the
    store's ``close``: nobody waits for them.

    Args:
        name: what errors call the store.
        quota: most bytes stored at once; None for no bound.

    Attributes:
        persistent: whether data outlives handles and store: then nothing is freed, and close()
            completes pending writes.
        tracks_entries: whether ``publish`` needs the list of stored entries.
        packs_below: arrays of fewer bytes, as they are or encoded, are copied into packs of a
            few MB, if the store has threads: the backend gets a ``Pack`` in their place. Those of
            one ``kind`` go together. 0 for none.
        used_nbytes: bytes stored now, counted by the executor.
    """

    persistent: bool = False
    tracks_entries: bool = False
    packs_below: int = 0

    prepare: Callable[[Entry], None] | None = None
    """Define ``prepare(self, entry)`` to get ready for ``entry`` before its space is reserved.

    It runs without the store's lock: unlike ``reserve``, it may wait, or call the store. It may set
    ``entry.kind``: small arrays are packed with those of the same kind.
    """

    def __init__(self, name: str, quota: int | None = None) -> None:
        if quota is not None:
            check_count("quota", quota)
        self.name = name
        self.quota = quota
        self.used_nbytes = 0

    def reserve(self, entry: Entry) -> int:
        """Make room for ``entry``, perhaps set ``entry.place``; return the most bytes it may take.

        Raises:
            QuotaExceededError: there is no room. The put waits for some as long as writes are
                pending, and asks again.
        """
        nbytes = entry.payload_nbytes
        if self.quota is not None and self.used_nbytes + nbytes > self.quota:
            raise self.over_quota(entry, nbytes)
        return nbytes

    def shrink(self, entry: Entry, stored_nbytes: int) -> None:  # noqa: B027
        """``entry`` is written; give back what it does not take of the room it was given."""

    @abstractmethod
    def write(self, entry: Entry, array: Array) -> int:
        """Store ``array``, of any memory order; return the bytes it takes.

        It is what was put, or what the codec made of it: ``entry.encoded_nbytes`` bytes.
        """

    @abstractmethod
    def read(self, entry: Entry, out: Array) -> None:
        """Fill ``out``: C-contiguous, of the shape and dtype written.

        Verify that the bytes are those written, as by ``verify(checksum(out), entry, self.name)``
        where ``write`` has set ``entry.checksum``. Of a ``Pack`` the store does that itself, for
        each array in it.

        Raises:
            CorruptionError, MissingDataError: the bytes are others, or gone.
        """

    def is_adjacent(self, entry: Entry, following: Entry) -> bool:
        """Whether ``following`` lies right behind ``entry``, so that one I/O can be for both.

        Asked of entries that have their places. Where it says so, arrays that are next anyway go
        to ``write_run`` and ``read_run`` together, if they are stored as they are; else these two
        are never called.
        """
        return False

    def write_run(self, entries: Sequence[Entry], arrays: Sequence[Array]) -> list[int]:
        """Write entries each of which adjoins the next; return the bytes that each takes.

        If it raises anything, each is written again by ``write``.
        """
        return [self.write(*each) for each in zip(entries, arrays, strict=True)]

    def read_run(self, entries: Sequence[Entry], outs: Sequence[Array]) -> None:
        """Read entries each of which adjoins the next; if it raises, each is read by ``read``."""
        for entry, out in zip(entries, outs, strict=True):
            self.read(entry, out)

    def publish(self, entries: Iterable[Entry]) -> None:  # noqa: B027
        """Make what is stored readable for others: by the store's ``publish``, or before ``close``.

        Only called with ``tracks_entries``. ``entries`` are all stored ones, in the order of puts.
        """

    def read_part(self, pack: Entry, out: Array, offset: int, nbytes: int) -> None:
        """Fill ``out`` as ``read`` does, or at least ``nbytes`` of it from ``offset`` on.

        Called when ``read`` failed, or what it read is not right: one array of the pack may be
        there all the same. The store verifies it.
        """
        self.read(pack, out)

    def release_free(self) -> bool:
        """Give space that is free in the backend back to the system; False if there is no way to.

        Called when the disk is found full, or file descriptors are spent.
        """
        return False

    @abstractmethod
    def free(self, entry: Entry) -> Callable[[], object] | None:
        """Give up the place of ``entry``, written or not; return what takes long, for a thread.

        Called once for each entry whose room was reserved, when nothing is under way there; not
        with ``persistent``, nor after ``close``. If its write never began, ``entry.place`` is what
        ``reserve`` made it: None, unless that set it.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up everything. May be called twice, and by the garbage collector."""

    def over_quota(self, entry: Entry, nbytes: int) -> QuotaExceededError:
        """The error that says that ``nbytes`` for ``entry`` are more than the quota leaves."""
        return QuotaExceededError(
            f"{nbytes} bytes more would pass the quota of {self.quota} bytes, of which "
            f"{self.used_nbytes} are in use",
            store=self.name,
            handle=str(entry),
            fix="Raise the quota, or let handles die first",
        )
