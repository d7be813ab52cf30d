"""Bytes that stay unwritten until a call waits for them: ``max_dirty_nbytes``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import BackendStore, BufferPool, DiskStore, Handle
from offgrad_storage.testing import eventually

from tests.storage.gate import GateBackend

SIZE = 100


class Dirty:
    """A store that leaves 400 bytes unwritten, of at most 1000 in flight."""

    def __init__(self, **options: Any) -> None:
        self.backend = GateBackend(keeps=options.pop("keeps", False))
        self.backend.open.set()
        self.pool = BufferPool()
        options = {"threads": 1, "inflight_nbytes": 10 * SIZE, "max_dirty_nbytes": 400} | options
        self.store = BackendStore(self.backend, allocate=self.pool.empty, **options)

    def put(self, value: int) -> Handle:
        array = self.pool.empty(SIZE, np.uint8)
        array[:] = value
        return self.store.put(array)

    @property
    def writes(self) -> list[str]:
        return [each for each in self.backend.log if each.startswith("write")]


@pytest.fixture
def dirty() -> Iterator[Dirty]:
    setup = Dirty()
    yield setup
    setup.store._check()
    setup.store.close()


def test_arrays_freed_before_the_bound_is_reached_are_never_written(dirty: Dirty) -> None:
    handles = [dirty.put(number) for number in range(4)]
    assert [int(each.get()[0]) for each in handles] == [0, 1, 2, 3]
    handles.clear()
    dirty.store.flush()
    assert dirty.writes == []
    assert dirty.store.stats().inflight_nbytes == 0


def test_above_the_bound_the_oldest_are_written_down_to_half_of_it(dirty: Dirty) -> None:
    handles = [dirty.put(number) for number in range(5)]
    eventually(lambda: handles[2].captured)
    eventually(lambda: not dirty.store._executor._table.jobs.under_way)
    assert dirty.writes == ["write 0", "write 1", "write 2"]
    assert dirty.store.stats().inflight_nbytes == 200
    assert [int(each.get()[0]) for each in handles] == [0, 1, 2, 3, 4]


def test_a_wait_for_one_array_writes_it(dirty: Dirty) -> None:
    handles = [dirty.put(number) for number in range(3)]
    handles[2].wait_captured()
    assert dirty.writes[0] == "write 2"
    assert [int(each.get()[0]) for each in handles] == [0, 1, 2]


def test_flush_writes_all(dirty: Dirty) -> None:
    handles = [dirty.put(number) for number in range(3)]
    dirty.store.flush()
    assert dirty.writes == ["write 0", "write 1", "write 2"]
    assert all(each.captured for each in handles)
    assert [int(each.get()[0]) for each in handles] == [0, 1, 2]


def test_a_put_waits_for_dirty_arrays_where_it_needs_their_room() -> None:
    setup = Dirty(inflight_nbytes=2 * SIZE)
    handles = [setup.put(number) for number in range(6)]
    assert setup.store.stats().inflight_nbytes <= 2 * SIZE
    assert [int(each.get()[0]) for each in handles] == list(range(6))
    setup.store.close()


def test_a_store_that_stays_writes_dirty_arrays_at_its_end() -> None:
    setup = Dirty(keeps=True)
    handles = [setup.put(number) for number in range(3)]
    setup.store.close()
    assert setup.writes == ["write 0", "write 1", "write 2"]
    assert len(handles) == 3


def test_packs_count_as_dirty_and_trim_writes_them(tmp_path: Path) -> None:
    with DiskStore(tmp_path, max_dirty_nbytes=8 << 20) as store:
        handles = [store.put(np.full(40_000, number, np.float32)) for number in range(20)]
        assert store.packs_nbytes
        store.trim()
        assert not store.packs_nbytes
        assert [float(each.get()[-1]) for each in handles] == list(range(20))
        store._check()


def test_the_bound_is_not_negative() -> None:
    with pytest.raises(ValueError, match="max_dirty_nbytes"):
        Dirty(max_dirty_nbytes=-1)
