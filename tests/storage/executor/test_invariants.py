"""The sums over a store's entries, under random actions of several threads."""

from __future__ import annotations

import contextlib
import queue
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import BackendStore, DiskStore, Entry, Handle, PoolStore, StoreError, ZarrStore
from offgrad_storage.entry import State
from offgrad_storage.executor.entry_table import EntryTable
from offgrad_storage.testing import assert_same, eventually, sample

from tests.storage.gate import GateBackend, Setup

MIB = 1 << 20

MAKE: dict[str, Any] = {
    "disk": lambda path: DiskStore(path, inflight_nbytes=2 * MIB),
    "disk-alone": lambda path: DiskStore(path, inflight_nbytes=MIB, pack_below_nbytes=0),
    "disk-codec": lambda path: DiskStore(path, inflight_nbytes=2 * MIB, codec="zstd"),
    "disk-sync": lambda path: DiskStore(path, threads=0),
    "disk-quota": lambda path: DiskStore(path, quota=3 * MIB, inflight_nbytes=MIB),
    "zarr": lambda path: ZarrStore(path, inflight_nbytes=2 * MIB),
    "zarr-kept": lambda path: ZarrStore(path, keep=True, inflight_nbytes=2 * MIB),
    "pool": lambda path: PoolStore(),
    "flaky": lambda path: BackendStore(Flaky(), threads=2, inflight_nbytes=MIB),
}


class Flaky(GateBackend):
    """Every few writes and reads fail."""

    packs_below = 40_000

    def __init__(self) -> None:
        super().__init__()
        self.open.set()
        self.random = random.Random(5)

    def _pass(self, action: str, entry: Entry) -> None:
        if self.random.random() < 0.2:
            raise OSError(5, "injected")


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def act(store: BackendStore, seed: int, actions: int, failures: list[BaseException]) -> None:
    choose = random.Random(seed)
    kept: list[tuple[Handle, Any]] = []
    try:
        for _ in range(actions):
            with contextlib.suppress(StoreError):  # a quota, or an injected fault
                _act_once(store, choose, kept)
            if choose.random() < 0.3:
                store._check()
    except BaseException as error:
        failures.append(error)


def _act_once(store: BackendStore, choose: random.Random, kept: list[tuple[Handle, Any]]) -> None:
    name = choose.choice(
        ["put"] * 4
        + ["get", "out", "prefetch", "prefetch out", "cancel"] * 2
        + ["drop", "drop", "drop", "captured", "flush", "trim", "publish"]
    )
    if name == "put" or not kept:
        count = choose.choice([0, 10, 3000, 3000, 9000, 30_000, 60_000])
        array = sample(choose.choice(["f4", "?", "i2"]), (count,), choose.randrange(9))
        kept.append((store.put(array), array))
        return
    handle, array = kept[choose.randrange(len(kept))]
    if name == "get":
        assert_same(handle.get(), array)
    elif name == "out":
        assert_same(handle.get(np.empty_like(array)), array)
    elif name == "prefetch":
        handle.prefetch()
    elif name == "prefetch out":
        handle.prefetch(np.empty_like(array))
    elif name == "cancel":
        store.cancel_prefetch(handle)
    elif name == "drop":
        kept.pop(choose.randrange(len(kept)))
    elif name == "captured":
        handle.wait_captured()
    elif name == "flush":
        store.flush()
    elif name == "trim":
        store.trim()
    elif isinstance(store, ZarrStore) and choose.random() < 0.1:
        store.publish()


@pytest.mark.parametrize("kind", MAKE)
def test_sums_agree_after_random_actions_of_several_threads(kind: str, tmp_path: Path) -> None:
    store: BackendStore = MAKE[kind](tmp_path)
    failures: list[BaseException] = []
    threads = [threading.Thread(target=act, args=(store, seed, 150, failures)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    store.flush()
    store._check()
    store.trim()
    store._check()
    assert store.stats().live_handles == 0
    # A prefetch may outlast its handle. A kept store keeps packs after that.
    eventually(lambda: store.packs_nbytes == 0 or kind == "zarr-kept")
    try:
        store.close()
    except StoreError:
        assert kind == "flaky"


def test_the_check_finds_wrong_sums_and_states() -> None:
    setup = Setup()
    handle = setup.put(1)
    setup.store._check()
    table = setup.store._executor._table
    for name in ("inflight_nbytes", "live_handles", "logical_nbytes", "stored_nbytes"):
        value = getattr(table.figures, name)
        setattr(table.figures, name, value + 1)
        with pytest.raises(AssertionError, match=name):
            setup.store._check()
        setattr(table.figures, name, value)
    setup.backend.open.set()
    setup.store.flush()
    setup.store._check()
    handle._entry.busy += 1
    with pytest.raises(AssertionError):
        setup.store._check()
    handle._entry.busy -= 1
    setup.store.close()


def test_an_illegal_transition_raises_in_one_place() -> None:
    table = EntryTable(GateBackend(), 100, queue.SimpleQueue())
    entry = Entry(0, np.zeros(3), {})
    for state in (State.STORED, State.WRITING, State.FAILED):
        with pytest.raises(AssertionError, match=r"array 0 .* cannot go from arriving"):
            table.move(entry, state)
    table.move(entry, State.QUEUED)
