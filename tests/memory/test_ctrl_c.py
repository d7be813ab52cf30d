"""Ctrl-C at any instant leaves counts, limits and pending writes right, and is never lost."""

import contextlib
import gc
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from offgrad_storage.memory import blocks, buffer_pool
from offgrad_storage.memory import counter as memory_counter

from offgrad import memory
from offgrad.memory import Storage, allocator, limited_counter, registry, storage
from tests.interrupts import interrupt_everywhere
from tests.processes import start_python

MODULES = [allocator, blocks, buffer_pool, limited_counter, memory_counter, registry, storage]


class Write:
    """A write of a storage that is done as soon as it is waited for."""

    def __init__(self) -> None:
        self.captured = False

    def wait_captured(self) -> None:
        self.captured = True


def test_allocations() -> None:
    held = memory.allocated()

    def action() -> None:
        small, large = memory.zeros(10), memory.zeros(100_000)
        storages = [Storage(small), Storage(large), Storage(large[:0])]
        storages += [Storage(np.empty(20_000)), Storage(np.empty(20_000), external=True)]
        assert memory.allocated() == held + small.nbytes + large.nbytes + 160_000

    def check() -> None:
        gc.collect()
        assert memory.allocated() == held
        assert memory.pool.stats().arrays == arrays

    arrays = memory.pool.stats().arrays
    assert interrupt_everywhere(MODULES, action, check) >= 20


def test_limits() -> None:
    def action() -> None:
        with memory.limit(1 << 40), memory.limit(1 << 41):
            memory.zeros(3)

    def check() -> None:
        gc.collect()
        memory.zeros(3)
        assert not memory.allocator.counter.limits
        assert memory.fits(1 << 60) or interrupted_at_the_end()

    def interrupted_at_the_end() -> bool:
        """Return whether the next allocation that does not fit finds that the limit has ended."""
        with pytest.raises(memory.OutOfMemoryError, match="the system has no memory left"):
            memory.zeros(1 << 42, np.uint8)
        return memory.fits(1 << 60)

    assert interrupt_everywhere([*MODULES, contextlib], action, check) >= 20


def test_observers() -> None:
    seen: list[int] = []

    def action() -> None:
        with memory.observe(seen.append):
            memory.zeros(100_000)
            memory.reset_peak()

    def check() -> None:
        gc.collect()
        assert not memory.allocator.counter.observers

    assert interrupt_everywhere([*MODULES, contextlib], action, check) >= 20


def test_in_place_changes_wait_for_all_writes_after_one_that_was_interrupted() -> None:
    shared: Storage
    writes: list[Write] = []

    def action() -> None:
        nonlocal shared
        shared = Storage(memory.zeros(10))
        writes[:] = [Write() for _ in range(3)]
        for write in writes:
            shared.add_pending_write(write)
            registered.append(write)
        successor = shared.make_successor()
        shared.write("test_")
        assert successor.root is shared.root

    def check() -> None:
        version = shared.version
        shared.write("check_")
        assert shared.version == version + 1
        assert all(write.captured for write in registered)
        registered.clear()
        if shared.successor is not None:
            assert all(each().captured for each in shared.successor.pending_writes)  # type: ignore[union-attr]

    registered: list[Write] = []
    shared = Storage(memory.zeros(10))
    assert interrupt_everywhere(MODULES, action, check) >= 20


_LOOP = """
import gc, os, sys, threading
import numpy as np
import offgrad
from offgrad import memory
from offgrad.memory import Storage

gc.set_threshold(5, 2, 2)
held = memory.allocated()
print("ready", flush=True)
count = 0
for line in sys.stdin:
    if line.strip() == "end":
        break
    kept = []
    try:
        print("go", flush=True)
        while True:
            for size in (10, 20_000, 100, 40_000, 16_384):
                array = memory.zeros(size)
                kept.append(Storage(array))
                cycle = [Storage(memory.zeros(size)), memory.zeros(size)]
                cycle.append(cycle)
                kept[-1].add_pending_write(cycle[0])
                kept[-1].make_successor()
                with memory.limit("8GiB"), memory.observe(abs):
                    offgrad.zeros(size) + 1
            del kept[:-3]
            memory.allocated()
    except KeyboardInterrupt:
        count += 1
    array = cycle = kept = None
    gc.collect()
    stats = memory.pool.stats()
    if memory.allocated() != held or stats.arrays or memory.allocator.counter.limits:
        print("wrong", memory.allocated() - held, stats, file=sys.stderr, flush=True)
print("count", count, flush=True)
"""


def run_with_sigints(code: str, number: int) -> tuple[str, str]:
    """Send `number` SIGINTs to a child, each at a random moment of a loop; return its output."""
    child = start_python(
        code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    random = np.random.default_rng(number)
    try:
        assert child.stdout.readline() == "ready\n"
        for _ in range(number):
            child.stdin.write("next\n")
            child.stdin.flush()
            if child.stdout.readline() != "go\n":
                break
            time.sleep(random.uniform(0, 0.003))
            child.send_signal(signal.SIGINT)
        return child.communicate("end\n", timeout=120)
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT")
@pytest.mark.parametrize("number", [100])
def test_real_signals(number: int) -> None:
    output, errors = run_with_sigints(_LOOP, number)
    assert errors == ""
    assert output == f"count {number}\n"
