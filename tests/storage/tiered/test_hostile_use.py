"""Random use of a TieredStore by several threads, with delays and errors, against a dict."""

from __future__ import annotations

import contextlib
import errno
import gc
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import BackendStore, BufferPool, Handle, StoreError, TieredStore
from offgrad_storage.testing import eventually

from tests.storage.gate import in_thread
from tests.storage.tiered.dict_backend import DictBackend

Array = NDArray[Any]

THREADS = 4
STEPS = 600
MAX_NBYTES = 2000


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Faults:
    """Delays and errors, at random until they are switched off."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.on = True

    def before_each(self) -> None:
        if self.on and self.chance.random() < 0.3:
            time.sleep(0.0005)
        if self.on and self.chance.random() < 0.05:
            raise OSError(errno.EIO, "injected")

    def allocating(self, empty: Callable[..., Array]) -> Callable[..., Array]:
        def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            if self.on and self.chance.random() < 0.02:
                raise MemoryError("injected")
            return empty(shape, dtype)

        return allocate


@contextlib.contextmanager
def tolerating_faults() -> Iterator[None]:
    try:
        yield
    except (MemoryError, StoreError) as error:
        if "injected" not in str(error):
            raise


class Worker:
    """Does random operations on a store, and compares all bytes."""

    def __init__(self, store: TieredStore, seed: int, shared: list[tuple[Handle, Array]]) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.kept = list(shared)
        self.lost = 0

    def run(self) -> None:
        works = [self.put] * 3 + [self.get] * 3 + [self.prefetch] * 2
        works += [self.cancel, self.plan, self.wait, self.look, self.drop, self.drop_cycle]
        for _ in range(STEPS):
            with tolerating_faults():
                self.chance.choice(works)()
            if self.chance.random() < 0.02:
                gc.collect()

    def any(self) -> tuple[Handle, Array]:
        return self.chance.choice(self.kept)

    def put(self) -> None:
        if len(self.kept) > 15:
            self.drop()
        array = np.frombuffer(self.chance.randbytes(self.chance.randrange(700)), np.uint8).copy()
        handle = self.store.put(array)
        self.kept.append((handle, array))

    def get(self) -> None:
        handle, expected = self.any()
        out = np.empty_like(expected) if self.chance.random() < 0.5 else None
        assert np.array_equal(handle.get(out), expected)

    def prefetch(self) -> None:
        handle, expected = self.any()
        handle.prefetch(np.empty_like(expected) if self.chance.random() < 0.3 else None)

    def cancel(self) -> None:
        self.store.cancel_prefetch(self.any()[0])

    def plan(self) -> None:
        self.store.plan([self.any()[0] for _ in range(self.chance.randrange(20))])

    def wait(self) -> None:
        handle, _ = self.any()
        if self.chance.random() < 0.2:
            self.store.flush()
        handle.wait_captured()

    def look(self) -> None:
        self.store._check()
        handle, _ = self.any()
        assert 0 <= handle.stored_nbytes <= 2 * handle.nbytes
        assert self.store.stats().live_handles > 0

    def drop(self) -> None:
        if len(self.kept) > 4:
            del self.kept[self.chance.randrange(len(self.kept))]

    def drop_cycle(self) -> None:
        """Leave a handle to the garbage collector, in any thread."""
        if len(self.kept) > 4:
            cycle: list[Any] = [self.kept.pop()]
            cycle.append(cycle)

    def finish(self) -> None:
        """All arrays are there, but for those whose write failed without a copy in RAM."""
        for handle, expected in self.kept:
            try:
                handle.check()
            except StoreError:
                self.lost += 1
                continue
            with tolerating_faults():  # in an earlier prefetch
                handle.get()
            assert np.array_equal(handle.get(), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("seed", range(4))
def test_hostile_use_leaves_right_bits_and_nothing_behind(seed: int) -> None:
    threads_before = threading.active_count()
    faults, pool = Faults(seed), BufferPool()
    backend = DictBackend(faults.before_each)
    allocate = faults.allocating(pool.empty)
    lower = BackendStore(backend, threads=seed % 3, inflight_nbytes=1500)
    store = TieredStore(MAX_NBYTES, lower, allocate=allocate, hold=allocate)
    shared: list[tuple[Handle, Array]] = []
    while len(shared) < 3:
        array = np.full(200, len(shared), np.uint8)
        with tolerating_faults():
            shared.append((store.put(array), array))
    workers = [Worker(store, 10 * seed + number, shared) for number in range(THREADS)]
    for thread, results in [in_thread(worker.run) for worker in workers]:
        thread.join()
        assert results == [None]
    faults.on = False
    with tolerating_faults():
        store.flush()
    store._check()
    for worker in workers:
        worker.finish()
        worker.kept.clear()
    assert sum(worker.lost for worker in workers) < THREADS * STEPS / 10
    shared.clear()
    gc.collect()
    store._check()
    stats = store.stats()
    assert (stats.live_handles, stats.logical_nbytes) == (0, 0)
    eventually(lambda: lower.stats().live_handles == 0)
    with tolerating_faults():
        store.close()
    store._check()
    eventually(lambda: pool.in_use_nbytes == 0)
    assert store._tiers.used_nbytes == 0
    eventually(lambda: threading.active_count() == threads_before)
