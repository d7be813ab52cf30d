"""SIGINT at the lines and opcodes of a store's operations: the store works on, and nothing is left.

By default a few points of each operation, chosen at random; OFFGRAD_INTERRUPTS sets how many.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import offgrad_storage
import pytest
from offgrad_storage import (
    BackendStore,
    BufferPool,
    DiskStore,
    Handle,
    PoolStore,
    ZarrStore,
    interrupts,
)
from offgrad_storage.memory import counter
from offgrad_storage.testing import assert_same, eventually, sample

from tests.interrupts import Code, Interrupt, PointKind, count_points

POINTS = int(os.environ.get("OFFGRAD_INTERRUPTS", "8"))
CODE = Code(offgrad_storage, but=[counter])
MIB = 1 << 20

MAKE: dict[str, Callable[..., BackendStore]] = {
    "disk": lambda path, **options: DiskStore(path, inflight_nbytes=4 * MIB, **options),
    "disk-sync": lambda path, **options: DiskStore(path, threads=0, **options),
    "disk-codec": lambda path, **options: DiskStore(path, codec="zstd", **options),
    "zarr": lambda path, **options: ZarrStore(path, inflight_nbytes=4 * MIB, **options),
    "zarr-kept": lambda path, **options: ZarrStore(path, keep=True, **options),
    "pool": lambda path, **options: PoolStore(**options),
    "pool-codec": lambda path, **options: PoolStore(codec="zstd", **options),
}


def io_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if " I/O " in thread.name}


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threads = io_threads()
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert interrupts._state.depth == 0
    assert not interrupts._state.enclosing
    signal.signal(signal.SIGINT, before)
    eventually(lambda: io_threads() <= threads)


class User:
    """Handles of arrays in several states, made before each interrupted action."""

    def __init__(self, store: BackendStore) -> None:
        self.store = store
        self.large, self.small = sample("f4", (300_000,)), sample("f4", (1000,), 1)
        self.handles: list[tuple[Handle, Any]] = []
        for array in (self.large, self.small):
            self.handles.append((store.put(array), array))

    def put(self) -> None:
        self.handles.append((self.store.put(self.large), self.large))
        self.handles.append((self.store.put(self.small), self.small))

    def seal(self) -> None:
        array = sample("f4", (30_000,))
        for _ in range(4):
            self.handles.append((self.store.put(array), array))

    def get(self) -> None:
        for handle, array in self.handles:
            assert_same(handle.get(), array)

    def get_stored(self) -> None:
        self.store.flush()
        self.get()

    def get_out(self) -> None:
        for handle, array in self.handles:
            out = np.empty((2, *array.shape), array.dtype)[0]
            assert handle.get(out) is out
            assert_same(out, array)
            strided = np.empty((array.size, 2), array.dtype)[:, 0]
            assert_same(handle.get(strided), array)

    def prefetch(self) -> None:
        self.store.flush()
        for handle, array in self.handles:
            handle.prefetch()
            assert_same(handle.get(), array)
            handle.prefetch(np.empty_like(array))
            handle.prefetch(np.empty_like(array))
            self.store.cancel_prefetch(handle)

    def wait_captured(self) -> None:
        for handle, _ in self.handles:
            handle.wait_captured()

    def die(self) -> None:
        self.handles[0][0].prefetch()
        while self.handles:
            self.handles.pop()
            self.store.stats()

    def flush(self) -> None:
        self.store.flush()

    def trim(self) -> None:
        self.store.trim()
        self.store.stats()

    def publish(self) -> None:
        if isinstance(self.store, ZarrStore):
            self.store.publish()


ACTIONS = [name for name in vars(User) if not name.startswith("_")]


def sample_points(action: Callable[[], object], points: PointKind) -> list[int]:
    """Return the numbers of points of an action, chosen at random: it repeats itself evenly."""
    count = count_points(action, CODE, points)
    return sorted(random.Random(0).sample(range(1, count + 1), min(count, POINTS)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("points", ["lines", "opcodes"])
@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("kind", MAKE)
def test_an_interrupted_store_works_on(
    kind: str, name: str, points: PointKind, tmp_path: Path
) -> None:
    if name == "publish" and not kind.startswith("zarr"):
        pytest.skip("only a ZarrStore publishes")
    pool = BufferPool()
    store = MAKE[kind](tmp_path, allocate=pool.empty)
    getattr(User(store), name)()  # the first run comes to more points
    for point in sample_points(getattr(User(store), name), points):
        user = User(store)
        Interrupt(point, CODE, points).run(getattr(user, name))
        store._check()
        user.get()
        del user.handles[1:]
        user.get_out()
        user.put()
        store.flush()
        user.get()
        user.handles.clear()
        store._check()
        stats = store.stats()
        assert (stats.live_handles, stats.logical_nbytes, stats.inflight_nbytes) == (0, 0, 0)
        if kind != "zarr-kept":
            assert store.stats().stored_nbytes == 0
    store.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("points", ["lines", "opcodes"])
@pytest.mark.parametrize("kind", MAKE)
def test_an_interrupted_close_can_be_continued(
    kind: str, points: PointKind, tmp_path: Path
) -> None:
    store = MAKE[kind](tmp_path)
    user = User(store)
    chosen = sample_points(store.close, points)
    for point in chosen[:: max(1, len(chosen) // 20)]:
        store = MAKE[kind](tmp_path)
        user = User(store)
        Interrupt(point, CODE, points).run(store.close)
        store.close()
        del user
        with MAKE[kind](tmp_path) as fresh:
            User(fresh).get()
    if kind != "zarr-kept":
        assert not list(tmp_path.iterdir())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", MAKE)
def test_an_interrupted_store_is_made_or_leaves_nothing(kind: str, tmp_path: Path) -> None:
    def make() -> None:
        MAKE[kind](tmp_path).close()

    chosen = sample_points(make, "lines")
    for point in chosen[:: max(1, len(chosen) // 20)]:
        Interrupt(point, CODE, "lines").run(make)
        with MAKE[kind](tmp_path) as fresh:
            User(fresh).get()
