"""Waiting without the GIL: ends when a thread counts, and otherwise after a while."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels import _parallel, _waiting
from offgrad.kernels._parallel import BLOCK, parallel_for
from offgrad.kernels._shared_ranges import Cells, post
from offgrad.kernels._waiting import Counter, has_counted, wait_for_work


@pytest.fixture(autouse=True)
def _compiled() -> None:
    pytest.importorskip("numba")
    if kernels.backend() != "numba" or os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("threads wait in a compiled loop")
    _waiting.prepare(Cells())


def test_waiting_ends_without_a_count() -> None:
    assert not has_counted(Counter(), 1)


def test_waiting_sees_a_count_of_before() -> None:
    counter = Counter()
    counter.count()
    assert has_counted(counter, 1)
    assert not has_counted(counter, 2)


def test_a_count_of_another_thread_ends_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waiting, "SPIN_MICROSECONDS", 60_000_000)
    counter = Counter()
    timer = threading.Timer(0.05, counter.count)
    timer.start()
    assert has_counted(counter, 1), "waiting releases the GIL, or the count never comes"
    timer.join()


def test_counts_of_many_threads_without_the_gil_all_arrive() -> None:
    cells, left = Cells(), Counter()

    def wait_often() -> None:
        for _ in range(500):
            wait_for_work(cells, 0, left)

    threads = [threading.Thread(target=wait_often) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert left.value == 2000


@pytest.mark.parametrize("microseconds", [0, 1, 100])
def test_jobs_end_whether_threads_wait_or_sleep(
    microseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waiting, "SPIN_MICROSECONDS", microseconds)
    kernels.set_num_threads(3)
    seen = np.zeros(20, np.int64)

    def body(start: int, stop: int) -> None:
        seen[start:stop] += 1

    for _ in range(300):
        parallel_for(body, 20, BLOCK)
    assert (seen == 300).all()


def test_the_caller_waits_for_helpers_that_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waiting, "SPIN_MICROSECONDS", 1_000_000)
    waits: list[bool] = []

    def waited(counter: Counter, target: int) -> bool:
        waits.append(has_counted(counter, target))
        return waits[-1]

    monkeypatch.setattr(_parallel, "has_counted", waited)
    kernels.set_num_threads(2)
    meeting = threading.Barrier(2, timeout=30)

    def body(start: int, stop: int) -> None:
        meeting.wait()
        if threading.current_thread().name.startswith(_parallel.THREAD_NAME):
            time.sleep(0.2)

    parallel_for(body, 2, BLOCK)
    assert waits == [True]


def test_threads_wait_in_loops_where_numba_compiles() -> None:
    code = """
from offgrad.kernels._shared_ranges import Cells
from offgrad.kernels._waiting import SPIN_MICROSECONDS, may_prepare
print(may_prepare(), SPIN_MICROSECONDS)
"""
    for policy, begin, expected in (
        ("passive", "import numba", "True 0"),
        ("PASSIVE", "import numba", "True 0"),
        ("active", "import numba", "True 2000"),
        ("active", "import numba; numba.config.DISABLE_JIT = 1", "False 2000"),
        ("active", "pass", "False 2000"),
    ):
        run = subprocess.run(
            [sys.executable, "-c", f"{begin}\n{code}"],
            env={**os.environ, "OMP_WAIT_POLICY": policy},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert run.stdout.strip() == expected, policy


def test_a_posted_job_wakes_a_thread_that_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waiting, "SPIN_MICROSECONDS", 0)
    cells = Cells()
    cells.prepare()
    posted = cells.posted
    threads = [
        threading.Thread(target=wait_for_work, args=(cells, posted + 1, None)) for _ in range(7)
    ]
    for each in threads:
        each.start()
    time.sleep(0.05)
    assert all(each.is_alive() for each in threads)
    post(cells.address, 7)
    for each in threads:
        each.join(30)
        assert not each.is_alive()


def test_a_fork_soon_after_the_first_job_neither_waits_nor_hangs() -> None:
    code = """
import os, sys, time, numba, offgrad
offgrad.set_num_threads(2)
offgrad.ones(1_000_000) + 1
began = time.perf_counter()
child = os.fork()
if not child:
    offgrad.nn.functional.gelu(offgrad.randn(20_000))
    os._exit(0)
seconds = time.perf_counter() - began
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.01)
else:
    os.kill(child, 9)
print(seconds < 5, done == child and status == 0)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "True"]


def test_a_job_ends_where_numba_compiles_nothing() -> None:
    code = """
import numpy as np, numba, offgrad
from offgrad.kernels._parallel import BLOCK, parallel_for
offgrad.set_num_threads(2)
seen = np.zeros(8, int)
def body(start, stop):
    seen[start:stop] += 1
for _ in range(3):
    parallel_for(body, 8, BLOCK)
print(seen.tolist())
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.strip() == str([3] * 8)
    assert run.stderr == ""
