"""Prefetcher: reads saved arrays ahead of their use, in the order of a backward pass."""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from weakref import ref

from offgrad_storage import Handle

from offgrad import memory
from offgrad.memory import Storage
from offgrad.session.saved_array import Array, SavedArray


class _SavedRef(ref[SavedArray]):
    """A weak reference to a saved array that knows its id."""

    __slots__ = ("key",)

    key: int


class Prefetched:
    """A saved array that is in memory, or on its way there, for its next uses.

    Attributes:
        saved: the array.
        nbytes: its size.
        pinned: the memory it is in.
        handle: while it is read, or about to be. It holds the buffer, even if the saved array dies
            unused.
        is_recomputed: whether the array is recomputed, rather than read or found in memory.
        uses: the number of uses to come.
    """

    __slots__ = ("handle", "is_recomputed", "nbytes", "pinned", "saved", "uses")

    def __init__(self, saved: _SavedRef, nbytes: int) -> None:
        self.saved = saved
        self.nbytes = nbytes
        self.pinned: Storage | None = None
        self.handle: Handle | None = None
        self.is_recomputed = False
        self.uses = 1


class _Pins:
    """Storages pinned once or several times, and their bytes."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._counts: Counter[int] = Counter()

    def add(self, storage: Storage) -> None:
        self._counts[storage.uid] += 1
        if self._counts[storage.uid] == 1:
            self.nbytes += storage.root.nbytes

    def remove(self, storage: Storage) -> None:
        self._counts[storage.uid] -= 1
        if not self._counts[storage.uid]:
            del self._counts[storage.uid]
            self.nbytes -= storage.root.nbytes


class Prefetcher:
    """The prefetches of one backward pass: in the order of use, within a window.

    An array that is in memory when its turn comes is pinned there until its use. The methods are
    called with the session's lock held, so they begin no read: `BackwardPasses` does.

    Attributes:
        window_nbytes: the most that is in memory ahead of its use, and the most that recomputed
            arrays with a second use take; one larger array may go alone.
        reading: the saved arrays with a prefetch into a buffer, by id.

    Args:
        uses: the order of use.
        window_nbytes: see above.
        fits: returns whether there is room to hold that many bytes for an array ahead of its use.
        cancel: called with the handle of each prefetch that is not wanted any more.
    """

    def __init__(
        self,
        uses: Iterable[SavedArray],
        window_nbytes: int,
        fits: Callable[[SavedArray, int], bool],
        cancel: Callable[[Handle], None],
    ) -> None:
        # Ids of arrays to be recomputed; their inputs are consumed or skipped together with them.
        self._to_recompute: set[int] = set()
        # Weak: an array is freed with the last saved tensor that uses it.
        self._upcoming = deque(ref(saved) for saved in self._with_inputs(uses))
        self._prefetched: dict[int, Prefetched] = {}
        self._dead: deque[_SavedRef] = deque()  # prefetched arrays that died unused
        self.reading: dict[int, ref[SavedArray]] = {}
        self._reading_nbytes = 0
        self._pins, self._recomputed_pins = _Pins(), _Pins()
        self.window_nbytes = window_nbytes
        self._fits = fits
        self._cancel = cancel

    def _with_inputs(self, uses: Iterable[SavedArray]) -> Iterator[SavedArray]:
        """Yield `uses`; before the first use of a recomputed array, the inputs that it takes."""
        for saved in uses:
            if saved.recomputation is not None and id(saved) not in self._to_recompute:
                self._to_recompute.add(id(saved))
                yield from self._with_inputs(saved.recomputation.saved_inputs())
            yield saved

    def order(self) -> list[SavedArray]:
        """Return the uses to come."""
        return [saved for each in self._upcoming if (saved := each()) is not None]

    def held_nbytes(self) -> int:
        """Return the bytes in memory, or on their way there, ahead of their use.

        This method may be called without the lock.
        """
        return self._prefetched_nbytes + self._recomputed_pins.nbytes

    @property
    def _prefetched_nbytes(self) -> int:
        return self._reading_nbytes + self._pins.nbytes

    def _add(self, saved: SavedArray) -> Prefetched:
        """Note that `saved` is prefetched, or to be recomputed."""
        dead = self._prefetched.get(id(saved))
        if dead is not None:  # had the same id
            self._drop(dead)
        reference = _SavedRef(saved, self._dead.append)
        reference.key = id(saved)
        prefetched = self._prefetched[id(saved)] = Prefetched(reference, saved.nbytes)
        return prefetched

    def _read(self, prefetched: Prefetched, handle: Handle) -> None:
        """Count the memory into which `prefetched` is read."""
        prefetched.handle = handle
        self.reading[prefetched.saved.key] = prefetched.saved
        self._reading_nbytes += prefetched.nbytes

    def _pin(self, prefetched: Prefetched, storage: Storage) -> None:
        """Hold `storage`, in which `prefetched` is now."""
        self._release(prefetched)
        prefetched.pinned = storage
        (self._recomputed_pins if prefetched.is_recomputed else self._pins).add(storage)

    def _release(self, prefetched: Prefetched) -> Handle | None:
        """Hold no memory for `prefetched` any more; return its handle if it is being read."""
        storage, prefetched.pinned = prefetched.pinned, None
        handle, prefetched.handle = prefetched.handle, None
        if storage is not None:
            (self._recomputed_pins if prefetched.is_recomputed else self._pins).remove(storage)
        if handle is not None:
            self._reading_nbytes -= prefetched.nbytes
            self.reading.pop(prefetched.saved.key, None)
        return handle

    def _drop(self, prefetched: Prefetched) -> None:
        """Drop the prefetch, if there is one."""
        handle = self._release(prefetched)
        if handle is not None:
            saved = prefetched.saved()
            if saved is None or saved.take_buffer() is not None:
                self._cancel(handle)

    def advance(self) -> Prefetched | None:
        """Pin the next arrays, as far as the window and the memory limit allow.

        Returns:
            The first that must be read, counted as if it were. The caller gives it memory and calls
            `begin_read`, or else `give_up`. None: the window is full, or the order at its end.
        """
        self._drop_dead()
        wanted: Prefetched | None = None
        while self._upcoming and wanted is None:
            saved = self._upcoming[0]()
            if saved is not None and not saved.stays_in_memory and not self._share(saved):
                found = saved.find_in_memory()
                if found is None and saved.recomputation is not None:
                    self._add(saved)  # recomputed on use
                    self._upcoming.popleft()
                    continue
                nbytes = saved.nbytes if found is None else found[0].root.nbytes
                held_nbytes = self._prefetched_nbytes
                if held_nbytes and held_nbytes + nbytes > self.window_nbytes:
                    return None
                if not self._fits(saved, nbytes):
                    if found is None:
                        return None
                    # Not pinned: if it is freed before its use, it is read.
                elif found is not None:
                    self._pin(self._add(saved), found[0])
                elif saved.handle.store.reads_ahead:
                    # A store that allocates waits for memory, which a prefetch must not.
                    if not memory.fits(nbytes + saved.handle.loading_nbytes):
                        return None
                    wanted = self._add(saved)
                    self._read(wanted, saved.handle)
            self._upcoming.popleft()
        return wanted

    def _drop_dead(self) -> None:
        """Drop prefetches of arrays that died unused."""
        while self._dead:
            reference = self._dead.popleft()
            dead = self._prefetched.get(reference.key)
            if dead is not None and dead.saved is reference:
                self._drop(self._prefetched.pop(reference.key))

    def begin_read(self, prefetched: Prefetched, buffer: Array) -> bool:
        """Note that the store fills `buffer`; return False if the array is not wanted any more."""
        saved = prefetched.saved()
        if prefetched.handle is None or saved is None or saved.stored is None:
            return False
        saved.stored.buffer = buffer
        return True

    def give_up(self, prefetched: Prefetched, *, retry: bool) -> None:
        """The read has not begun: prefetch the array later, or have its use read it."""
        if self._prefetched.get(prefetched.saved.key) is prefetched:
            del self._prefetched[prefetched.saved.key]
            self._release(prefetched)
            if retry:
                self._upcoming.extendleft([prefetched.saved] * prefetched.uses)

    def _share(self, saved: SavedArray) -> bool:
        """Count a further use of an array that is prefetched already; return whether it is."""
        prefetched = self._prefetched.get(id(saved))
        if prefetched is None or prefetched.saved() is not saved:
            return False
        prefetched.uses += 1
        return True

    def consume(self, saved: SavedArray, storage: Storage, *, was_found: bool) -> None:
        """Count one use of `saved`, whose bytes are now in `storage`, where `unpack` found them or
        put them.
        """
        if id(saved) in self._to_recompute and saved.recomputation is not None:
            self._to_recompute.remove(id(saved))
            if was_found:
                for each in saved.recomputation.saved_inputs():
                    self._skip(each)
        prefetched = self._prefetched.get(id(saved))
        if prefetched is None or prefetched.saved() is not saved:
            if self._upcoming and self._upcoming[0]() is saved:  # there was no room to prefetch it
                self._upcoming.popleft()
            return
        prefetched.uses -= 1
        # Dropped: where another thread read it, or it was found in memory, the buffer is left.
        if not prefetched.uses:
            self._drop(self._prefetched.pop(id(saved)))
        elif prefetched.pinned is not storage:
            self._drop(prefetched)
            prefetched.is_recomputed = saved.recomputation is not None
            if not prefetched.is_recomputed or self._has_room_for(saved, storage):
                self._pin(prefetched, storage)

    def _has_room_for(self, saved: SavedArray, storage: Storage) -> bool:
        """Return whether a recomputed array can be kept for its next use: else it is recomputed."""
        nbytes = storage.root.nbytes
        held_nbytes = self._recomputed_pins.nbytes
        in_window = not held_nbytes or held_nbytes + nbytes <= self.window_nbytes
        return in_window and self._fits(saved, nbytes)

    def _skip(self, saved: SavedArray) -> None:
        """Drop one use of `saved`: an array that takes it was found in memory."""
        if saved.recomputation is not None and id(saved) in self._to_recompute:
            self._to_recompute.remove(id(saved))
            for each in saved.recomputation.saved_inputs():
                self._skip(each)
        prefetched = self._prefetched.get(id(saved))
        if prefetched is None or prefetched.saved() is not saved:
            with contextlib.suppress(ValueError):
                self._upcoming.remove(ref(saved))
            return
        prefetched.uses -= 1
        if not prefetched.uses:
            self._drop(self._prefetched.pop(id(saved)))

    def shrink(self) -> None:
        """Drop all prefetches and halve the window; the arrays are prefetched later."""
        dropped: list[ref[SavedArray]] = []
        prefetched, self._prefetched = self._prefetched, {}
        for each in prefetched.values():
            self._drop(each)
            if each.saved() is not None:
                dropped += [each.saved] * each.uses
        self._upcoming.extendleft(reversed(dropped))
        self.window_nbytes //= 2

    def close(self) -> None:
        """End the pass: drop arrays that it did not use."""
        self.shrink()
        self._upcoming.clear()
