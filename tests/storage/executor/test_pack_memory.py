"""The memory of packs: from ``hold``, within the bytes in flight, and returned by ``trim``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    AbstractArrayStore,
    BackendStore,
    BufferPool,
    DiskStore,
    Entry,
    Handle,
    PoolStore,
    ZarrStore,
)
from offgrad_storage.testing import assert_same, eventually, sample

from tests.storage.executor.test_packs import KIB, Counting, arrays

Array = NDArray[Any]
MIB = 1 << 20


class Slow(Counting):
    """A pack for each shape, and writes of some milliseconds."""

    packs_below = MIB

    def prepare(self, entry: Entry) -> None:
        entry.kind = entry.shape

    def write(self, entry: Entry, array: Array) -> int:
        time.sleep(0.002)
        return super().write(entry, array)


class Held:
    """Allocates memory of packs, and looks at all of it whenever it grows."""

    def __init__(self) -> None:
        self.pool = BufferPool()
        self.peak_nbytes = 0

    def empty(self, shape: Any, dtype: Any) -> Array:
        memory = self.pool.empty(shape, dtype)
        self.peak_nbytes = max(self.peak_nbytes, self.pool.in_use_nbytes)
        return memory


@pytest.mark.parametrize("inflight", [2 * MIB, 8 * MIB])
@pytest.mark.parametrize("codec", ["none", "packbits"])
def test_packs_of_many_kinds_stay_within_the_bytes_in_flight(inflight: int, codec: str) -> None:
    held = Held()
    with BackendStore(Slow(), inflight_nbytes=inflight, hold=held.empty, codec=codec) as store:
        handles: list[Handle] = []
        random = np.random.default_rng(0)
        for _ in range(3):
            for kind in range(200):
                dtype = bool if kind % 2 else np.uint8
                handles.append(store.put(np.zeros(1000 + 37 * kind, dtype)))
                handles.append(store.put(np.zeros(100_000 + int(random.integers(9)), np.uint8)))
                assert store.packs_nbytes <= inflight
                assert store.stats().inflight_nbytes <= inflight
        store.flush()
        store._check()
        assert 0 < held.peak_nbytes <= inflight
        for handle in handles[::7]:
            assert not handle.get().any()
        del handle, handles
    assert held.pool.in_use_nbytes == 0


def test_a_store_without_memory_for_packs_writes_arrays_alone() -> None:
    def refuse(shape: Any, dtype: Any) -> Array:
        raise MemoryError("none left")

    backend = Counting()
    with BackendStore(backend, hold=refuse) as store:
        handles = [store.put(each) for each in arrays(20)]
        store.flush()
        assert len(backend.kept) == 20
        assert store.packs_nbytes == 0
        for handle, array in zip(handles, arrays(20), strict=True):
            assert_same(handle.get(), array)
        store._check()
        del handle, handles


def test_a_pack_is_read_without_memory_for_it(tmp_path: Path) -> None:
    pool = BufferPool()
    empty = False

    def hold(shape: Any, dtype: Any) -> Array:
        if empty:
            raise MemoryError("none left")
        return pool.empty(shape, dtype)

    with DiskStore(tmp_path, hold=hold) as store:
        handles = [store.put(each) for each in arrays(50)]
        store.trim()
        empty = True
        assert store.packs_nbytes == pool.in_use_nbytes == 0
        for handle, array in zip(handles, arrays(50), strict=True):
            handle.prefetch()
            assert_same(handle.get(), array)
        assert store.packs_nbytes == 0
        del handle, handles


@pytest.mark.parametrize("use", ["trim", "flush", "put", "get", "die", "stats", "prefetch"])
def test_hold_may_call_the_store(use: str, tmp_path: Path) -> None:
    """As memory.limit does, which frees memory before it refuses any."""
    pool = BufferPool()
    inside = False
    handles: list[Handle] = []

    def hold(shape: Any, dtype: Any) -> Array:
        nonlocal inside
        if not inside:
            inside = True
            reclaim(store, use, handles)
            inside = False
        return pool.empty(shape, dtype)

    with DiskStore(tmp_path, hold=hold, inflight_nbytes=MIB) as store:
        expected = arrays(100)
        for each in expected:
            handles.append(store.put(each))
        store.trim()
        if use not in ("die", "put"):
            for handle, array in zip(handles, expected, strict=True):
                assert_same(handle.get(), array)
            del handle
        store._check()
        handles.clear()
        assert store.stats().live_handles == 0
    assert pool.in_use_nbytes == 0


def reclaim(store: AbstractArrayStore, use: str, handles: list[Handle]) -> None:
    if use in ("trim", "flush", "stats"):
        getattr(store, use)()
    elif use == "put":
        assert_same(store.put(arrays(2)[1]).get(), arrays(2)[1])
    elif use == "die":
        handles.clear()
    elif handles:
        getattr(handles[0], use)()


def test_trim_writes_open_packs_and_drops_loaded_ones(tmp_path: Path) -> None:
    pool = BufferPool()
    with DiskStore(tmp_path, hold=pool.empty) as store:
        handles = [store.put(each) for each in arrays(100)]
        assert store.packs_nbytes == pool.stats().in_use_nbytes > 0
        store.trim()
        assert store.packs_nbytes == pool.in_use_nbytes == 0
        for handle, array in zip(handles, arrays(100), strict=True):
            assert_same(handle.get(), array)
        assert store.packs_nbytes == pool.in_use_nbytes > 0
        store.trim()
        assert store.packs_nbytes == pool.in_use_nbytes == 0
        handles[0].prefetch()
        eventually(lambda: store._executor._packs.cache.loaded)
        held = store.packs_nbytes
        store.trim()
        assert store.packs_nbytes == held > 0, "a prefetch wants it"
        store.cancel_prefetch(handles[0])
        store.trim()
        assert store.packs_nbytes == pool.in_use_nbytes == 0
        del handle, handles


@pytest.mark.parametrize("nbytes", [0, 64 * KIB, 512 * KIB])
def test_max_pack_nbytes_bounds_each_pack(nbytes: int) -> None:
    sizes: list[int] = []

    def hold(shape: Any, dtype: Any) -> Array:
        sizes.append(int(np.prod(shape)))
        return np.empty(shape, dtype)

    backend = Counting()
    with BackendStore(backend, hold=hold, max_pack_nbytes=nbytes) as store:
        handles = [store.put(each) for each in arrays(300)]
        store.flush()
        assert max(sizes, default=0) == nbytes
        if not nbytes:
            assert len(backend.kept) == 300
        for handle, array in zip(handles, arrays(300), strict=True):
            assert_same(handle.get(), array)
        del handle, handles


def test_stores_without_packs_hold_nothing(tmp_path: Path) -> None:
    for store in (PoolStore(), DiskStore(tmp_path, threads=0), ZarrStore(tmp_path)):
        with store:
            handle = store.put(sample("f4", (1 << 20,)))
            store.trim()
            assert store.packs_nbytes == 0
            del handle
