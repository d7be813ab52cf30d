"""The rows of a session's ledger while they are being counted."""

from collections import OrderedDict
from dataclasses import fields
from typing import TYPE_CHECKING, TypeAlias
from weakref import ref

import offgrad_storage

from offgrad.policies import Placement, Spill, Store
from offgrad.session.ledger import Ledger, LedgerRow

if TYPE_CHECKING:
    from offgrad.session.saved_array import SavedArray

RowKey: TypeAlias = tuple[str, str, str]
"""Op, slot and module of a row."""

_MIN_WAIT_SECONDS = 1e-4  # a store that answers sooner did not wait


class RowCounter(LedgerRow):
    """Counts one row.

    The size of an array in its store is known once it is written, so it is looked up later. It is
    lost if the array is freed first: its death runs no Python code that could look (ADR 14), and
    waiting for each write would undo write-behind.
    """

    __slots__ = ("_pending", "_placement")

    def __init__(self, op: str, slot: str, module: str) -> None:
        super().__init__(op=op, slot=slot, module=module)
        # By id, oldest first.
        self._pending: OrderedDict[int, ref[SavedArray]] = OrderedDict()
        self._placement: Placement | None = None

    def note_placement(self, placement: Placement) -> None:
        """Note the store of a placement."""
        if placement is not self._placement:  # policies tend to give the same object
            store = placement.store if isinstance(placement, Spill) else placement
            if isinstance(store, Store):
                self.add_stores(str(store))
                # A store object would live as long as the session.
                self._placement = placement if isinstance(store.store, str) else None

    def add_pending(self, saved: "SavedArray") -> None:
        """Look up the size of `saved` in its store later."""
        self.count_first_written()
        self._pending[id(saved)] = ref(saved)

    def remove_pending(self, saved: "SavedArray") -> None:
        """The array takes nothing in its store: its write has failed."""
        self._pending.pop(id(saved), None)

    def count_first_written(self) -> None:
        """Count the sizes of written arrays, up to the first pending write."""
        while self._pending and self._count_if_written(next(iter(self._pending))):
            pass

    def count_written(self) -> None:
        """Count the sizes of all written arrays."""
        for key in list(self._pending):
            self._count_if_written(key)

    def _count_if_written(self, key: int) -> bool:
        """Count the size of one array, unless it was freed first; return False if it is pending."""
        saved = self._pending[key]()
        if saved is not None and not saved.is_written:
            return False
        del self._pending[key]
        if saved is not None:
            handle = saved.handle
            self.encoded_nbytes += handle.encoded_nbytes
            self.stored_nbytes += handle.stored_nbytes
            if not isinstance(handle.store, offgrad_storage.PoolStore):
                self.written_nbytes += handle.stored_nbytes
        return True

    def row(self) -> LedgerRow:
        """Return the row as it is now."""
        self.count_written()
        return LedgerRow(**{each.name: getattr(self, each.name) for each in fields(LedgerRow)})


class LedgerCounter:
    """Counts the rows of one session. For use with its lock held."""

    def __init__(self) -> None:
        self._rows: dict[RowKey, RowCounter] = {}

    def saved(
        self,
        row: RowKey,
        nbytes: int,
        unique_nbytes: int,
        is_kept: bool,
        new: "SavedArray | None",
        placement: Placement,
        seconds: float,
    ) -> None:
        """Count one save: its bytes, those not saved before, the new saved array with its write, if
        it has begun, where the policy sends it, and the time it spent in a store.
        """
        counter = self._row(row)
        counter.saves += 1
        counter.logical_nbytes += nbytes
        counter.unique_nbytes += unique_nbytes
        counter.kept_nbytes += nbytes * is_kept
        if new is not None:
            new.is_counted = True
            counter.note_placement(placement)
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
            if saved.stored is not None:  # else its write has failed already
                counter.add_pending(saved)

    def failed_to_write(self, saved: "SavedArray") -> None:
        """The put has failed in the background."""
        self._row(saved.row).remove_pending(saved)

    def found(self, saved: "SavedArray") -> None:
        """Count an unpack that found the array in memory."""
        counter = self._row(saved.row)
        counter.unpacks += 1
        counter.hits += 1
        counter.count_first_written()

    def read(self, saved: "SavedArray", seconds: float, *, prefetched: bool) -> None:
        """Count a get, and the time it took."""
        counter = self._row(saved.row)
        counter.unpacks += 1
        counter.reads += 1
        counter.read_nbytes += saved.nbytes
        counter.hits += prefetched
        counter.read_stall_seconds += seconds
        counter.read_waits += seconds >= _MIN_WAIT_SECONDS
        counter.count_first_written()

    def recomputed(self, saved: "SavedArray") -> None:
        """Count a recomputed array."""
        counter = self._row(saved.row)
        counter.unpacks += 1
        counter.recomputes += 1
        counter.recomputed_nbytes += saved.nbytes

    def count_written(self) -> None:
        """Count the sizes of written arrays, before a backward pass frees them."""
        for each in self._rows.values():
            each.count_written()

    def ledger(self) -> Ledger:
        """Return the figures as they are now."""
        return Ledger.of(each.row() for each in self._rows.values())

    def _row(self, row: RowKey) -> RowCounter:
        counter = self._rows.get(row)
        if counter is None:
            counter = self._rows[row] = RowCounter(*row)
        return counter
