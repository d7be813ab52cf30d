"""Tallies: the rows of a ledger while they are being counted."""

from collections import deque
from dataclasses import fields
from weakref import ref

from offgrad_storage import Handle, PoolStore

from offgrad.policies.base import SaveContext
from offgrad.session.ledger import Ledger, LedgerRow

_WAIT_SECONDS = 1e-4  # what a store does in less, it does without waiting


class Tally(LedgerRow):
    """Counts one row. For use with the session's lock held, `forget` apart.

    What an array takes in its store is known once it is written, so it is looked up later: when
    somebody wants to know, or when the array goes.
    """

    __slots__ = ("_forgotten", "_pending")

    def __init__(self, op: str, slot: str, module: str) -> None:
        super().__init__(op=op, slot=slot, module=module)
        # By key of the array: its handle, and whether its store counts as a disk.
        self._pending: dict[int, tuple[ref[Handle], bool]] = {}
        # From finalizers, which cannot take a lock: key, encoded and stored bytes.
        self._forgotten: deque[tuple[int, int, int]] = deque()

    def saved(self, nbytes: int, unique_nbytes: int) -> None:
        """Count one save, of which `unique_nbytes` were not saved before."""
        self.saves += 1
        self.logical_nbytes += nbytes
        self.unique_nbytes += unique_nbytes

    def wrote(self, key: int, handle: Handle) -> None:
        """Count a put; no two arrays alive have the same `key`."""
        self._settle_forgotten()
        self.writes += 1
        self._pending[key] = ref(handle), not isinstance(handle.store, PoolStore)

    def not_written(self, key: int) -> None:
        """The put has failed in the background: the array takes nothing there."""
        self._pending.pop(key, None)

    def forget(self, key: int, handle: Handle) -> None:
        """The array that was put is about to go. Called by the garbage collector."""
        written = handle.captured
        encoded_nbytes, stored_nbytes = handle.encoded_nbytes, handle.stored_nbytes
        self._forgotten.append((key, written * encoded_nbytes, written * stored_nbytes))

    def waited_to_write(self, seconds: float) -> None:
        """Count what one save took in the store."""
        self.write_stall_seconds += seconds
        self.write_waits += seconds >= _WAIT_SECONDS

    def read(self, nbytes: int, seconds: float, ahead: bool) -> None:
        """Count a get; `ahead` if it had begun before."""
        self.reads += 1
        self.read_nbytes += nbytes
        self.hits += ahead
        self.read_stall_seconds += seconds
        self.read_waits += seconds >= _WAIT_SECONDS

    def recomputed(self, nbytes: int) -> None:
        """Count an array that was computed again."""
        self.recomputes += 1
        self.recomputed_nbytes += nbytes

    def row(self) -> LedgerRow:
        """Return the row as it is now."""
        self._settle_forgotten()
        for key, (reference, on_disk) in list(self._pending.items()):
            handle = reference()
            if handle is not None and handle.captured:
                del self._pending[key]
                self._stored(handle.encoded_nbytes, handle.stored_nbytes, on_disk)
        return LedgerRow(**{each.name: getattr(self, each.name) for each in fields(LedgerRow)})

    def _settle_forgotten(self) -> None:
        while self._forgotten:
            key, encoded_nbytes, stored_nbytes = self._forgotten.popleft()
            _, on_disk = self._pending.pop(key, (None, None))
            if on_disk is not None:
                self._stored(encoded_nbytes, stored_nbytes, on_disk)

    def _stored(self, encoded_nbytes: int, stored_nbytes: int, on_disk: bool) -> None:
        self.encoded_nbytes += encoded_nbytes
        self.stored_nbytes += stored_nbytes
        if on_disk:
            self.written_nbytes += stored_nbytes


class Tallies:
    """The rows of one session. For use with its lock held."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str, str], Tally] = {}

    def of(self, context: SaveContext) -> Tally:
        """Return the row of a save."""
        key = context.op, context.slot, context.module
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = Tally(*key)
        return found

    def ledger(self) -> Ledger:
        """Return the figures as they are now."""
        return Ledger.of(each.row() for each in self._by_key.values())
