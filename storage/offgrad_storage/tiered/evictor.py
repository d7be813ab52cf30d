"""Makes room in the RAM of a TieredStore: which arrays are evicted, and when a put waits."""

from __future__ import annotations

from offgrad_storage.interrupts import interruptible
from offgrad_storage.tiered.moves import Moves
from offgrad_storage.tiered.states import Lower, TierEntry
from offgrad_storage.tiered.tiers import Tiers


class Evictor:
    """Evicts arrays with later uses to make room for others.

    Args:
        tiers: the tiers.
        moves: does the evictions.
    """

    def __init__(self, tiers: Tiers, moves: Moves) -> None:
        self._tiers = tiers
        self._ram = tiers.ram
        self._moves = moves

    def make_room(self, entry: TierEntry) -> bool:
        """Claim memory for a new array, and wait until the evictions it needs are written.

        False if no array in RAM is used later.
        """
        tiers, ram = self._tiers, self._ram
        if entry.nbytes > ram.budget.nbytes:
            return False
        while True:
            victim = write = None
            with tiers.lock:
                tiers.check_open(entry)
                if ram.has_room(entry):
                    ram.begin_copy(entry)
                    return True
                if ram.needs_eviction(entry):
                    victim = ram.begin_eviction(entry, retry=True)
                    if victim is None:
                        return False
                else:
                    write, is_moving = ram.first_eviction()
                    if is_moving:
                        tiers.wait()
            if write is not None:
                with interruptible:
                    write.wait_captured()
            if victim is not None:
                failure = self._moves.evict(victim)
                victim = None  # a traceback would keep it alive
                if failure is not None:
                    failure.add_note(f"while making room for {entry}")
                    raise failure

    def make_room_for_prefetch(self, entry: TierEntry) -> bool:
        """Claim memory for a prefetch, and begin evictions, without waiting for their writes.

        False if there is no room yet, or another thread prefetches the array.
        """
        tiers, ram = self._tiers, self._ram
        if entry.nbytes > ram.budget.nbytes:
            return False
        while True:
            with tiers.lock:
                tiers.check_open(entry)
                if type(entry.tier_state) is not Lower:
                    return False
                if ram.has_room(entry):
                    ram.begin_prefetch(entry, counted=True)
                    return True
                if not ram.needs_eviction(entry):
                    return False
                victim = ram.begin_eviction(entry, retry=False)
            if victim is None or self._moves.evict(victim) is not None:
                return False  # the next put that needs the memory raises the error
            del victim  # its handle may be dead

    def make_room_ahead(self, entry: TierEntry) -> None:
        """Evict for the next put, of an array of the size of ``entry``, if it would wait."""
        tiers, ram = self._tiers, self._ram
        while self._moves.is_write_behind:
            with tiers.lock:
                if tiers.closed or not ram.needs_eviction(entry):
                    return
                victim = ram.begin_eviction(entry, retry=False)
            if victim is None or self._moves.evict(victim) is not None:
                return  # the next put that needs the memory raises the error
            del victim
