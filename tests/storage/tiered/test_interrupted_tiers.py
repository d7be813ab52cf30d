"""TieredStore under Ctrl-C: at every line, and while it waits."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import offgrad_storage
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    AbstractArrayStore,
    BackendStore,
    BufferPool,
    DiskStore,
    Handle,
    PoolStore,
    StoreError,
    TieredStore,
    memory,
    tiered,
)
from offgrad_storage.testing import eventually

from tests.interrupts import Code, Interrupt, PointKind, Points
from tests.storage.gate import Setup, in_thread
from tests.storage.tiered.dict_backend import DictBackend
from tests.storage.tiered.waiting import MAIN, waits

Array = NDArray[Any]
Place = tuple[str, str, int]

CODE = {
    "lines": Code(tiered),
    # Buffer pools rely on Python handling signals at calls and jumps back only.
    "opcodes": Code(offgrad_storage, but=[memory]),
}
# OFFGRAD_STRESS=1 tries all lines.
LINE_STEP, OPCODE_STEP = (1, 97) if os.environ.get("OFFGRAD_STRESS") else (7, 397)
KINDS = ["pool", "disk", "slow", "failing"]


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def below(kind: str, directory: Path) -> AbstractArrayStore:
    if kind == "pool":
        return PoolStore()
    if kind == "disk":
        return DiskStore(directory)
    if kind == "slow":
        return BackendStore(DictBackend(lambda: time.sleep(0.0005)), threads=2, inflight_nbytes=250)
    calls = itertools.count(1)

    def fail_each_third() -> None:
        if not next(calls) % 3:
            raise OSError(errno.EIO, "injected")

    return BackendStore(DictBackend(before_write=fail_each_third), threads=1)


class World:
    """A store with room for three arrays of 100 bytes, and what it must hold."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.pool = BufferPool()
        self.store = TieredStore(
            300, below(kind, directory), allocate=self.pool.empty, hold=self.pool.empty
        )
        self.kept: dict[int, tuple[Handle, Array]] = {}
        self.is_closing = False

    def attempt(self, work: Callable[[], object]) -> None:
        if self.kind != "failing":
            work()
            return
        with contextlib.suppress(StoreError):
            work()

    def put(self, key: int, nbytes: int = 100) -> None:
        array = np.full(nbytes, key, np.uint8)

        def work() -> None:
            self.kept[key] = self.store.put(array), array

        self.attempt(work)

    def each(self, keys: list[int], work: Callable[[Handle], object]) -> None:
        for key in keys:
            if key in self.kept:
                self.attempt(functools.partial(work, self.kept[key][0]))

    def plan(self, keys: list[int]) -> None:
        self.store.plan([self.kept[key][0] for key in keys if key in self.kept])

    def use(self) -> None:
        """All operations, on all ways through them."""
        for key in range(3):
            self.put(key)
        self.plan([2, 1, 0])
        self.put(3)
        self.put(4, 400)
        self.put(5)
        self.each([0, 1, 4], lambda handle: handle.get())
        self.plan([5, 4, 3, 2, 1, 0])
        self.each([4, 3, 2, 1, 0], lambda handle: handle.prefetch())
        self.each([0], lambda handle: handle.prefetch(np.empty(100, np.uint8)))
        self.each([0], lambda handle: handle.prefetch(np.empty(100, np.uint8)))
        self.each([0, 1], lambda handle: handle.get())
        self.each([2, 3], lambda handle: handle.get(np.empty(100, np.uint8)))
        self.each([1, 2, 3], lambda handle: handle.prefetch())
        self.each([1, 2, 3], self.store.cancel_prefetch)
        self.each([1, 2, 3], lambda handle: handle.prefetch())
        self.each([4], lambda handle: handle.wait_captured())
        self.each([4, 5], lambda handle: handle.check())
        self.each([4, 5], lambda handle: (handle.captured, handle.stored_nbytes))
        self.kept.pop(1, None)
        self.plan([3, 0, 2, 5])
        for key in (6, 7):
            self.put(key)
            self.each([key], lambda handle: handle.prefetch())
        self.kept.pop(6, None)
        self.store.flush()
        self.store.stats()
        self.is_closing = True
        self.attempt(self.store.close)

    def assert_works(self) -> None:
        """The store works with the right bits, and leaves nothing behind."""
        self.store._check()
        if not self.is_closing:
            self.put(100)
            self.put(101)
            for handle, expected in self.kept.values():
                self.attempt(functools.partial(self.assert_same, handle, expected))
            assert self.kind == "failing" or {100, 101} <= self.kept.keys()
            del handle
            self.store.flush()
            self.store._check()
            self.kept.clear()
            gc.collect()
            self.store._check()
            assert self.store.stats().live_handles == 0
            assert not self.store._transfers.ram.moving
            eventually(lambda: self.store.below[0].stats().live_handles == 0)
        self.attempt(self.store.close)
        self.store.close()
        self.store._check()
        self.kept.clear()
        eventually(lambda: self.pool.in_use_nbytes == 0)
        assert self.store._transfers.used_nbytes == 0

    def assert_same(self, handle: Handle, expected: Array) -> None:
        assert np.array_equal(handle.get(), expected)
        handle.prefetch()
        assert np.array_equal(handle.get(np.empty_like(expected)), expected)


def place_of(frame: FrameType, points: PointKind) -> Place:
    code = frame.f_code
    at = frame.f_lasti if points == "opcodes" else frame.f_lineno
    return code.co_filename, code.co_name, at


def visited(kind: str, directory: Path, points: PointKind) -> Counter[Place]:
    """How often a run of all operations visits each place."""
    counts: Counter[Place] = Counter()
    world = World(kind, directory)
    with Points(lambda frame: counts.update([place_of(frame, points)]), CODE[points], points):
        world.use()
    world.assert_works()
    return counts


def interrupt_at(
    place: Place, occurrence: int, kind: str, directory: Path, points: PointKind
) -> bool:
    """Send SIGINT at the place; return whether the run came there."""
    visits = itertools.count(1)

    def is_due(frame: FrameType) -> bool:
        return place_of(frame, points) == place and next(visits) == occurrence

    world = World(kind, directory)
    interrupt = Interrupt(is_due, CODE[points], points)
    interrupt.run(world.use)
    assert not interrupt.is_dropped
    world.assert_works()
    return bool(interrupt.where)


def sweep(kind: str, directory: Path, points: PointKind, step: int) -> int:
    """Send SIGINT at each `step`-th place, in its first and last visit; return how often."""
    threads = threading.active_count()
    counts = visited(kind, directory, points)
    todo = [(place, each) for place in sorted(counts) for each in {1, counts[place]}]
    interrupts = 0
    for place, occurrence in todo[::step]:
        try:
            interrupts += interrupt_at(place, occurrence, kind, directory, points)
        except BaseException as error:
            error.add_note(f"after SIGINT at {place}, visit {occurrence}")
            raise
    World(kind, directory).use()
    eventually(lambda: threading.active_count() == threads)
    return interrupts


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sigint_at_lines_leaves_a_store_that_works(kind: str, tmp_path: Path) -> None:
    assert sweep(kind, tmp_path, "lines", LINE_STEP) > 300 // LINE_STEP


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sigint_at_sampled_opcodes_leaves_a_store_that_works(kind: str, tmp_path: Path) -> None:
    assert sweep(kind, tmp_path, "opcodes", OPCODE_STEP) > 3000 // OPCODE_STEP


# ---- while it waits


class Gated:
    """A TieredStore with room for three arrays of 100 bytes, over a store behind a gate."""

    def __init__(self) -> None:
        self.gate = Setup()
        self.pool = BufferPool()
        self.store = TieredStore(
            300, self.gate.store, allocate=self.pool.empty, hold=self.pool.empty
        )
        self.handles: list[Handle] = []

    def put(self, nbytes: int = 100) -> None:
        array = np.full(nbytes, len(self.handles), np.uint8)
        self.handles.append(self.store.put(array))

    def put_below(self, nbytes: int) -> Handle:
        """An array below alone, and written."""
        self.gate.backend.permits.release()
        others = [self.store.put(np.empty(100, np.uint8)) for _ in range(3)]
        self.store.plan(others)
        self.put(nbytes)
        self.handles[-1].wait_captured()
        return self.handles[-1]

    def open(self) -> None:
        self.gate.backend.open.set()

    def assert_works(self) -> None:
        self.store._check()
        assert not self.store._transfers.ram.moving
        self.open()
        self.put()
        self.store.flush()
        for value, handle in enumerate(self.handles):
            handle.prefetch()
            found = handle.get()
            assert (found == value).all()
            del handle, found
        self.store._check()
        self.handles.clear()
        self.store.close()
        self.store._check()
        assert self.pool.in_use_nbytes == self.store._transfers.used_nbytes == 0


def interrupted(work: Callable[[], object], when: Callable[[], object] = waits) -> None:
    """Do ``work``, with SIGINT as soon as it waits; it raises KeyboardInterrupt."""

    def send() -> None:
        eventually(when)
        signal.pthread_kill(MAIN, signal.SIGINT)

    thread, results = in_thread(send)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        thread.join()
        assert results == [None]


def test_an_interrupted_wait_for_a_write_leaves_a_store_that_works() -> None:
    gated = Gated()
    for _ in range(3):
        gated.put()
    interrupted(gated.put)
    gated.assert_works()


def test_an_interrupted_put_below_leaves_its_array_in_ram() -> None:
    gated = Gated()
    blocker = gated.gate.store.put(np.zeros(950, np.uint8))  # of 1000 bytes in flight
    for _ in range(3):
        gated.put()
    interrupted(gated.put)
    assert [handle._entry.tier_state.name for handle in gated.handles] == ["ram"] * 3  # type: ignore[attr-defined]
    gated.assert_works()
    del blocker


def test_an_interrupted_flush_leaves_a_store_that_works() -> None:
    gated = Gated()
    gated.put(400)
    interrupted(gated.store.flush)
    gated.assert_works()


def test_an_interrupted_wait_until_captured_leaves_a_store_that_works() -> None:
    gated = Gated()
    gated.put(400)
    interrupted(gated.handles[0].wait_captured)
    gated.assert_works()


@pytest.mark.parametrize("into", [False, True])
def test_an_interrupted_get_of_a_prefetched_array_leaves_it_to_the_next(into: bool) -> None:
    gated = Gated()
    handle = gated.put_below(200)
    handle.prefetch()
    gated.gate.started("read 0")
    out = np.empty(200, np.uint8) if into else None
    interrupted(lambda: handle.get(out))
    assert gated.pool.in_use_nbytes == gated.store._transfers.used_nbytes == 200
    gated.store._check()
    gated.open()
    array = handle.get()
    assert gated.pool.owns(array)  # the one that was prefetched
    assert (array == 0).all()
    assert gated.store.stats().gets == gated.store.stats().prefetch_hits == 1
    del array
    gated.assert_works()


def test_an_interrupted_cancelling_of_a_prefetch_is_done_by_the_next() -> None:
    gated = Gated()
    handle = gated.put_below(200)
    target = np.empty(200, np.uint8)
    handle.prefetch(target)
    gated.gate.started("read 0")
    interrupted(lambda: gated.store.cancel_prefetch(handle))
    gated.store._check()
    cancelling, results = in_thread(lambda: gated.store.cancel_prefetch(handle))
    eventually(lambda: waits(cancelling.ident or 0))
    gated.open()
    cancelling.join()
    assert results == [None]
    target[:] = 77  # free now
    gated.assert_works()
    assert (target == 77).all()


def test_an_interrupted_wait_for_the_read_of_another_thread_leaves_it_alone() -> None:
    gated = Gated()
    handle = gated.put_below(200)
    handle.prefetch()
    gated.gate.started("read 0")
    getting, results = in_thread(handle.get)
    eventually(lambda: waits(getting.ident or 0))
    interrupted(lambda: handle.get(np.empty(200, np.uint8)))
    interrupted(handle.prefetch)
    interrupted(lambda: gated.store.cancel_prefetch(handle))
    gated.store._check()
    gated.open()
    getting.join()
    assert (results.pop() == 0).all()  # type: ignore[attr-defined]
    gated.assert_works()


def test_an_interrupted_close_goes_on_in_the_next() -> None:
    gated = Gated()
    for _ in range(3):
        gated.put()
    writing, results = in_thread(gated.put)
    gated.gate.started("write 0")
    eventually(lambda: waits(writing.ident or 0))
    interrupted(gated.store.close, lambda: gated.store._transfers.closed)
    gated.open()
    gated.store.close()
    writing.join()
    assert isinstance(results[0], StoreError)
    gated.store._check()
    assert gated.pool.in_use_nbytes == 0
