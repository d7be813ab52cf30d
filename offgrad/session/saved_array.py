"""One stored array of a session."""

import contextlib
from typing import TYPE_CHECKING
from weakref import ref

from offgrad_storage import Handle, StoreError

from offgrad import memory
from offgrad.memory import Storage
from offgrad.session.layout import Array
from offgrad.session.ledger_rows import Tally

if TYPE_CHECKING:
    from offgrad.session.budget import Residents
    from offgrad.session.budgeted_storage import Residence
    from offgrad.session.deferred_writes import Lent
    from offgrad.session.recompute import Recipe


class Entry:
    """One array saved for backward, shared by all saved tensors over the same bytes.

    Attributes:
        shape, dtype, nbytes: of the array.
        residence: the memory that is held for it; None once it is put into a store.
        leaving: the same, from then on until it is written.
        lent: the memory that it shares with who else holds it; None once it is in a store.
        stored: its place in the store; the array goes when the last saved tensor does.
        recipe: how to compute it again instead.
        lossless: whether it comes back bit for bit.
        residents: whose room it takes in memory; None if that is not bounded.
        buffer: what a read ahead is filling.
        tally: where its writes and reads count.
    """

    __slots__ = (
        "__weakref__", "_resident", "buffer", "dtype", "leaving", "lent", "lossless", "nbytes",
        "recipe", "residence", "residents", "shape", "stored", "tally",
    )  # fmt: skip

    def __init__(self, data: Array, tally: Tally) -> None:
        self.tally = tally
        self.shape = data.shape
        self.dtype = data.dtype
        self.nbytes = data.nbytes
        self.residence: Residence | None = None
        self.leaving: Residence | None = None
        self.residents: Residents | None = None
        self.lent: Lent | None = None
        self.stored: Handle | None = None
        self.recipe: Recipe | None = None
        self.lossless = True
        self.buffer: Array | None = None
        self._resident: tuple[ref[Storage], int, int] | None = None

    def __del__(self) -> None:
        if self.stored is not None:
            self.tally.forget(id(self), self.stored)

    @property
    def handle(self) -> Handle:
        """Its place in the store, where it has one."""
        assert self.stored is not None
        return self.stored

    @property
    def is_held(self) -> bool:
        """Whether it is in memory and stays there, with nothing to be done for it."""
        return self.residence is not None or self.lent is not None

    @property
    def captured(self) -> bool:
        """Whether the memory it was saved from may change."""
        if self.residence is not None or self.leaving is not None:
            return False
        return self.stored is None or self.stored.captured

    def wait_captured(self) -> None:
        """Have it written, if it is not, so that the memory it was saved from may change.

        Raises:
            StoreError: it cannot be written, and is still in that memory.
        """
        residence = self.residence or self.leaving
        if residence is not None:
            residence.clear()
        if self.stored is not None:
            self.stored.wait_captured()

    def is_also_in(self, storage: Storage, offset: int) -> None:
        """Note that `storage`, as it is now, holds the same bytes from `offset` on."""
        if storage.root.flags.c_contiguous:
            self._resident = (ref(storage), storage.version, offset)

    def is_only_stored(self) -> None:
        """From now on the store's answer counts: it may round, whoever else has the bytes."""
        self._resident = None

    def in_memory(self) -> tuple[Storage, Array] | None:
        """Return a storage that still holds the bytes, and them; None if there is none."""
        if self._resident is not None:
            reference, version, offset = self._resident
            storage = reference()
            if storage is not None and storage.version == version:
                flat = storage.root.reshape(-1).view("u1")
                return storage, flat[offset : offset + self.nbytes]
        lent = self.lent
        if lent is None:
            return None
        found = lent.copy()
        self.is_also_in(found[0], 0)
        return found

    def take_buffer(self) -> Array | None:
        """Return what a read ahead is filling, for `read` alone."""
        buffer, self.buffer = self.buffer, None
        return buffer

    def read(self, buffer: Array | None) -> Array:
        """Return the array from the store, in the buffer taken or else a new one."""
        if buffer is None:
            buffer = memory.empty(self.shape, self.dtype)
        return self.handle.get(buffer)

    def read_ahead(self, buffer: Array) -> None:
        """Begin to read into `buffer` in the background."""
        self.handle.prefetch(buffer)
        self.buffer = buffer

    def give_back(self) -> None:
        """Drop what was read ahead."""
        if self.buffer is not None:
            with contextlib.suppress(StoreError):
                self.handle.store.cancel_prefetch(self.handle)
            self.buffer = None
