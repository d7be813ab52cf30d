"""The reading of arrays ahead of their use, in the order backward will want them."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from weakref import ref

from offgrad_storage import StoreError

from offgrad import memory
from offgrad.memory import Storage
from offgrad.session.saved_array import Entry


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
