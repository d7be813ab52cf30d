"""One stored array of a session, and the reading of it ahead of its use."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING
from weakref import ref

from offgrad_storage import Handle, StoreError

from offgrad import memory
from offgrad.memory import Storage
from offgrad.policies.layout import Array
from offgrad.policies.tally import Tally

if TYPE_CHECKING:
    from offgrad.policies.loans import Lent
    from offgrad.policies.recipe import Recipe
    from offgrad.policies.residence import Residence
    from offgrad.policies.residents import Residents


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


class _Ahead:
    """An entry that is in memory, or on its way there, for its next uses."""

    __slots__ = ("computed", "entry", "pinned", "uses")

    def __init__(self, entry: Entry, pinned: Storage | None) -> None:
        self.entry = ref(entry)
        self.pinned = pinned
        self.computed = False  # rather than read or found
        self.uses = 1


class ReadAhead:
    """The reads of one backward pass: in the order of use, as far ahead as a window allows.

    What is in memory already when its turn comes is held there until its use. The methods are
    called with the session's lock held.

    Attributes:
        window_nbytes: most bytes in memory ahead of their use, and most that are computed and wait
            for a second use; one larger array may go alone.

    Args:
        uses: the order.
        fits: whether there is room to hold so many bytes for an entry ahead of its use.
    """

    def __init__(
        self, uses: Iterable[Entry], window_nbytes: int, fits: Callable[[Entry, int], bool]
    ) -> None:
        # Those that will be computed, and what that takes will be used or passed over with them.
        self._to_compute: set[int] = set()
        # Weakly: an array goes with the last saved tensor that wants it.
        self._upcoming = deque(ref(entry) for entry in self._with_ingredients(uses))
        self._ahead: dict[int, _Ahead] = {}
        self.window_nbytes = window_nbytes
        self._fits = fits

    def _with_ingredients(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield `entries`, and before the first use of each that is computed, what that takes."""
        for entry in entries:
            if entry.recipe is not None and id(entry) not in self._to_compute:
                self._to_compute.add(id(entry))
                yield from self._with_ingredients(entry.recipe.entries())
            yield entry

    def order(self) -> list[Entry]:
        """Return the uses to come."""
        return [entry for each in self._upcoming if (entry := each()) is not None]

    def held_nbytes(self) -> int:
        """Return the bytes in memory, or on their way there, ahead of their use.

        This one may be called without the lock.
        """
        read, computed = self._held_nbytes()
        return read + computed

    def _held_nbytes(self) -> tuple[int, int]:
        """Return the bytes read ahead, and those computed for an earlier use."""
        held = 0
        read: dict[int, int] = {}
        computed: dict[int, int] = {}
        for ahead in self._ahead.copy().values():
            entry, storage = ahead.entry(), ahead.pinned
            if storage is not None:  # all of it, and whether the entry is still wanted or not
                pinned = computed if ahead.computed else read
                pinned[storage.uid] = storage.root.nbytes
            elif entry is not None and entry.recipe is None:
                held += entry.nbytes
        return held + sum(read.values()), sum(computed.values())

    def advance(self) -> None:
        """Begin as many reads as may be: within the window, and within the memory's limit."""
        for key, ahead in list(self._ahead.items()):
            if ahead.entry() is None:
                del self._ahead[key]
        held, _ = self._held_nbytes()
        while self._upcoming:
            entry = self._upcoming[0]()
            # What is held anyway needs no care.
            if entry is not None and not entry.is_held and not self._joins(entry):
                found = entry.in_memory()
                if found is None and entry.recipe is not None:
                    self._ahead[id(entry)] = _Ahead(entry, None)  # computed when it is wanted
                    self._upcoming.popleft()
                    continue
                nbytes = entry.nbytes if found is None else found[0].root.nbytes
                if held and held + nbytes > self.window_nbytes:
                    return
                if not self._fits(entry, nbytes):
                    if found is None:
                        return
                    found = None  # it may die before its use: then it is read
                elif found is None and entry.handle.store.reads_ahead:
                    if not memory.fits(nbytes):
                        return
                    try:
                        buffer = memory.empty(entry.shape, entry.dtype)
                    except memory.OutOfMemoryError:
                        return
                    if self._upcoming[0]() is not entry:  # given back to make that room
                        return
                    # An error of the store is for whoever wants the array: it comes there again.
                    with contextlib.suppress(StoreError):
                        entry.read_ahead(buffer)
                if found is not None or entry.buffer is not None:
                    self._ahead[id(entry)] = _Ahead(entry, found[0] if found else None)
                    held += nbytes
            self._upcoming.popleft()

    def _joins(self, entry: Entry) -> bool:
        """Return whether `entry` is ahead already, for an earlier use, and count this one."""
        ahead = self._ahead.get(id(entry))
        if ahead is None or ahead.entry() is not entry:
            return False
        ahead.uses += 1
        return True

    def used(self, entry: Entry, storage: Storage, computed: bool) -> None:
        """Note one use of `entry`, whose bytes are in `storage` now, perhaps `computed` for it."""
        if entry.recipe is not None and id(entry) in self._to_compute:
            self._to_compute.remove(id(entry))
            if not computed:
                for each in entry.recipe.entries():
                    self._pass_over(each)
        ahead = self._ahead.get(id(entry))
        if ahead is None or ahead.entry() is not entry:
            if self._upcoming and self._upcoming[0]() is entry:  # there was no room for it
                self._upcoming.popleft()
            return
        ahead.uses -= 1
        if not ahead.uses:
            del self._ahead[id(entry)]
        elif ahead.pinned is not storage:
            ahead.computed = entry.recipe is not None
            if not ahead.computed or self._has_room_for(entry, storage):
                ahead.pinned = storage

    def _has_room_for(self, entry: Entry, storage: Storage) -> bool:
        """Return whether what was computed can wait for its next use: else it is computed again."""
        nbytes = storage.root.nbytes
        _, held = self._held_nbytes()
        return (not held or held + nbytes <= self.window_nbytes) and self._fits(entry, nbytes)

    def _pass_over(self, entry: Entry) -> None:
        """One use of `entry` is not needed."""
        if entry.recipe is not None and id(entry) in self._to_compute:
            self._to_compute.remove(id(entry))
            for each in entry.recipe.entries():
                self._pass_over(each)
        ahead = self._ahead.get(id(entry))
        if ahead is None or ahead.entry() is not entry:
            with contextlib.suppress(ValueError):
                self._upcoming.remove(ref(entry))
            return
        ahead.uses -= 1
        if not ahead.uses:
            entry.give_back()
            del self._ahead[id(entry)]

    def give_back(self) -> None:
        """Drop what is ahead; read it again later, and only half as far ahead."""
        given: list[ref[Entry]] = []
        dropped, self._ahead = self._ahead, {}
        for ahead in dropped.values():
            entry = ahead.entry()
            if entry is not None:
                entry.give_back()
                given += [ahead.entry] * ahead.uses
        self._upcoming.extendleft(reversed(given))
        self.window_nbytes //= 2

    def close(self) -> None:
        """The pass is over: drop what it did not use."""
        self.give_back()
        self._upcoming.clear()
