"""Loops whose ranges threads share without the GIL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels import _atomics, _range_driver
from offgrad.kernels._atomics import fetch_add, load
from offgrad.kernels._jit import jit
from offgrad.kernels._parallel import BLOCK, in_ranges, num_workers, parallel_for


@pytest.fixture(autouse=True)
def _compiled() -> None:
    pytest.importorskip("numba")
    if kernels.backend() != "numba" or os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("threads share compiled loops")
    _atomics.register()
    kernels.set_num_threads(4)


@jit
def _count_loop(counts: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        counts[i] += 1


@jit
def _workers_loop(workers: Any, start: int, stop: int, worker: int) -> None:
    for i in range(start, stop):
        workers[i] = worker


@jit
def _meet_loop(arrived: Any, wanted: int, rounds: int, start: int, stop: int) -> None:
    fetch_add(arrived.ctypes.data, 1)
    done = 0
    while done < rounds and load(arrived.ctypes.data) < wanted:
        done += 1


@jit
def _failing_loop(limit: int, sizes: Any, start: int, stop: int, worker: int) -> None:
    for i in range(start, stop):
        if sizes[i] > limit and worker >= sizes[i] - limit - 1:
            raise ValueError("too large")


@pytest.mark.parametrize("threads", [1, 2, 4, 16])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 131, 100_000])
def test_each_item_is_computed_once(threads: int, merge: bool, count: int) -> None:
    kernels.set_num_threads(threads)
    counts = np.zeros(count, np.int64)
    for _ in range(50):
        parallel_for(partial(_count_loop, counts), count, BLOCK if count < 1000 else 5, merge)
    assert (counts == 50).all()


def test_given_ranges() -> None:
    counts = np.zeros(20, np.int64)
    in_ranges(partial(_count_loop, counts), [0, 3, 4, 20])
    in_ranges(partial(_count_loop, counts), [0, 20])
    in_ranges(partial(_count_loop, counts), [0])
    assert (counts == 2).all()


def test_all_threads_take_part_again_and_again() -> None:
    """Each range waits for the others, so that each thread computes one."""
    for pause in (0, 0.0005, 0.002, 0.01) * 5:
        time.sleep(pause)  # some wait in a loop for 0.1 ms, and others sleep
        arrived = np.zeros(1, np.int64)
        in_ranges(partial(_meet_loop, arrived, 4, 10**9), range(5))
        assert arrived[0] == 4


def test_all_threads_take_part_after_jobs_that_need_the_gil() -> None:
    meeting = threading.Barrier(4, timeout=60)

    def meet(start: int, stop: int) -> None:
        meeting.wait()

    for pause in (0, 0.001, 0.01) * 5:
        time.sleep(pause)
        parallel_for(meet, 4, BLOCK)
        arrived = np.zeros(1, np.int64)
        in_ranges(partial(_meet_loop, arrived, 4, 10**9), range(5))


def test_threads_of_a_call_have_numbers_of_their_own() -> None:
    assert num_workers() == 4
    workers = np.full(1000, -1, np.int64)
    for _ in range(100):
        in_ranges(partial(_workers_loop, workers), range(1001))
        assert 0 <= workers.min() <= workers.max() < 4
    in_ranges(partial(_workers_loop, workers), [0, 1000])
    assert (workers == 0).all()


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_of_the_loop_is_raised(threads: int) -> None:
    kernels.set_num_threads(threads)
    sizes = np.zeros(1000, np.int64)
    sizes[567] = 1
    for _ in range(50):
        with pytest.raises((ValueError, MemoryError), match=r"too large|on another thread"):
            in_ranges(partial(_failing_loop, 0, sizes), range(1001))
    in_ranges(partial(_failing_loop, 1, sizes), range(1001))


def test_many_callers_at_once() -> None:
    """More than there are slots."""
    kernels.set_num_threads(3)

    def often(_: int) -> np.ndarray[Any, Any]:
        counts = np.zeros(50_000, np.int64)
        for _ in range(100):
            parallel_for(partial(_count_loop, counts), counts.size, 7, merge=True)
        return counts

    with ThreadPoolExecutor(20) as pool:
        for counts in pool.map(often, range(40)):
            assert (counts == 100).all()


def test_a_fork_while_other_threads_compute() -> None:
    all_counts, ends = np.zeros((3, 500_000), np.int64), threading.Event()

    def compute(counts: np.ndarray[Any, Any]) -> None:
        while not ends.is_set():
            parallel_for(partial(_count_loop, counts), counts.size, 3, merge=True)

    threads = [threading.Thread(target=compute, args=(each,)) for each in all_counts]
    for each in threads:
        each.start()
    try:
        for _ in range(20):
            child = os.fork()
            if not child:
                own = np.zeros(100_000, np.int64)
                parallel_for(partial(_count_loop, own), own.size, 5, merge=True)
                os._exit(0 if (own == 1).all() else 1)
            deadline = time.monotonic() + 60
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    pytest.fail("the child hangs")
                time.sleep(0.001)
    finally:
        ends.set()
        for each in threads:
            each.join()
    assert (all_counts == all_counts[:, :1]).all()


@pytest.mark.parametrize("policy", ["passive", "active"])
def test_all_threads_take_part_whether_they_wait_or_sleep(policy: str) -> None:
    code = """
import numpy as np, time
from functools import partial
import offgrad
from offgrad import kernels
from offgrad.kernels._parallel import BLOCK, in_ranges, parallel_for
from tests.kernels.test_shared_ranges import _meet_loop
from offgrad.kernels import _atomics
_atomics.register()
kernels.set_num_threads(6)
# Before Numba is imported, threads sleep in Python.
parallel_for(lambda start, stop: None, 6, BLOCK)
for pause in (0, 0.0005, 0.004) * 10:
    time.sleep(pause)
    arrived = np.zeros(1, np.int64)
    kernels.backend()
    in_ranges(partial(_meet_loop, arrived, 6, 10**9), range(7))
print(int(arrived[0]))
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_WAIT_POLICY": policy},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert run.stdout.strip() == "6"


def test_the_number_of_threads_may_change_during_a_call() -> None:
    """A call has scratch memory for the threads that it counted."""
    code = """
import threading
import numpy as np
import offgrad
from offgrad.nn import functional as F
offgrad.manual_seed(0)
x, w = offgrad.randn(4, 32, 28, 28), offgrad.randn(32, 32, 3, 3)
a = offgrad.randn(300, 300)
q = offgrad.randn(2, 4, 64, 32)
def compute():
    return [F.conv2d(x, w, padding=1), F.conv2d(x, w, stride=2), a @ a,
            F.scaled_dot_product_attention(q, q, q), offgrad.cumsum(offgrad.cat([x] * 2), 0)]
expected = compute()
ends = threading.Event()
def change():
    count = 1
    while not ends.is_set():
        offgrad.set_num_threads(count)
        count = 9 - count
thread = threading.Thread(target=change)
thread.start()
for _ in range(150):
    for result, each in zip(compute(), expected):
        assert np.array_equal(result.numpy(), each.numpy())
ends.set()
thread.join()
print("same")
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.stdout.strip() == "same", run.stderr


def test_first_calls_at_once_in_forked_children() -> None:
    """Only one of them makes the mutex with which threads sleep."""
    for _ in range(25):
        child = os.fork()
        if not child:
            results = np.zeros((6, 100_000), np.int64)

            def compute(own: np.ndarray[Any, Any]) -> None:
                for _ in range(20):
                    parallel_for(partial(_count_loop, own), own.size, 5, merge=True)

            threads = [threading.Thread(target=compute, args=(each,)) for each in results]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            os._exit(0 if (results == 20).all() else 1)
        deadline = time.monotonic() + 60
        while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                pytest.fail("the child hangs")
            time.sleep(0.001)
        assert done == (child, 0)


def test_two_elements_fill_an_array() -> None:
    out = np.empty(300_000, np.float32)
    one, two = np.ones(1, np.float32), np.full(1, 2, np.float32)
    kernels.elementwise(np.add, out, one, two)
    assert (out == 3).all()
    kernels.elementwise(np.subtract, out, two, np.arange(300_000, dtype=np.float32))
    assert (out == 2 - np.arange(300_000, dtype=np.float32)).all()


def test_an_estimate_prepares_no_waiting() -> None:
    """Loops do nothing in a thread with a meter, not even wait."""
    code = """
import offgrad
offgrad.set_num_threads(1)
from offgrad import nn
from offgrad.kernels import _waiting
model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2))
offgrad.estimate(model, offgrad.randn(4, 16, 32, 32))
print(_waiting._rounds_per_microsecond() < 500)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.strip() == "True"


def test_a_loop_counts_no_references() -> None:
    """The arguments' parts that a driver drops are the counts of arrays, in tuples as well."""
    from numba import types
    from numba.core.registry import cpu_target

    context = cpu_target.target_context
    vector, matrix = (types.Array(types.float32, ndim, "C") for ndim in (1, 2))
    pair = types.Tuple((types.int64, vector))
    kinds = (types.UniTuple(types.int64, 3), vector, types.none, pair, matrix, types.int64)
    counts = _range_driver._counts(context, kinds)

    # An array has a count, its owner, two sizes, its data, and as many sizes and strides.
    assert counts == [3, 3 + 7 + 1 + 1, 3 + 7 + 1 + 1 + 7]
    parts = context.call_conv.get_function_type(types.none, kinds).args[_range_driver._FIRST :]
    assert {str(parts[each]) for each in counts} == {"i8*"}
