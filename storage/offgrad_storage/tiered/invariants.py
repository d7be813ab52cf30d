"""The invariants of a RamTier: its tables and figures follow from the states. For tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from offgrad_storage.tiered.states import Dead, New, TierEntry, TierState

if TYPE_CHECKING:
    from offgrad_storage.tiered.ram import RamTier


def check_invariants(ram: RamTier) -> None:
    """Raise AssertionError unless figures and tables agree with the states; with the lock held."""
    entries = _entries(ram)
    for entry, state in entries.items():
        watch = entry.watch
        assert watch is not None
        assert (watch.kind, watch.is_counted) == (type(state), state.is_counted)
        assert (watch.memory is None) == (state.memory is None)

    def having(attribute: str) -> set[TierEntry]:
        return {entry for entry, state in entries.items() if getattr(state, attribute)}

    budget, counted, leaving = ram.budget, having("is_counted"), having("is_leaving")
    assert budget.counted_nbytes == _sum(counted)
    assert budget.resident_nbytes == _sum(having("is_resident"))
    assert budget.leaving_nbytes == _sum(leaving)
    assert 0 <= budget.counted_nbytes <= budget.used_nbytes <= budget.nbytes
    assert ram.evictions.keys() == {entry.serial for entry in leaving}
    assert set(ram.moving.values()) == having("is_moving")
    assert ram.logical_nbytes == sum(watch.nbytes for watch in ram.live.values())
    members = {entry.serial for entry in having("is_evictable") & counted}
    assert members <= ram.live.keys()
    ram.order._check(members, ram.live.keys())


def _entries(ram: RamTier) -> dict[TierEntry, TierState]:
    """The arrays that live or move; after counting the dead."""
    entries = {entry: entry.tier_state for entry in ram.moving.values()}
    for watch in list(ram.live.values()):
        entry = watch()
        if entry is None:
            ram.on_dead(watch)
        else:
            assert not isinstance(entry.tier_state, (New, Dead))
            entries[entry] = entry.tier_state
    return entries


def _sum(entries: Iterable[TierEntry]) -> int:
    return sum(entry.nbytes for entry in entries)
