"""Backend: the four methods that make a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from offgrad_storage._checks import check_count
from offgrad_storage.entry import Entry
from offgrad_storage.errors import QuotaExceededError

Array = NDArray[Any]


class Backend(ABC):
    """Moves the bytes of arrays to a medium and back. ``BackendStore`` does everything else.

    Four methods are required: ``write``, ``read``, ``free`` and ``close``. The store makes an
    ``Entry`` for each array. Two of its attributes belong to the backend: ``place``, where it
    stores the array (None at first), and ``checksum``; ``checksum()`` and ``verify()`` of this
    package compute and compare one. Besides these a backend may only set ``kind``, and
    ``encoded_nbytes`` if it encodes arrays itself; it must not refer to its store.

    ``write`` and ``read`` may run in several threads at once, for different entries, or several
    reads of one. ``reserve``, ``shrink``, ``is_adjacent``, ``release_free`` and ``free`` are
    called one at a time, under the store's lock: they must be quick and not call the store.

    Errors of ``write`` and ``read`` become StoreErrors of their array, as do OSErrors of
    ``prepare`` and ``reserve``. The store's ``close`` raises errors of ``shrink`` and ``free``.

    Args:
        name: of the store, in errors.
        quota: bound of the bytes stored at once; None for none.

    Attributes:
        persistent: whether data outlives handles and store: then nothing is freed, and ``close``
            completes pending writes.
        tracks_entries: whether ``publish`` needs the list of stored entries.
        packs_below: arrays of fewer bytes, before or after encoding, are copied into packs of a few
            MB, if the store has threads: the backend gets a ``Pack`` instead. Arrays of one
            ``kind`` share packs. 0 for none.
        needs_executors: whether it uses ``concurrent.futures``, which end early at exit.
        used_nbytes: bytes stored now, counted by the executor.
        is_publishing: whether ``publish`` is under way, and no I/O thread writes; set by the store.
    """

    persistent: bool = False
    tracks_entries: bool = False
    packs_below: int = 0
    needs_executors: bool = False

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
        self.is_publishing = False

    def reserve(self, entry: Entry) -> int:
        """Reserve space for ``entry``; return an upper bound of its bytes. May set its ``place``.

        Raises:
            QuotaExceededError: there is no space. The put retries while writes are pending.
        """
        nbytes = entry.payload_nbytes
        if self.quota is not None and self.used_nbytes + nbytes > self.quota:
            raise self.over_quota(entry, nbytes)
        return nbytes

    def shrink(self, entry: Entry, stored_nbytes: int) -> None:  # noqa: B027
        """``entry`` is written: release the reserved space beyond ``stored_nbytes``."""

    @abstractmethod
    def write(self, entry: Entry, array: Array) -> int:
        """Store ``array``, of any memory order; return the bytes it takes.

        It is the array that was put, or its ``entry.encoded_nbytes`` bytes after encoding.
        """

    @abstractmethod
    def read(self, entry: Entry, out: Array) -> None:
        """Fill ``out``: C-contiguous, of the shape and dtype written.

        Verify the bytes, for example with ``verify(checksum(out), entry, self.name)`` if ``write``
        sets ``entry.checksum``. The store itself verifies each array in a ``Pack``.

        Raises:
            CorruptionError: the bytes differ from those written.
            MissingDataError: they are missing.
        """

    def is_adjacent(self, entry: Entry, following: Entry) -> bool:
        """Whether ``following`` starts where ``entry`` ends, so that one I/O can serve both.

        Called for entries with a place. Consecutive jobs of adjacent arrays are passed to
        ``write_run`` and ``read_run`` if the arrays are not encoded.
        """
        return False

    def write_run(self, entries: Sequence[Entry], arrays: Sequence[Array]) -> list[int]:
        """Write adjacent entries; return the bytes that each takes.

        If it raises anything, each is rewritten by ``write``.
        """
        return [self.write(*each) for each in zip(entries, arrays, strict=True)]

    def read_run(self, entries: Sequence[Entry], outs: Sequence[Array]) -> None:
        """Read adjacent entries; if it raises anything, each is read by ``read``."""
        for entry, out in zip(entries, outs, strict=True):
            self.read(entry, out)

    def publish(self, entries: Iterable[Entry]) -> None:  # noqa: B027
        """Make the stored arrays readable for other programs: on ``publish``, and before ``close``.

        Only called with ``tracks_entries``. ``entries`` are all stored ones, in the order of puts.
        """

    def read_part(self, pack: Entry, out: Array, offset: int, nbytes: int) -> None:
        """Fill ``out`` as ``read`` does, or at least ``nbytes`` of it from ``offset`` on.

        Called when a pack cannot be read or is damaged: this array in it may be intact. The store
        verifies it.
        """
        self.read(pack, out)

    def release_free(self) -> bool:
        """Return free space of the backend to the system; False if it cannot.

        Called when the disk is full, or the limit on file descriptors is reached.
        """
        return False

    @abstractmethod
    def free(self, entry: Entry) -> Callable[[], object] | None:
        """Free the place of ``entry``, written or not; return a slow part as a job for a thread.

        Called once for each reserved entry, when no I/O of it is under way; not if ``persistent``,
        nor after ``close``. If its write never began, ``entry.place`` is None unless ``reserve``
        set it.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything. May be called twice, and by the garbage collector."""

    def over_quota(self, entry: Entry, nbytes: int) -> QuotaExceededError:
        """The error for ``nbytes`` of ``entry`` that exceed the quota."""
        return QuotaExceededError(
            f"{nbytes} bytes more would exceed the quota of {self.quota} bytes, of which "
            f"{self.used_nbytes} are in use",
            store=self.name,
            handle=str(entry),
            fix="Raise the quota, or let handles die first",
        )
