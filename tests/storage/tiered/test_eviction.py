"""The choice of evicted arrays, and the waits of puts and flushes for their writes."""

from __future__ import annotations

from typing import Any

import pytest
from offgrad_storage import (
    Handle,
    PoolStore,
    StoreClosedError,
    TieredStore,
)
from offgrad_storage.testing import eventually

from tests.storage.gate import in_thread
from tests.storage.tiered.gated import Gated, holds, places, put
from tests.storage.tiered.waiting import waits


def test_arrays_that_fit_stay_in_ram(gated: Gated) -> None:
    handles = [put(gated.store, number) for number in range(3)]
    assert places(*handles) == ["ram"] * 3
    assert all(handle.captured for handle in handles)
    assert gated.pool.in_use_nbytes == gated.store.stats().stored_nbytes == 300
    assert all(holds(handle, number) for number, handle in enumerate(handles))
    assert gated.gate.store.stats().puts == 0


def test_the_oldest_moves_down_without_a_plan() -> None:
    with TieredStore(300, PoolStore()) as store:
        first, second, third = (put(store, number) for number in range(3))
        fourth = put(store, 3)
        assert places(first, second, third, fourth) == ["lower", "ram", "ram", "ram"]
        assert store.stats().stored_nbytes == 400
        del second
        fifth = put(store, 4)
        assert places(first, third, fourth, fifth) == ["lower", "ram", "ram", "ram"]
        sixth, seventh = put(store, 5), put(store, 6, 150)
        kept = (first, third, fourth, fifth, sixth, seventh)
        assert places(*kept) == ["lower"] * 4 + ["ram"] * 2
        assert [int(handle.get()[0]) for handle in kept] == [0, 2, 3, 4, 5, 6]


def test_the_furthest_planned_use_is_evicted_first() -> None:
    with TieredStore(300, PoolStore()) as store:
        a, b, c = (put(store, number) for number in range(3))
        store.plan([b, a, c])
        d = put(store, 3)
        assert places(a, b, c, d) == ["ram", "ram", "ram", "lower"]
        store.plan([d, b])
        e = put(store, 4)
        assert places(a, b, c, d, e) == ["lower", "ram", "ram", "lower", "ram"]
        store.plan([c, b, c])
        assert holds(c, 2)
        f = put(store, 5)
        assert places(b, c, e, f) == ["ram", "ram", "lower", "ram"]
        assert all(holds(handle, value) for value, handle in enumerate((a, b, c, d, e, f)))


def test_an_array_larger_than_ram_goes_below_at_once(gated: Gated) -> None:
    kept, large = put(gated.store, 1), put(gated.store, 2, 301)
    assert places(kept, large) == ["ram", "lower"]
    assert not large.captured
    assert holds(large, 2)
    gated.gate.backend.open.set()
    large.wait_captured()
    assert large.captured
    assert (kept.stored_nbytes, large.stored_nbytes) == (100, 150)


def test_put_waits_only_for_the_write_that_makes_its_room(gated: Gated) -> None:
    handles = [put(gated.store, number) for number in range(3)]
    thread, results = in_thread(lambda: put(gated.store, 3))
    gated.gate.started("write 0")
    assert not results
    assert holds(handles[0], 0)
    gated.gate.backend.permits.release()
    thread.join()
    gated.gate.started("write 1")  # ahead of the next put
    assert places(*handles) == ["lower", "writing", "ram"]
    assert holds(handles[1], 1)
    gated.gate.backend.permits.release()
    eventually(lambda: gated.gate.store.stats().inflight_nbytes == 0)
    handles.append(put(gated.store, 4))
    assert places(*handles) == ["lower", "lower", "writing", "ram"]
    assert gated.pool.in_use_nbytes == 300


def test_memory_of_a_dead_array_counts_while_it_is_being_written(gated: Gated) -> None:
    handles = [put(gated.store, number) for number in range(3)]
    thread, _ = in_thread(lambda: handles.append(put(gated.store, 3)))
    gated.gate.started("write 0")
    eventually(lambda: waits(thread.ident or 0))
    del handles[0]
    assert gated.pool.in_use_nbytes == gated.store._tiers.used_nbytes == 300
    gated.gate.backend.permits.release()
    thread.join()
    assert gated.pool.in_use_nbytes == 300
    gated.gate.backend.open.set()
    handles.clear()
    eventually(lambda: gated.pool.in_use_nbytes == 0)
    assert holds(put(gated.store, 4, 300), 4)
    assert gated.store._tiers.used_nbytes == 0 or gated.pool.in_use_nbytes == 0


def test_flush_waits_for_puts_below(gated: Gated) -> None:
    handle = put(gated.store, 1, 400)
    thread, results = in_thread(gated.store.flush)
    eventually(lambda: gated.gate.store._executor._table.write_waiters)
    assert not results
    gated.gate.backend.open.set()
    thread.join()
    assert results == [None]
    assert handle.captured
    assert gated.gate.backend.log == ["write 0"]


def test_flush_waits_for_evictions(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = [put(gated.store, value, nbytes) for value, nbytes in ((0, 300), (1, 400), (2, 400))]
    below = gated.gate.store
    puts, made = in_thread(lambda: put(gated.store, 3, 300))
    eventually(lambda: below._executor._table.write_waiters)  # the first does not fit in flight now
    entry: Any = handles[0]._entry
    assert entry.tier_state.is_moving
    seen: list[bool] = []
    flush = below.flush

    def look_and_flush() -> None:
        seen.append(entry.tier_state.is_moving)
        flush()

    monkeypatch.setattr(below, "flush", look_and_flush)
    thread, results = in_thread(gated.store.flush)
    gated.gate.backend.permits.release()
    gated.gate.started("write 1")
    eventually(lambda: seen)
    assert seen == [False]
    assert not results
    gated.gate.backend.open.set()
    thread.join()
    puts.join()
    assert results == [None]
    assert holds(handles[0], 0)
    assert isinstance(made[0], Handle)


def test_flush_ends_with_the_store(gated: Gated) -> None:
    gated.gate.backend.open.set()
    gated.store.close()
    with pytest.raises(StoreClosedError):
        gated.store.flush()
