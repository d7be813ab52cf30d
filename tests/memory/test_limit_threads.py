"""The limit with several threads: an allocation waits for memory that others are freeing."""

import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from offgrad_storage import Entry
from offgrad_storage.interrupts import MaskedLock
from offgrad_storage.testing.helpers import run_in_fork

import offgrad
from offgrad import memory
from offgrad.memory import OutOfMemoryError, limited_counter
from offgrad.policies import Budget
from offgrad.session.saved_array import Array
from tests.interrupts import interrupt_everywhere
from tests.session.backends import SECONDS, MemoryBackend, memory_store
from tests.session.graphs import normal
from tests.session.helpers import alive, everything, in_threads, unary_chain, wait_until

MIB = 1 << 20


class Cache:
    """An owner of memory that has none to free."""

    def __init__(self) -> None:
        self.lock = MaskedLock(reentrant=True)

    def reclaim(self) -> bool:
        """Return whether another thread holds the lock."""
        if not self.lock.acquire(blocking=False):
            return True
        self.lock.release()
        return False

    def held_by_purpose(self) -> dict[str, int]:
        """Return nothing."""
        return {}


class LoggingBackend(MemoryBackend):
    """Tells when a write begins."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Semaphore(0)

    def write(self, entry: Entry, array: Array) -> int:
        """Tell, wait for the gate, and copy."""
        self.started.release()
        return super().write(entry, array)


def mebibytes(n: float) -> Any:
    return offgrad.zeros(int(n * MIB / 4))


def is_waiting() -> bool:
    return bool(memory.allocator.counter._waiting)


def test_an_allocation_waits_while_another_thread_waits_for_a_write_in_a_session() -> None:
    """The session's lock is taken, so only the other thread can finish the write."""
    backend = MemoryBackend()
    with memory_store(backend) as store:
        x = normal(1, 512, 512)
        session = offgrad.offload(Budget(2 * MIB, store))
        backend.gate.clear()
        done = threading.Event()

        def train() -> None:
            with session:
                loss = unary_chain(x, 3)
                del loss
            done.set()

        def allocate() -> None:
            wait_until(is_blocked, "no eviction")
            with memory.limit(memory.allocated() + MIB // 2):
                opened = threading.Timer(0.2, backend.gate.set)
                opened.start()
                mebibytes(1)
                opened.join()

        def is_blocked() -> bool:
            return store.stats().inflight_nbytes > 0

        in_threads(train, allocate)
        assert done.is_set()


def test_an_allocation_waits_for_the_write_of_an_array_that_has_died() -> None:
    """Its handle is gone, but the store holds its memory until the running write ends."""
    backend = LoggingBackend()
    with memory_store(backend) as store:
        session = everything(store)
        x = normal(1, 512, 512)
        base = alive()
        backend.gate.clear()
        with session:
            y = x.tanh()
        assert backend.started.acquire(timeout=SECONDS)
        del y
        opened = threading.Timer(0.2, backend.gate.set)
        opened.start()
        assert memory.allocated() >= base + MIB
        with memory.limit(base + MIB):
            mebibytes(1)
        opened.join()


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.1])
def test_an_allocation_waits_for_a_thread_that_uses_a_session(seconds: float) -> None:
    session = offgrad.offload("pool")
    taken = threading.Event()

    def use() -> None:
        with session.lock:
            held = mebibytes(1)
            taken.set()
            if seconds:
                wait_until(is_waiting, "no thread waits")
                time.sleep(seconds)
            del held

    def allocate() -> None:
        taken.wait(SECONDS)
        mebibytes(1)

    with memory.limit(alive() + MIB + MIB // 2):
        for _ in range(5):
            taken.clear()
            in_threads(use, allocate)


def test_a_hopeless_allocation_fails_while_another_thread_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limited_counter, "_MAX_WAIT_SECONDS", 0.1)
    stop = threading.Event()
    with memory_store(MemoryBackend(delay=0.001), threads=2) as store:
        session = offgrad.offload(Budget(MIB, store))
        x = normal(1, 128, 128)

        def train() -> None:
            while not stop.is_set():
                with session:
                    unary_chain(x, 12)

        def allocate() -> None:
            try:
                for _ in range(3):
                    with pytest.raises(OutOfMemoryError):
                        mebibytes(200)
            finally:
                stop.set()

        with memory.limit(alive() + 100 * MIB):
            in_threads(train, allocate)


@pytest.mark.parametrize("run", range(5))
def test_of_threads_that_wait_for_each_other_one_fails_and_the_rest_get_its_memory(
    run: int,
) -> None:
    """Each holds the lock of one session, and needs the memory of the others."""
    count = 2 + run % 3
    sessions = [offgrad.offload("pool") for _ in range(count)]
    barrier = threading.Barrier(count)
    failed: list[int] = []

    def work(index: int) -> None:
        with sessions[index].lock:
            held = np.zeros(0), memory.zeros(MIB // 4)
            barrier.wait(SECONDS)
            try:
                more = memory.zeros(MIB // 4)
            except OutOfMemoryError:
                failed.append(index)
            else:
                assert more.nbytes == held[1].nbytes

    with memory.limit(alive() + (count + 1) * MIB - 1):
        in_threads(*[lambda index=index: work(index) for index in range(count)])
    assert len(failed) < count
    assert not is_waiting()


def test_a_thread_whose_lock_another_waits_for_fails_at_once() -> None:
    """That other one waits for memory as well, so waiting for it would not end."""
    first, second = offgrad.offload("pool"), offgrad.offload("pool")
    barrier = threading.Barrier(2)
    failed: list[str] = []

    def work(session: Any, name: str) -> None:
        with session.lock:
            barrier.wait(SECONDS)
            try:
                mebibytes(4)
            except OutOfMemoryError:
                failed.append(name)

    with memory.limit(alive() + MIB):
        in_threads(lambda: work(first, "first"), lambda: work(second, "second"))
    assert sorted(failed) == ["first", "second"]


def test_waiting_ends_if_a_thread_never_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_counter, "_MAX_BUSY_SECONDS", 0.1)
    session = offgrad.offload("pool")
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with session.lock:
            taken.set()
            done.wait(SECONDS)

    def allocate() -> None:
        taken.wait(SECONDS)
        try:
            with pytest.raises(OutOfMemoryError):
                mebibytes(4)
        finally:
            done.set()

    with memory.limit(alive() + MIB):
        in_threads(hold, allocate)


def test_ctrl_c_ends_waiting_for_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_counter, "_MAX_BUSY_SECONDS", 0.01)
    session = offgrad.offload("pool")
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with session.lock:
            taken.set()
            done.wait(SECONDS)

    def action() -> None:
        with memory.limit(base + MIB), pytest.raises(OutOfMemoryError):
            mebibytes(4)

    def check() -> None:
        assert not is_waiting()
        assert not memory.allocator.counter._lock.is_owned
        assert not memory.allocator.counter.limits
        assert memory.allocated() == base

    base = alive()
    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(SECONDS)
    try:
        assert interrupt_everywhere([limited_counter], action, check) > 20
    finally:
        done.set()
        holder.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    cache = Cache()  # a fork waits for the locks of sessions
    memory.register_reclaimable(cache)
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.lock:
            taken.set()
            done.wait(SECONDS)

    def wait() -> None:
        taken.wait(SECONDS)
        with pytest.raises(OutOfMemoryError):
            mebibytes(4)

    def use() -> None:
        assert not is_waiting()
        with pytest.raises(OutOfMemoryError):
            mebibytes(4)
        mebibytes(0.25)

    def fork() -> None:
        try:
            wait_until(is_waiting, "no thread waits")
            assert run_in_fork(use) == 0
        finally:
            done.set()

    with memory.limit(alive() + MIB):
        in_threads(hold, wait, fork)
