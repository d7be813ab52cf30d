"""Long random use of each store, against a dict; at the end nothing is left.

OFFGRAD_SOAK sets how many operations each store gets, half of them from one thread and half from
several; the default is 2000.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    AbstractArrayStore,
    BufferPool,
    Handle,
    TieredStore,
)
from offgrad_storage.testing import assert_same, eventually

from tests.storage.faults import ON_DISK, disk_nbytes, make

OPERATIONS = int(os.environ.get("OFFGRAD_SOAK", "2000"))
THREADS = 4
MIB = 1 << 20
DTYPES: list[Any] = ["u1", "f4", ">f8", "c16", "?", "M8[s]", [("a", "<i2"), ("b", ">f4", (2,))]]
# How often each is done, in the long run.
WEIGHTS = {
    "put": 30,
    "get": 25,
    "get into out": 10,
    "prefetch": 10,
    "prefetch into out": 3,
    "cancel prefetch": 4,
    "drop": 13,
    "wait captured": 5,
}

Array = NDArray[Any]


class User:
    """Does random operations on a store that others may use as well."""

    def __init__(
        self, store: AbstractArrayStore, pool: BufferPool, seed: int, max_nbytes: int
    ) -> None:
        self.store = store
        self.pool = pool
        self.random = np.random.default_rng(seed)
        self.max_nbytes = max_nbytes
        self.kept: dict[int, tuple[Handle, Array]] = {}
        self.outs: dict[int, Array] = {}
        self.done: Counter[str] = Counter()
        self.put_nbytes = self.held_nbytes = self.peak_nbytes = 0
        self.count = 0

    def run(self, operations: int) -> None:
        names = list(WEIGHTS)
        shares = np.array(list(WEIGHTS.values()), float)
        for name in self.random.choice(names, operations, p=shares / shares.sum()):
            if not self.kept:
                name = "put"
            elif self.held_nbytes > self.max_nbytes:
                name = "drop"
            getattr(self, str(name).replace(" ", "_"))()
            self.done[str(name)] += 1
        for number in list(self.kept):
            self._check(number, self.kept[number][0].get())
        self.outs.clear()

    def _any(self) -> int:
        return int(self.random.choice(list(self.kept)))

    def _array(self) -> Array:
        """Mostly 1 to 64 KB, at times empty or some MB; at times strided, or from the pool."""
        kind = self.random.random()
        low, high = (
            (0, 1) if kind < 0.02 else (1 << 10, 64 << 10) if kind < 0.96 else (MIB, 4 * MIB)
        )
        nbytes = int(self.random.integers(low, high))
        dtype = np.dtype(DTYPES[self.random.integers(len(DTYPES))])
        if dtype.kind == "b":
            return self.random.integers(0, 2, nbytes).astype(bool)
        items = nbytes // dtype.itemsize
        data = np.frombuffer(self.random.bytes(items * dtype.itemsize), dtype)
        if kind < 0.2:
            return data[::-2]
        if kind < 0.3 and items:
            return data[: items - items % 4].reshape(4, -1).T
        if kind > 0.7:
            pooled = self.pool.empty(data.shape, dtype)
            pooled[...] = data
            return pooled
        return data.copy()

    def put(self) -> None:
        array = self._array()
        handle = self.store.put(array)
        kept = array.copy()
        if self.random.random() < 0.3 and array.flags.writeable:
            handle.wait_captured()
            array[...] = np.zeros((), array.dtype)
        self.kept[self.count] = handle, kept
        self.count += 1
        self.put_nbytes += kept.nbytes
        self.held_nbytes += kept.nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.held_nbytes)

    def _check(self, number: int, found: Array) -> None:
        assert_same(found, self.kept[number][1])

    def get(self) -> None:
        number = self._any()
        found = self.kept[number][0].get()
        out = self.outs.pop(number, None)
        # A TieredStore does not prefetch arrays in RAM.
        served = found is out or isinstance(self.store, TieredStore)
        assert out is None or served, "the array of the prefetch is not what get gave"
        self._check(number, found)

    def get_into_out(self) -> None:
        number = self._any()
        out = np.empty_like(self.kept[number][1])
        assert self.kept[number][0].get(out) is out
        self._check(number, out)
        self.outs.pop(number, None)  # a prefetch may have served this

    def prefetch(self) -> None:
        number = self._any()
        if number not in self.outs:
            self.kept[number][0].prefetch()

    def prefetch_into_out(self) -> None:
        number = self._any()
        if number in self.outs:
            return
        handle, array = self.kept[number]
        self.store.cancel_prefetch(handle)
        self.outs[number] = np.empty_like(array)
        handle.prefetch(self.outs[number])
        if not self.store.reads_ahead:
            del self.outs[number]

    def cancel_prefetch(self) -> None:
        number = self._any()
        self.store.cancel_prefetch(self.kept[number][0])
        self.outs.pop(number, None)

    def wait_captured(self) -> None:
        handle = self.kept[self._any()][0]
        handle.wait_captured()
        assert handle.captured

    def drop(self) -> None:
        number = self._any()
        _, array = self.kept.pop(number)
        self.outs.pop(number, None)
        self.held_nbytes -= array.nbytes


def descriptors() -> set[str]:
    """Open file descriptors, if the system lists them."""
    found = set()
    if sys.platform == "linux":
        for name in os.listdir("/proc/self/fd"):
            try:
                found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
            except OSError:  # the listing itself
                continue
    return found


def running() -> set[threading.Thread]:
    """Threads, without those that zarr starts for the whole process."""
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(("asyncio_", "zarr"))
    }


def soak(kind: str, threads: int, directory: Path, operations: int) -> dict[str, int]:
    with make(kind, directory) as store:  # a process loads, opens and starts some things once
        store.put(np.ones(10_000)).get()
    gc.collect()
    descriptors_before = descriptors()
    threads_before = running()
    pool = BufferPool()
    store = make(kind, directory, inflight_nbytes=8 * MIB, allocate=pool.empty)
    users = [User(store, pool, seed, 48 * MIB // threads) for seed in range(threads)]
    failures: list[BaseException] = []

    def work(user: User) -> None:
        try:
            user.run(operations // threads)
        except BaseException as error:
            failures.append(error)

    if threads == 1:
        users[0].run(operations)
    else:
        workers = [threading.Thread(target=work, args=[user]) for user in users]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if failures:
            raise failures[0]

    stats = store.stats()
    kept = [pair for user in users for pair in user.kept.values()]
    assert stats.live_handles == len(kept)
    assert stats.logical_nbytes == sum(array.nbytes for _, array in kept)
    assert stats.puts == sum(user.count for user in users)
    peak = sum(user.peak_nbytes for user in users)
    late = disk_nbytes(directory)  # files of dead arrays may still wait to be removed
    eventually(lambda: disk_nbytes(directory) <= 3 * peak + 64 * MIB)
    used = disk_nbytes(directory)
    figures = {
        "operations": sum(sum(user.done.values()) for user in users),
        "puts": stats.puts,
        "put_mb": sum(user.put_nbytes for user in users) // 10**6,
        "peak_live_mb": peak // 10**6,
        "disk_at_end_mb": late // 10**6,
        "disk_soon_after_mb": used // 10**6,
    }

    kept.clear()
    for user in users:
        user.kept.clear()
    # A pack whose arrays are all dead holds its memory until a write that has begun ends.
    eventually(lambda: not (store.stats().stored_nbytes or store.stats().inflight_nbytes))
    stats = store.stats()
    assert (stats.live_handles, stats.logical_nbytes) == (0, 0)
    eventually(lambda: pool.in_use_nbytes == 0)
    store.close()
    assert store.stats().stored_nbytes == 0
    assert not list(directory.iterdir()), "a file was left"
    eventually(lambda: running() <= threads_before)
    eventually(lambda: descriptors() <= descriptors_before)
    return figures


@pytest.mark.timeout(max(300, OPERATIONS // 20))
@pytest.mark.parametrize("threads", [1, THREADS])
@pytest.mark.parametrize("kind", ["pool", *ON_DISK, "disk-lz4", "tiered"])
def test_random_use_leaves_nothing(kind: str, threads: int, tmp_path: Path) -> None:
    print(soak(kind, threads, tmp_path, OPERATIONS // 2))  # to be seen with pytest -rP
