"""The memory budgets of a session: one for each `Spill` that its policy answers."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from offgrad_storage import AbstractArrayStore, StoreError
from offgrad_storage.interrupts import MaskedLock

from offgrad.memory import Storage
from offgrad.policies import Spill, Store
from offgrad.session.memory_budget import MemoryBudget
from offgrad.session.named_stores import max_pack_nbytes
from offgrad.session.saved_array import SavedArray, StorageRange
from offgrad.session.states import Stored


class Budgets:
    """All budgets of one session. For use with its lock held, except as noted.

    Args:
        lock: the session's.
        open_store: returns the store of a placement, with packs of at most that many bytes.
        prefetched_nbytes: returns the bytes that prefetches take of each budget's room.
    """

    def __init__(
        self,
        lock: MaskedLock,
        open_store: Callable[[Store, int], AbstractArrayStore],
        prefetched_nbytes: Callable[[], int],
    ) -> None:
        self._lock = lock
        self._open_store = open_store
        self._prefetched_nbytes = prefetched_nbytes
        self._budgets: dict[Spill, MemoryBudget] = {}

    def __iter__(self) -> Iterator[MemoryBudget]:
        return iter(list(self._budgets.values()))

    def of(self, spill: Spill) -> MemoryBudget:
        """Return the budget of `spill`, a new one the first time."""
        budget = self._budgets.get(spill)
        if budget is None:
            pack_nbytes = max_pack_nbytes(spill.nbytes)
            opened = partial(self._open_store, spill.store, pack_nbytes)
            if spill.nbytes is None or not isinstance(spill.store.store, str):
                pack_nbytes = 0  # there is no bound, or it is not known
            budget = MemoryBudget(spill, opened, self._lock, self._prefetched_nbytes, pack_nbytes)
            self._budgets[spill] = budget
        return budget

    def hold(
        self, saved: SavedArray, part: StorageRange, spill: Spill, attributes: Mapping[str, object]
    ) -> None:
        """Hold `part` within the budget of `spill`; if that has no room for it, write it.

        For use without the lock.

        Raises:
            StoreError: an array that had to be written cannot be.
        """
        data, begin = part.data, part.begin
        storage = part.storage if part.can_be_shared else None
        with self._lock:
            budget = saved.budget = self.of(spill)
            if storage is None and (copied := budget.copy(data)) is not None:
                data, storage, begin = copied, Storage(copied), 0
            if storage is not None:
                saved.note_copy(storage, begin)
                if budget.add(saved, storage, data, attributes):
                    return
        if not saved.lossless:
            saved.forget_copies()
        handle = budget.store.put(data, attributes=attributes)
        handle.wait_captured()  # until then the budget has no room for it
        handle.check()
        saved.enter(Stored(handle))

    @property
    def held_nbytes(self) -> int:
        """Bytes of memory held, including memory that is being written."""
        return sum(each.held_nbytes for each in self)

    @property
    def are_evicting(self) -> bool:
        """Whether memory is being written that does not wait for this thread to put it."""
        return any(each.is_evicting for each in self)

    def fit(self, saved: SavedArray, nbytes: int) -> bool:
        """Return whether there is room to prefetch `saved`, of which memory has `nbytes`."""
        if saved.recomputation is not None:  # it takes room from all budgets
            return all(each.fits(saved, nbytes) for each in self)
        return saved.budget is None or saved.budget.fits(saved, nbytes)

    def reclaim(self) -> Exception | None:
        """Evict what can be evicted; return the last error, without its frames and their memory."""
        failure: Exception | None = None
        for budget in self:  # even if one fails
            try:
                budget.reclaim()
            except (StoreError, MemoryError) as error:
                failure = error.with_traceback(None)
        return failure

    def forget_other_threads(self) -> None:
        """In a forked child: end the work of other threads, which do not exist there."""
        for budget in self:
            budget.forget_other_threads()
