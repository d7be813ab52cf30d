"""Prefetcher: reads saved arrays ahead of their use, in the order of a backward pass."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from weakref import ref

from offgrad_storage import StoreError

from offgrad import memory
from offgrad.memory import Storage
from offgrad.session.saved_array import SavedArray


class _Prefetched:
    """A saved array that is in memory, or on its way there, for its next uses."""

    __slots__ = ("handle", "is_recomputed", "nbytes", "pinned", "saved", "uses")

    def __init__(self, saved: SavedArray, pinned: Storage | None) -> None:
        self.saved = ref(saved)
        self.nbytes = saved.nbytes
        self.pinned = pinned
        # While a store may be reading: it holds the buffer, even if the saved array dies unused.
        self.handle = None if saved.buffer is None else saved.stored
        self.is_recomputed = False  # rather than read or found in memory
        self.uses = 1

    def cancel_prefetch(self) -> None:
        """Drop the prefetch, if there is one; on return its buffer is free."""
        saved = self.saved()
        if saved is not None:
            saved.cancel_prefetch()
        elif self.handle is not None:
            with contextlib.suppress(StoreError):
                self.handle.store.cancel_prefetch(self.handle)


class Prefetcher:
    """The prefetches of one backward pass: in the order of use, within a window.

    An array that is in memory when its turn comes is pinned there until its use. The methods are
    called with the session's lock held.

    Attributes:
        window_nbytes: the most that is in memory ahead of its use, and the most that recomputed
            arrays with a second use take; one larger array may go alone.

    Args:
        uses: the order of use.
        window_nbytes: see above.
        fits: returns whether there is room to hold that many bytes for an array ahead of its use.
    """

    def __init__(
        self,
        uses: Iterable[SavedArray],
        window_nbytes: int,
        fits: Callable[[SavedArray, int], bool],
    ) -> None:
        # Ids of arrays to be recomputed; their inputs are consumed or skipped together with them.
        self._to_recompute: set[int] = set()
        # Weak: an array is freed with the last saved tensor that uses it.
        self._upcoming = deque(ref(saved) for saved in self._with_inputs(uses))
        self._prefetched: dict[int, _Prefetched] = {}
        self.window_nbytes = window_nbytes
        self._fits = fits

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
        prefetched, recomputed = self._held_nbytes()
        return prefetched + recomputed

    def _held_nbytes(self) -> tuple[int, int]:
        """Return the bytes prefetched, and those recomputed for an earlier use."""
        unpinned_nbytes = 0
        prefetched: dict[int, int] = {}
        recomputed: dict[int, int] = {}
        for each in self._prefetched.copy().values():
            storage = each.pinned
            if storage is not None:  # the whole storage, even if the array is not used any more
                pinned = recomputed if each.is_recomputed else prefetched
                pinned[storage.uid] = storage.root.nbytes
            elif each.handle is not None:
                unpinned_nbytes += each.nbytes
        return unpinned_nbytes + sum(prefetched.values()), sum(recomputed.values())

    def fill_window(self) -> None:
        """Begin the next prefetches, as far as the window and the memory limit allow."""
        for key, each in list(self._prefetched.items()):
            if each.saved() is None:
                each.cancel_prefetch()
                del self._prefetched[key]
        held_nbytes, _ = self._held_nbytes()
        while self._upcoming:
            saved = self._upcoming[0]()
            if saved is not None and not saved.stays_in_memory and not self._share(saved):
                found = saved.find_in_memory()
                if found is None and saved.recomputation is not None:
                    self._prefetched[id(saved)] = _Prefetched(saved, None)  # recomputed on use
                    self._upcoming.popleft()
                    continue
                nbytes = saved.nbytes if found is None else found[0].root.nbytes
                if held_nbytes and held_nbytes + nbytes > self.window_nbytes:
                    return
                if not self._fits(saved, nbytes):
                    if found is None:
                        return
                    found = None  # not pinned: if it is freed before its use, it is read
                elif found is None and saved.handle.store.reads_ahead:
                    if not memory.fits(nbytes):
                        return
                    try:
                        buffer = memory.empty(saved.shape, saved.dtype)
                    except memory.OutOfMemoryError:
                        return
                    if self._upcoming[0]() is not saved:  # `shrink` was called to make that room
                        return
                    # The read that uses the array raises the store's error again.
                    with contextlib.suppress(StoreError):
                        saved.prefetch(buffer)
                if found is not None or saved.buffer is not None:
                    self._prefetched[id(saved)] = _Prefetched(saved, found[0] if found else None)
                    held_nbytes += nbytes
            self._upcoming.popleft()

    def _share(self, saved: SavedArray) -> bool:
        """Count a further use of an array that is prefetched already; return whether it is."""
        prefetched = self._prefetched.get(id(saved))
        if prefetched is None or prefetched.saved() is not saved:
            return False
        prefetched.uses += 1
        return True

    def consume(self, saved: SavedArray, storage: Storage, is_recomputed: bool) -> None:
        """Count one use of `saved`, whose bytes are now in `storage`."""
        if saved.recomputation is not None and id(saved) in self._to_recompute:
            self._to_recompute.remove(id(saved))
            if not is_recomputed:
                for each in saved.recomputation.saved_inputs():
                    self._skip(each)
        prefetched = self._prefetched.get(id(saved))
        if prefetched is None or prefetched.saved() is not saved:
            if self._upcoming and self._upcoming[0]() is saved:  # there was no room to prefetch it
                self._upcoming.popleft()
            return
        prefetched.uses -= 1
        if not prefetched.uses:
            del self._prefetched[id(saved)]
        elif prefetched.pinned is not storage:
            prefetched.is_recomputed = saved.recomputation is not None
            if not prefetched.is_recomputed or self._has_room_for(saved, storage):
                prefetched.pinned, prefetched.handle = storage, None

    def _has_room_for(self, saved: SavedArray, storage: Storage) -> bool:
        """Return whether a recomputed array can be kept for its next use: else it is recomputed."""
        nbytes = storage.root.nbytes
        _, held_nbytes = self._held_nbytes()
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
            prefetched.cancel_prefetch()
            del self._prefetched[id(saved)]

    def shrink(self) -> None:
        """Drop all prefetches and halve the window; the arrays are prefetched later."""
        dropped: list[ref[SavedArray]] = []
        prefetched, self._prefetched = self._prefetched, {}
        for each in prefetched.values():
            each.cancel_prefetch()
            if each.saved() is not None:
                dropped += [each.saved] * each.uses
        self._upcoming.extendleft(reversed(dropped))
        self.window_nbytes //= 2

    def close(self) -> None:
        """End the pass: drop arrays that it did not use."""
        self.shrink()
        self._upcoming.clear()
