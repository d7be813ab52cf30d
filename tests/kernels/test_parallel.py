from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import kernels
from offgrad.kernels import _parallel
from offgrad.kernels._arithmetic_rows import broadcasting_loop
from offgrad.kernels._blas import _blas_libraries
from offgrad.kernels._parallel import (
    BLOCK,
    THREAD_NAME,
    block_items,
    parallel_for,
)

Digests = Callable[[], dict[str, str]]


@pytest.fixture(autouse=True)
def _several_threads() -> None:
    kernels.set_num_threads(4)


def _ranges(count: int, cost: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    parallel_for(lambda start, stop: ranges.append((start, stop)), count, cost)
    return sorted(ranges)


@pytest.mark.parametrize("cost", [0, 1, 1000, BLOCK - 1, BLOCK, 10 * BLOCK])
@pytest.mark.parametrize("count", [0, 1, 2, 131, 1000])
def test_ranges_cover_each_item_once_on_any_number_of_threads(count: int, cost: int) -> None:
    ranges = _ranges(count, cost)
    items = [item for start, stop in ranges for item in range(start, stop)]
    assert items == list(range(count))
    assert all(stop - start <= block_items(cost) for start, stop in ranges)
    for threads in (1, 2, 7):
        kernels.set_num_threads(threads)
        assert _ranges(count, cost) == ranges


@pytest.mark.parametrize("threads", [1, 2, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 131, 1000])
def test_merged_ranges_cover_each_item_once_and_begin_at_whole_steps(
    count: int, threads: int
) -> None:
    kernels.set_num_threads(threads)
    ranges: list[tuple[int, int]] = []
    cost = BLOCK // 3
    parallel_for(lambda start, stop: ranges.append((start, stop)), count, cost, merge=True)
    ranges.sort()
    assert [item for start, stop in ranges for item in range(start, stop)] == list(range(count))
    assert all(start % block_items(cost) == 0 for start, _ in ranges)
    sizes = [stop - start for start, stop in ranges]
    assert sizes == sorted(sizes, reverse=True), "the last ranges let threads end together"
    assert len(ranges) <= max(1, count // block_items(cost) + 1, 1)
    assert threads == 1 or len(ranges) >= min(2, len(_ranges(count, cost)))


@pytest.mark.parametrize("shapes", [[(1200, 1000)] * 2, [(1200, 1000), (1000,)], [(3, 400, 1000)]])
def test_large_arithmetic_has_the_bits_of_one_call_of_numpy(shapes: Any) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    a, b = arrays[0], arrays[-1].copy()
    a.flat[5], b.flat[7] = np.nan, np.nan
    tensors = offgrad.tensor(a), offgrad.tensor(b)
    for threads in (1, 3):
        kernels.set_num_threads(threads)
        x, y = tensors
        with np.errstate(all="ignore"):
            for mine, numpys in (
                (offgrad.maximum(x, y), np.maximum(a, b)), (x.clamp(min=y), np.maximum(a, b)),
                (offgrad.minimum(x, y), np.minimum(a, b)),
                (x + y, a + b), (x * y, a * b), (x / y, a / b), (x > y, a > b),
                (x.abs().sqrt(), np.sqrt(np.abs(a))), (x.mT * 2, np.swapaxes(a, -1, -2) * 2),
            ):  # fmt: skip
                np.testing.assert_array_equal(mine.numpy(), numpys)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ufunc", [each for each in kernels.ARITHMETIC if each.nin == 1])
def test_loops_over_one_array_have_numpys_bits(ufunc: Any, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((401, 500)) * 10.0 ** rng.integers(-30, 30, (401, 500))).astype(dtype)
    tiny, huge = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    x[0, :13] = 0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny, huge, -huge, 0.5, -0.5, 1.5, 2.5
    for threads in (1, 3):
        kernels.set_num_threads(threads)
        out = np.empty_like(x)
        kernels.elementwise(ufunc, out, x)
        with np.errstate(all="ignore"):
            expected = ufunc(x)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(np.signbit(out[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 401, 500), (500,)), ((3, 401, 500), (401, 500)), ((3, 401, 500), (3, 401, 1)),
        ((3, 401, 500), (401, 1)), ((3, 401, 500), (3, 1, 1)), ((2003, 1), (300,)),
        ((1, 300), (2003, 1)), ((4, 1, 33), (5000, 33)), ((4, 5000, 1), (33,)),
        # These are left to NumPy.
        ((40, 5000, 31), (31,)), ((40, 500, 31), (500, 1)), ((3, 401, 500), (3, 1, 500)),
        ((3, 1, 500), (1, 401, 1)), ((3, 401, 1), (3, 1, 500)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ufunc", [np.add, np.subtract, np.multiply, np.divide])
def test_broadcasting_has_numpys_bits(ufunc: Any, dtype: Any, shapes: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    a.flat[:5] = b.flat[:5] = 0, np.inf, -np.inf, np.nan, -0.0
    shape = np.broadcast_shapes(a.shape, b.shape)
    wide_a, wide_b = np.broadcast_to(a, shape), np.broadcast_to(b, shape)
    for threads in (1, 3):
        kernels.set_num_threads(threads)
        for x, y in ((a, b), (b, a), (a, wide_b), (wide_b, wide_a), (wide_a, b)):
            with np.errstate(all="ignore"):
                expected = ufunc(x, y)
                out = np.empty_like(expected)
                kernels.elementwise(ufunc, out, x, y)
            np.testing.assert_array_equal(out, expected)


SLICES: dict[str, Any] = {
    "two slices": lambda x: (x[:, 3:403], x[:, :400]),
    "every second row": lambda x: (x[:1000:2, 1:], x[1:1001:2, :-1]),
    "a row": lambda x: (x[:, 3:], x[7, 3:]),
    "a column": lambda x: (x[:, 3:], x[:, :1].copy()),
    "a number": lambda x: (x[:, 3:], x[:1, :1]),
    "an array": lambda x: (x[:, 3:], x[:, 3:].copy()),
    "overlapping windows": lambda x: (
        np.lib.stride_tricks.sliding_window_view(x.reshape(-1)[:5000], 64), x[3, :64]
    ),
    "half of the heads' width": lambda x: (
        x.reshape(-1)[:960_000].reshape(200, 3, 10, 160)[..., :80], x[:10, :80].copy()
    ),
}  # fmt: skip
LEFT_TO_NUMPY: dict[str, Any] = {
    "every second column": lambda x: (x[:, ::2], x[:, 1::2]),
    "reversed rows": lambda x: (x[::-1, 3:], x[:, 3:]),
    "transposed": lambda x: (x.T, x[0, :1]),
    "steps that differ": lambda x: (
        x[:2000].reshape(2, 1000, 500)[:, :900, 3:],
        x[:2000].reshape(2, 1000, 500)[:, 100:, 3:],
    ),
    "a column that is a slice": lambda x: (x[:, 3:], x[:, :1]),
    "one column for several rows": lambda x: (
        x[:2000, :400].reshape(2, 1000, 400),
        np.ones((2, 1, 1), x.dtype),
    ),
}


@pytest.mark.parametrize("case", [*SLICES, *LEFT_TO_NUMPY])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ufunc", [np.add, np.subtract, np.multiply, np.divide])
def test_arithmetic_of_slices_has_numpys_bits(ufunc: Any, dtype: Any, case: str) -> None:
    x = np.random.default_rng(1).standard_normal((2003, 500)).astype(dtype)
    x.flat[:5] = 0, np.inf, -np.inf, np.nan, -0.0
    before = x.copy()
    a, b = (SLICES | LEFT_TO_NUMPY)[case](x)
    for pair in ((a, b), (b, a)):
        with np.errstate(all="ignore"):
            expected = ufunc(*pair, order="C")
        for threads in (1, 3):
            kernels.set_num_threads(threads)
            out = np.empty_like(expected)
            with np.errstate(all="ignore"):
                kernels.elementwise(ufunc, out, *pair)
            np.testing.assert_array_equal(out, expected)
        loop = broadcasting_loop(ufunc, [*pair], out)
        assert (loop is not None) == (case in SLICES and kernels.backend() == "numba")
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("value", [1, -0.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_with_a_product_is_rounded_less_often_than_numpys(dtype: Any, value: float) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((401, 500)).astype(dtype) for _ in range(3)]
    exact = [each.astype(np.longdouble) for each in arrays]
    expected = exact[0] + value * exact[1] * exact[2]
    size = np.abs(exact[0]) + np.abs(exact[1] * exact[2])
    results = []
    for threads in (1, 3):
        kernels.set_num_threads(threads)
        tensors = [offgrad.tensor(each) for each in arrays]
        results.append(offgrad.addcmul(*tensors, value=value).numpy())
        assert (np.abs(results[-1] - expected) <= 1.5 * np.finfo(dtype).eps * size).all()
    np.testing.assert_array_equal(results[0], results[1])
    large, row = offgrad.tensor(arrays[0]), offgrad.tensor(arrays[1][0])
    broadcast = offgrad.addcmul(large, row, large, value=value).numpy()
    np.testing.assert_allclose(
        broadcast, arrays[0] + value * arrays[1][0] * arrays[0], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("beta", [1, 0.5])
def test_a_large_matrix_is_added_to_a_product(beta: float) -> None:
    rng = np.random.default_rng(1)
    x, a, b = (rng.standard_normal(size) for size in ((401, 500), (401, 20), (20, 500)))
    found = offgrad.addmm(*map(offgrad.tensor, (x, a, b)), beta=beta, alpha=2)
    np.testing.assert_allclose(found.numpy(), beta * x + 2 * (a @ b), rtol=1e-12, atol=1e-12)
    row = offgrad.addmm(*map(offgrad.tensor, (x[0], a, b)))
    np.testing.assert_allclose(row.numpy(), x[0] + a @ b, rtol=1e-12, atol=1e-12)
    vectors = offgrad.tensor(a[:, 0]), offgrad.tensor(b[0])
    found = offgrad.addr(offgrad.tensor(x), *vectors, beta=beta)
    np.testing.assert_allclose(found.numpy(), beta * x + np.outer(a[:, 0], b[0]), rtol=1e-12)


def test_the_caller_and_the_workers_share() -> None:
    meeting = threading.Barrier(3, timeout=30)
    names = set()

    def body(start: int, stop: int) -> None:
        names.add(threading.current_thread().name)
        meeting.wait()  # passes only if three threads are in here at once

    kernels.set_num_threads(3)
    parallel_for(body, 3, BLOCK)
    assert len(names) == 3
    assert sum(name.startswith(THREAD_NAME) for name in names) == 2


def test_a_nested_call_runs_on_its_own_thread() -> None:
    seen: list[tuple[int, int]] = []

    def outer(start: int, stop: int) -> None:
        me = threading.get_ident()
        parallel_for(lambda a, b: seen.append((me, threading.get_ident())), 4, BLOCK)

    parallel_for(outer, 4, BLOCK)
    assert len(seen) == 16
    assert all(a == b for a, b in seen)


@pytest.mark.parametrize("threads", [1, 4])
def test_an_exception_is_raised_to_the_caller_and_the_pool_goes_on(threads: int) -> None:
    kernels.set_num_threads(threads)

    def body(start: int, stop: int) -> None:
        if start >= 3:
            raise LookupError(f"range {start}")

    for _ in range(20):
        with pytest.raises(LookupError, match="range"):
            parallel_for(body, 50, BLOCK)
    assert len(_ranges(50, BLOCK)) == 50


def test_an_exception_on_a_worker_alone() -> None:
    worker_came = threading.Event()

    def body(start: int, stop: int) -> None:
        if threading.current_thread().name.startswith(THREAD_NAME):
            worker_came.set()
            raise LookupError("on the worker")
        assert worker_came.wait(30)

    with pytest.raises(LookupError, match="on the worker"):
        parallel_for(body, 50, BLOCK)


@pytest.mark.parametrize("threads", [1, 4])
def test_an_exception_holds_no_array(threads: int) -> None:
    kernels.set_num_threads(threads)
    gone = []

    def fail() -> None:
        array = np.zeros(1000)
        gone.append(weakref.ref(array))

        def body(start: int, stop: int, array: Any = array) -> None:
            raise LookupError

        with contextlib.suppress(LookupError):
            parallel_for(body, 50, BLOCK)

    gc.disable()
    try:
        for _ in range(5):
            fail()
        deadline = time.monotonic() + 30  # workers drop the closed jobs of their queue
        while any(each() is not None for each in gone) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert all(each() is None for each in gone)
    finally:
        gc.enable()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handle SIGINT as a process does that was not started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_keyboard_interrupt_waits_for_the_workers(interruptible: None) -> None:
    running, in_worker = threading.Event(), []

    def body(start: int, stop: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert running.wait(30)
            signal.raise_signal(signal.SIGINT)
        else:
            in_worker.append(start)
            running.set()
            time.sleep(0.05)
            in_worker.remove(start)

    with pytest.raises(KeyboardInterrupt):
        parallel_for(body, 1000, BLOCK)
    assert in_worker == []
    assert len(_ranges(50, BLOCK)) == 50


def test_nothing_is_held_after_the_call() -> None:
    # One caller keeps all workers busy, so that the other's offers stay in the queue.
    all_busy, leave = threading.Barrier(5, timeout=30), threading.Event()

    def hold(start: int, stop: int) -> None:
        all_busy.wait()
        assert leave.wait(30)

    busy = threading.Thread(target=parallel_for, args=(hold, 4, BLOCK))
    busy.start()
    all_busy.wait()
    try:
        array = np.zeros(1000)
        gone = weakref.ref(array)

        def body(start: int, stop: int, array: np.ndarray[Any, Any] = array) -> None:
            array.sum()

        parallel_for(body, 50, BLOCK)
        del array, body
        assert gone() is None
    finally:
        leave.set()
        busy.join()


def _workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(THREAD_NAME)]


@pytest.mark.parametrize("backend_", ["numba", "numpy"])
def test_the_same_bits_on_any_number_of_threads(digests: Digests, backend_: str) -> None:
    kernels.set_backend(backend_)
    kernels.set_num_threads(1)
    expected = digests()
    for threads in (2, 4, 3):
        kernels.set_num_threads(threads)
        assert digests() == expected


def test_the_same_bits_from_concurrent_callers(digests: Digests) -> None:
    expected = digests()
    with ThreadPoolExecutor(4) as callers:
        for result in [callers.submit(digests) for _ in range(8)]:
            assert result.result() == expected


@pytest.mark.slow
def test_the_same_bits_in_another_process(digests: Digests) -> None:
    program = (
        "import hashlib, numpy as np, sys\n"
        "from offgrad import kernels\n"
        "x = np.random.default_rng(0).normal(size=(600, 700)).astype(np.float32)\n"
        "out, total = np.empty_like(x), np.empty(700, np.float32)\n"
        "kernels.softmax(x, out); kernels.sum_rows(x, total)\n"
        "digest = hashlib.sha256(out.tobytes() + total.tobytes()).hexdigest()\n"
        "print(kernels.get_num_threads(), digest)\n"
    )
    results = set()
    for threads in ("1", "2", "4"):
        environment = {**os.environ, "OFFGRAD_NUM_THREADS": threads}
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        text = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
        count, digest = text.split()
        assert count == threads
        results.add(digest)
    assert len(results) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes_the_same(digests: Digests) -> None:
    expected = digests()  # compiled, and the pool's and BLAS's threads are running
    assert _workers()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, Python 3.12
        child = os.fork()
    if child == 0:
        try:
            result = {"threads": len(_workers()), "digests": digests(), "after": len(_workers())}
            os.write(writer, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        text = b""
        while select.select([reader], [], [], 60)[0] and (part := os.read(reader, 65536)):
            text += part
        result = json.loads(text or b"{}")
        assert result.get("digests") == expected
        assert result["threads"] == 0
        assert result["after"] >= 1
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_fork_during_another_threads_call() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    entered, leave = threading.Event(), threading.Event()
    before = {library.get_num_threads() for library in _blas_libraries()}

    def body(start: int, stop: int) -> None:
        with kernels.single_threaded_blas():
            entered.set()
            leave.wait(30)

    busy = threading.Thread(target=parallel_for, args=(body, 4, BLOCK))
    busy.start()
    assert entered.wait(30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            x = np.ones((300, 1000), np.float32)
            out = np.empty_like(x)
            kernels.softmax(x, out)
            restored = {library.get_num_threads() for library in _blas_libraries()} == before
            status = 0 if np.allclose(out, 1e-3) and restored else 2
        finally:
            os._exit(status)
    leave.set()
    busy.join()
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)


def test_bad_numbers_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="expects a positive integer, got 0"):
        kernels.set_num_threads(0)
    for text in ("0", "many", "-1", ""):
        monkeypatch.setenv("OFFGRAD_NUM_THREADS", text)
        with pytest.raises(ValueError, match=f"1 or more; got '{text}'"):
            _parallel._initial_num_threads()
    monkeypatch.setenv("OFFGRAD_NUM_THREADS", "3")
    assert _parallel._initial_num_threads() == 3
