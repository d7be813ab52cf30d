"""The invariants of a store's tables: each sum equals that over the entries. For tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from offgrad_storage.entry import Entry, Pack, State

if TYPE_CHECKING:
    from offgrad_storage.executor.executor import Executor

_IN_FLIGHT = (State.QUEUED, State.WRITING)


def check_invariants(executor: Executor) -> None:
    """Raise AssertionError unless all sums and states agree; with the table's lock held."""
    table, packs = executor._table, executor._packs
    open_packs, cache = packs.open, packs.cache
    figures, persistent = table.figures, table.backend.persistent
    live = [*table.live.values()]
    arrays = dict.fromkeys([*live, *table.leaving, *table.pending, *table.kept.values()])
    entries = {entry for entry in arrays if not isinstance(entry, Pack)}
    known_packs: set[Pack] = {entry.pack for entry in entries if entry.pack is not None}
    known_packs |= {entry for entry in arrays if isinstance(entry, Pack)}
    known_packs |= {*open_packs.by_kind.values()}

    _same("live_handles", figures.live_handles, len(live))
    _same("logical_nbytes", figures.logical_nbytes, sum(entry.nbytes for entry in live))
    _same("inflight_nbytes", figures.inflight_nbytes, _held(table.pending))
    _same("packs in flight", table.packs_inflight_nbytes, _held(table.pending, Pack))
    _same("failed bytes", table.errors.failed_nbytes, _held(table.errors.failed_writes))
    for entry in table.pending:
        is_written = entry.state in _IN_FLIGHT or (entry.state is State.LEAVING and entry.busy)
        is_copied = isinstance(entry, Pack) and entry.copying
        assert is_written or is_copied or entry.pins, f"{entry} is in flight for nothing"
    assert all(entry.state is State.FAILED for entry in table.errors.failed_writes)
    assert all(entry.state is State.QUEUED for entry in table.writes)
    assert all(entry.state is State.LEAVING for entry in table.leaving)
    assert all(entry in table.pending for entry in table.writes)

    if not persistent:
        placed = [entry for entry in entries if entry.pack is None]
        used = sum(entry.stored_nbytes for entry in [*placed, *known_packs])
        # An encoded array is copied into a pack before it points to it: a job knows that pack.
        assert table.backend.used_nbytes >= used
        if not table.jobs.under_way:
            _same("used_nbytes", table.backend.used_nbytes, used)
        _same("stored_nbytes", figures.stored_nbytes, sum(each.stored_nbytes for each in entries))
        for pack in known_packs:
            packed = sum(entry.pack is pack for entry in entries)
            assert packed <= pack.members <= packed + pack.copying + len(table.jobs.under_way), pack
    for pack in known_packs:
        wanted = sum(entry.wants_pack for entry in entries if entry.pack is pack)
        _same(f"interest in {pack}", pack.interest, wanted)

    spare = sum(each.nbytes for spares in open_packs.spares.values() for each in spares)
    filling = sum(pack.capacity for pack in open_packs.by_kind.values())
    loaded = sum(pack.nbytes for pack in cache.loaded)
    queued = sum(each.nbytes for each in table.reads if isinstance(each, Pack))
    _same("loaded packs", cache.loaded_nbytes, loaded)
    assert table.open_nbytes >= spare + filling
    assert cache.loading_nbytes >= queued
    if not (table.jobs.under_way or open_packs.copying or open_packs.claims or cache.claims):
        _same("open packs", table.open_nbytes, spare + filling)
        _same("packs being read", cache.loading_nbytes, queued)
        assert not any(entry.busy or entry.pins for entry in [*arrays, *known_packs])
        assert not cache.loading
        assert not any(pack.copying for pack in known_packs)
        assert not table.leaving, "nothing keeps a dead entry"


def _held(entries: Iterable[Entry], kind: type[Entry] = Entry) -> int:
    return sum(entry.held_nbytes for entry in entries if isinstance(entry, kind))


def _same(what: str, counted: int, expected: int) -> None:
    assert counted == expected, f"{what}: {counted} counted, {expected} found"
