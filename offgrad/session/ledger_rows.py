"""The rows of a session's ledger while they are being counted."""

from collections import deque
from dataclasses import fields
from typing import TYPE_CHECKING, TypeAlias
from weakref import ref

from offgrad_storage import Handle, PoolStore

from offgrad.session.ledger import Ledger, LedgerRow

if TYPE_CHECKING:
    from offgrad.session.saved_array import SavedArray

RowKey: TypeAlias = tuple[str, str, str]
"""Op, slot and module of a row."""

_MIN_WAIT_SECONDS = 1e-4  # a store that answers sooner did not wait


class RowCounter(LedgerRow):
    """Counts one row.

    The size of an array in its store is known once it is written, so it is looked up later: when
    the row is read, or when the array is dropped.
    """

    __slots__ = ("_dropped", "_pending")

    def __init__(self, op: str, slot: str, module: str) -> None:
        super().__init__(op=op, slot=slot, module=module)
        # By id of the saved array: its handle, and whether its store counts as a disk.
        self._pending: dict[int, tuple[ref[Handle], bool]] = {}
        # From finalizers, which cannot take a lock: id, encoded and stored bytes.
        self._dropped: deque[tuple[int, int, int]] = deque()

    def add_pending(self, key: int, handle: Handle) -> None:
        """Look up the size of `handle` later; no two arrays alive have the same `key`."""
        self._count_dropped()
        self._pending[key] = ref(handle), not isinstance(handle.store, PoolStore)

    def remove_pending(self, key: int) -> None:
        """The array takes nothing in its store: its write has failed."""
        self._pending.pop(key, None)

    def drop(self, key: int, encoded_nbytes: int, stored_nbytes: int) -> None:
        """The array is about to be freed. Called by finalizers, without the lock."""
        self._dropped.append((key, encoded_nbytes, stored_nbytes))

    def row(self) -> LedgerRow:
        """Return the row as it is now."""
        self._count_dropped()
        for key, (reference, on_disk) in list(self._pending.items()):
            handle = reference()
            if handle is not None and handle.captured:
                del self._pending[key]
                self._add_stored(handle.encoded_nbytes, handle.stored_nbytes, on_disk)
        return LedgerRow(**{each.name: getattr(self, each.name) for each in fields(LedgerRow)})

    def _count_dropped(self) -> None:
        while self._dropped:
            key, encoded_nbytes, stored_nbytes = self._dropped.popleft()
            _, on_disk = self._pending.pop(key, (None, None))
            if on_disk is not None:
                self._add_stored(encoded_nbytes, stored_nbytes, on_disk)

    def _add_stored(self, encoded_nbytes: int, stored_nbytes: int, on_disk: bool) -> None:
        self.encoded_nbytes += encoded_nbytes
        self.stored_nbytes += stored_nbytes
        if on_disk:
            self.written_nbytes += stored_nbytes


class LedgerCounter:
    """Counts the rows of one session. For use with its lock held, but for `forget`."""

    def __init__(self) -> None:
        self._rows: dict[RowKey, RowCounter] = {}

    def saved(
        self,
        row: RowKey,
        nbytes: int,
        unique_nbytes: int,
        is_kept: bool,
        new: "SavedArray | None",
        seconds: float,
    ) -> None:
        """Count one save: its bytes, those not saved before, the new saved array with its write, if
        it has begun, and the time it spent in a store.
        """
        counter = self._row(row)
        counter.saves += 1
        counter.logical_nbytes += nbytes
        counter.unique_nbytes += unique_nbytes
        counter.kept_nbytes += nbytes * is_kept
        if new is not None:
            new.is_counted = True
            if new.stored is not None:
                self.wrote(new)
        self.waited_to_write(row, seconds)

    def waited_to_write(self, row: RowKey, seconds: float) -> None:
        """Count the time that one save or deferred write spent in its store."""
        counter = self._row(row)
        counter.write_stall_seconds += seconds
        counter.write_waits += seconds >= _MIN_WAIT_SECONDS

    def wrote(self, saved: "SavedArray") -> None:
        """Count a put; the handle is in `saved`. Until its save is counted, nothing is."""
        if saved.is_counted:
            counter = self._row(saved.row)
            counter.writes += 1
            if saved.cached_in is None:  # else its write has failed already
                counter.add_pending(id(saved), saved.handle)

    def failed_to_write(self, saved: "SavedArray") -> None:
        """The put has failed in the background."""
        self._row(saved.row).remove_pending(id(saved))

    def forget(self, row: RowKey, key: int, handle: Handle) -> None:
        """A stored array is about to be freed. Called by finalizers, without the lock."""
        counter = self._rows.get(row)
        if counter is not None:
            is_written = handle.captured
            encoded_nbytes, stored_nbytes = handle.encoded_nbytes, handle.stored_nbytes
            counter.drop(key, is_written * encoded_nbytes, is_written * stored_nbytes)

    def found(self, saved: "SavedArray") -> None:
        """Count an unpack that found the array in memory."""
        self._row(saved.row).hits += 1

    def read(self, saved: "SavedArray", seconds: float, *, prefetched: bool) -> None:
        """Count a get, and the time it took."""
        counter = self._row(saved.row)
        counter.reads += 1
        counter.read_nbytes += saved.nbytes
        counter.hits += prefetched
        counter.read_stall_seconds += seconds
        counter.read_waits += seconds >= _MIN_WAIT_SECONDS

    def recomputed(self, saved: "SavedArray") -> None:
        """Count a recomputed array."""
        counter = self._row(saved.row)
        counter.recomputes += 1
        counter.recomputed_nbytes += saved.nbytes

    def ledger(self) -> Ledger:
        """Return the figures as they are now."""
        return Ledger.of(each.row() for each in self._rows.values())

    def _row(self, row: RowKey) -> RowCounter:
        counter = self._rows.get(row)
        if counter is None:
            counter = self._rows[row] = RowCounter(*row)
        return counter
