"""Write-behind: the order of jobs, and waiting for writes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import (
    BackendStore,
    BufferPool,
    DiskStore,
    Handle,
    PoolStore,
    QuotaExceededError,
    TieredStore,
    ZarrStore,
)
from offgrad_storage.testing import MakeStore, StoreContract, eventually

from tests.storage.gate import GateBackend, Setup, in_thread


class TestGateStore(StoreContract):
    """A store of a few lines meets the whole contract."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        def make(**options: Any) -> BackendStore:
            backend = GateBackend()
            backend.open.set()
            return BackendStore(backend, **options)

        return make


def test_put_returns_before_the_write_and_get_reads_the_source(setup: Setup) -> None:
    first, second = setup.put(1), setup.put(2)
    setup.started("write 0")
    assert not first.captured
    assert not second.captured
    assert (first.get() == 1).all()
    assert (second.get() == 2).all()
    assert setup.backend.log == ["write 0"]
    assert setup.store.stats().inflight_nbytes == 200
    setup.backend.permits.release()
    first.wait_captured()
    assert setup.pool.in_use_nbytes == 100
    assert setup.store.stats().inflight_nbytes == 100
    assert first.stored_nbytes == 50
    setup.backend.open.set()
    assert (first.get() == 1).all()
    assert "read 0" in setup.backend.log


def test_put_blocks_when_the_bytes_in_flight_are_spent(setup: Setup) -> None:
    first = setup.put(1, 600)
    second = setup.put(2, 400)
    thread, results = in_thread(lambda: setup.put(3, 100))
    eventually(lambda: setup.store._executor._table.write_waiters == 1)
    assert not results
    assert setup.store.stats().inflight_nbytes == 1000
    setup.backend.permits.release()
    thread.join()
    assert isinstance(results[0], Handle)
    assert first.captured
    assert not second.captured
    assert setup.store.stats().put_stall_seconds > 0
    setup.backend.open.set()


def test_an_array_larger_than_the_bound_goes_alone(setup: Setup) -> None:
    large = setup.put(1, 5000)
    thread, results = in_thread(lambda: setup.put(2, 1))
    eventually(lambda: setup.store._executor._table.write_waiters == 1)
    setup.backend.open.set()
    thread.join()
    assert isinstance(results[0], Handle)
    assert large.captured


def test_a_dropped_handle_cancels_its_write(setup: Setup) -> None:
    first, second, third = setup.put(1), setup.put(2), setup.put(3)
    setup.started("write 0")
    del second
    assert setup.pool.in_use_nbytes == 200
    assert setup.store.stats().inflight_nbytes == 200
    setup.backend.open.set()
    third.wait_captured()
    eventually(lambda: sorted(setup.backend.log) == ["free 1", "write 0", "write 2"])
    assert first.captured


def test_a_handle_dropped_during_its_write_is_freed_after_it(setup: Setup) -> None:
    handle = setup.put(1)
    setup.started("write 0")
    del handle
    assert setup.pool.in_use_nbytes == 100
    setup.backend.open.set()
    eventually(lambda: setup.backend.log == ["write 0", "free 0"])
    eventually(lambda: not setup.backend.kept)
    assert setup.pool.in_use_nbytes == 0
    assert setup.store.stats().stored_nbytes == 0


def test_a_drop_lets_a_blocked_put_go_on(setup: Setup) -> None:
    first, second = setup.put(1, 500), setup.put(2, 500)
    setup.started("write 0")
    thread, results = in_thread(lambda: setup.put(3, 500))
    eventually(lambda: setup.store._executor._table.write_waiters == 1)
    del second
    thread.join()
    assert isinstance(results[0], Handle)
    assert not first.captured


def test_an_awaited_write_goes_first(setup: Setup) -> None:
    handles = [setup.put(number) for number in range(4)]
    setup.started("write 0")
    thread, _ = in_thread(handles[3].wait_captured)
    eventually(lambda: setup.store._executor._table.write_waiters == 1)
    setup.backend.permits.release(2)
    thread.join()
    assert setup.backend.log[:2] == ["write 0", "write 3"]
    assert not handles[1].captured


def test_the_quota_waits_for_writes_that_turn_out_smaller(setups: list[Setup]) -> None:
    setups.append(setup := Setup(quota=150))
    first = setup.put(1)
    thread, results = in_thread(lambda: setup.put(2))
    eventually(lambda: setup.store._executor._table.write_waiters == 1)
    setup.backend.open.set()
    thread.join()
    assert isinstance(results[0], Handle)
    results[0].wait_captured()
    with pytest.raises(QuotaExceededError, match="GateStore, array 2"):
        setup.put(3)
    assert setup.store.stats().stored_nbytes == 100
    assert (first.get() == 1).all()


def test_bad_options() -> None:
    for options in ({"threads": -1}, {"inflight_nbytes": -1}):
        with pytest.raises(ValueError, match="at least 0"):
            BackendStore(backend := GateBackend(), **options)  # type: ignore[arg-type]
        assert backend.closed
    with pytest.raises(ValueError, match="quota"):
        GateBackend(quota=-1)


@pytest.mark.parametrize("wrong", [True, False, np.True_, 1.5, "1MiB"])
def test_sizes_and_counts_are_integers(wrong: Any, tmp_path: Path) -> None:
    words = f"is an int, got {type(wrong).__name__}"
    makes: list[Callable[[], object]] = [
        lambda: BackendStore(GateBackend(), threads=wrong),
        lambda: BackendStore(GateBackend(), inflight_nbytes=wrong),
        lambda: PoolStore(wrong),
        lambda: BufferPool(wrong),
        lambda: TieredStore(wrong),
        *(
            functools.partial(DiskStore, tmp_path, **{name: wrong})
            for name in ("quota", "inflight_nbytes", "threads", "pack_below_nbytes")
        ),
        *(
            functools.partial(ZarrStore, tmp_path, **{name: wrong})
            for name in ("quota", "inflight_nbytes", "threads")
        ),
    ]
    for make in makes:
        with pytest.raises(TypeError, match=words):
            make()
    assert not list(tmp_path.iterdir())


def test_numpy_integers_are_sizes(tmp_path: Path) -> None:
    with DiskStore(tmp_path, quota=np.int64(1 << 20), threads=np.int32(1)) as store:  # type: ignore[arg-type]
        assert store.put(np.ones(3)).get().sum() == 3
    with pytest.raises(ValueError, match="pack_below_nbytes must be at least 0, got -1"):
        DiskStore(tmp_path, pack_below_nbytes=-1)
