"""The RAM tier by itself: its bytes, and the choice of evicted arrays."""

from __future__ import annotations

import numpy as np
import pytest
from offgrad_storage import PoolStore
from offgrad_storage.tiered.invariants import check_invariants
from offgrad_storage.tiered.ram import RamTier
from offgrad_storage.tiered.states import TierEntry


def entry_of(serial: int) -> TierEntry:
    return TierEntry(serial, np.zeros(100, np.uint8), {})


def test_released_memory_counts_until_its_last_reference_is_gone() -> None:
    ram, entry, array = RamTier(300), entry_of(0), np.zeros(100, np.uint8)
    ram.begin_copy(entry)
    ram.on_copied(entry, array)
    del entry
    ram.handle_deaths()
    check_invariants(ram)
    assert not ram.live
    assert (ram.budget.counted_nbytes, ram.budget.used_nbytes) == (0, 100)
    del array
    assert ram.budget.used_nbytes == 0


@pytest.mark.parametrize("taken", [False, True])
def test_memory_that_a_get_has_taken_does_not_count(taken: bool) -> None:
    ram, entry, target = RamTier(300), entry_of(0), np.zeros(100, np.uint8)
    with PoolStore() as below:
        ram.on_passed_down(entry, below.put(target))
        ram.begin_prefetch(entry, counted=True)
        assert ram.budget.used_nbytes == 100
        ram.on_prefetched(entry, target, begun=True)
        ram.begin_end(entry)
        ram.on_ended(entry, ended=True, taken=taken)
        check_invariants(ram)
        assert ram.budget.used_nbytes == (0 if taken else 100)
        del target
        assert ram.budget.used_nbytes == 0


def test_the_arrays_with_the_furthest_next_use_are_evicted_first() -> None:
    ram, entries = RamTier(300), [entry_of(serial) for serial in range(4)]
    for entry in entries[:3]:
        ram.begin_copy(entry)
        ram.on_copied(entry, np.zeros(100, np.uint8))
    with PoolStore() as below:
        prefetched = entries[3]
        ram.on_passed_down(prefetched, below.put(np.zeros(100, np.uint8)))
        ram.order.plan([1, 3, 2, 0])
        assert ram.needs_eviction(prefetched)
        assert ram.begin_eviction(prefetched, retry=False) is entries[0]
        assert not ram.needs_eviction(prefetched)
        assert not ram.has_room(prefetched), "the eviction has not ended"
        assert ram.begin_eviction(prefetched, retry=False) is entries[2]
        assert ram.begin_eviction(prefetched, retry=False) is None
        check_invariants(ram)
