"""PoolStore against the contract, and its special features."""

from __future__ import annotations

import numpy as np
import pytest
from offgrad_storage import BufferPool, PoolStore, QuotaExceededError
from offgrad_storage.testing import MakeStore, StoreContract


class TestPoolStore(StoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda **options: PoolStore(**options)


def test_put_copies_at_once() -> None:
    with PoolStore() as store:
        array = np.arange(10.0)
        handle = store.put(array)
        assert handle.captured
        array[:] = 0
        assert handle.get()[9] == 9


def test_quota() -> None:
    with PoolStore(quota=1000) as store:
        first = store.put(np.zeros(100, np.uint8))
        with pytest.raises(QuotaExceededError, match=r"PoolStore, array 1.*901 bytes.*1000.*100"):
            store.put(np.zeros(901, np.uint8))
        assert (first.get() == 0).all()
        second = store.put(np.ones(900, np.uint8))
        del first
        third = store.put(np.ones(100, np.uint8))
        assert second.get().sum() + third.get().sum() == 1000
        assert store.stats().stored_nbytes == 1000


def test_memory_error_of_hold_stores_nothing() -> None:
    pool = BufferPool(capacity=4096)
    with PoolStore(hold=pool.empty) as store:
        first = store.put(np.ones(1000, np.uint8))
        with pytest.raises(MemoryError, match="capacity"):
            store.put(np.ones(5000, np.uint8))
        stats = store.stats()
        assert (stats.live_handles, stats.stored_nbytes, pool.in_use_nbytes) == (1, 1000, 1000)
        assert first.get().sum() == 1000
        del first
        assert pool.in_use_nbytes == 0


def test_close_frees_the_copies_of_living_handles() -> None:
    pool = BufferPool()
    store = PoolStore(hold=pool.empty)
    handle = store.put(np.ones(1000, np.uint8))
    assert pool.in_use_nbytes == 1000
    store.close()
    assert pool.in_use_nbytes == 0
    assert store.stats().stored_nbytes == 0
    del handle
