"""TieredStore against the contract of all stores, and its own arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from offgrad_storage import (
    DiskStore,
    PoolStore,
    TieredStore,
)
from offgrad_storage.testing import MakeStore, StoreContract

from tests.storage.tiered.gated import holds, put


@pytest.mark.parametrize("nbytes", [0, 5000, 1 << 30])
class TieredContract(StoreContract):
    """Budgets that hold nothing, little and everything."""


class TestTieredStoreOverPool(TieredContract):
    @pytest.fixture
    def make_store(self, nbytes: int) -> MakeStore:
        return lambda **options: TieredStore(nbytes, PoolStore(**options), **options)


class TestTieredStoreOverDisk(TieredContract):
    @pytest.fixture
    def make_store(self, nbytes: int, tmp_path: Path) -> MakeStore:
        return lambda **options: TieredStore(nbytes, DiskStore(tmp_path), **options)


class TestTieredStoreOverTieredStore(TieredContract):
    @pytest.fixture
    def make_store(self, nbytes: int, tmp_path: Path) -> MakeStore:
        return lambda **options: TieredStore(
            nbytes, TieredStore(20_000, DiskStore(tmp_path)), **options
        )


def test_a_plan_takes_handles_of_this_store_only() -> None:
    with TieredStore(300) as store, PoolStore() as other:
        mine, strange = put(store, 0), put(other, 0)
        with pytest.raises(ValueError, match="another store"):
            store.plan([mine, strange])
        other.plan([mine, strange])


def test_a_budget_is_not_negative() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        TieredStore(-1)


def test_packs_below_are_counted_and_trimmed(tmp_path: Path) -> None:
    disk, other = DiskStore(tmp_path), DiskStore(tmp_path)
    with TieredStore(0, TieredStore(0, disk), PoolStore(), other) as store:
        handle = put(store, 1, 5000)
        kept = other.put(np.zeros(5000, np.uint8))
        assert disk.packs_nbytes >= 5000
        assert store.packs_nbytes == disk.packs_nbytes + other.packs_nbytes
        store.trim()
        assert store.packs_nbytes == 0
        assert holds(handle, 1)
        del kept
