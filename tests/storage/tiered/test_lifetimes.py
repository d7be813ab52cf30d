"""Handles and stores that die free their memory at once."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import ArrayLike
from offgrad_storage import (
    BufferPool,
    Handle,
    PoolStore,
    QuotaExceededError,
    TieredStore,
)
from offgrad_storage.testing import eventually

from tests.storage.gate import Setup, in_thread
from tests.storage.tiered.gated import holds, put


def test_a_handle_that_dies_while_its_array_moves_frees_the_memory() -> None:
    doomed: list[Handle] = []

    class Spy(TieredStore):
        """A lower tier in whose put the handle of the evicted array dies."""

        def put(
            self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None
        ) -> Handle:
            doomed.clear()
            return super().put(array, attributes=attributes)

    gate, pool = Setup(), BufferPool()
    with TieredStore(300, Spy(0, gate.store), allocate=pool.empty, hold=pool.empty) as store:
        gate.backend.permits.release()
        store.plan(full := [put(store, value) for value in range(3)])
        below = put(store, 7)
        below.wait_captured()
        del full
        doomed.append(put(store, 9))
        kept = [put(store, value) for value in range(2)]
        store.plan([below, *kept])
        below.prefetch()  # makes the doomed one move
        assert not doomed
        assert store.stats().live_handles == 3
        gate.backend.open.set()
        assert (below.get(np.empty(100, np.uint8)) == 7).all()
        eventually(lambda: pool.in_use_nbytes == 200)
        assert all(holds(handle, value) for value, handle in enumerate(kept))


def test_a_dying_handle_frees_its_memory_while_another_thread_holds_the_lock() -> None:
    pool, held, go_on = BufferPool(), threading.Event(), threading.Event()
    lower = PoolStore(hold=pool.empty)
    with TieredStore(100, lower, allocate=pool.empty, hold=pool.empty) as store:
        small, large = put(store, 1, 50), put(store, 2, 200)
        prefetched = put(store, 3, 100)
        store.plan([prefetched])

        def hold_lock() -> None:
            with store._tiers.lock:
                held.set()
                go_on.wait(60)

        holder, results = in_thread(hold_lock)
        held.wait(60)
        try:
            assert pool.in_use_nbytes == 350
            del small, large, prefetched
            assert pool.in_use_nbytes == 0
        finally:
            go_on.set()
            holder.join()
        assert results == [None]
        store._check()
        assert store.stats().live_handles == lower.stats().live_handles == 0


@pytest.mark.parametrize("nbytes", [0, 1000])
def test_a_store_that_only_takes_arrays_forgets_the_dead_ones(nbytes: int) -> None:
    with TieredStore(nbytes, PoolStore()) as store:
        for value in range(50):
            put(store, value)
        assert len(store._tiers.ram.live) <= 2
        assert store.stats().live_handles == 0


def test_an_error_that_is_kept_keeps_no_array_of_the_store() -> None:
    pool = BufferPool()
    with TieredStore(100, PoolStore(quota=0), hold=pool.empty) as store:
        handle = put(store, 1)
        with pytest.raises(QuotaExceededError) as caught:
            put(store, 2)
        del handle
        assert pool.in_use_nbytes == 0
        del caught


def test_an_unclosed_store_dies_at_once() -> None:
    pool = BufferPool()
    gc.disable()
    try:
        store = TieredStore(300, PoolStore(hold=pool.empty), hold=pool.empty)
        handles = [put(store, value) for value in range(5)]
        references = weakref.ref(store), weakref.ref(store.below[0])
        del store, handles
        assert [reference() for reference in references] == [None, None]
        assert pool.in_use_nbytes == 0
    finally:
        gc.enable()
