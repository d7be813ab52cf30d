"""Forks while other threads compile kernels, run them, or limit BLAS's threads."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._blas import _blas_libraries, _Limiter
from offgrad.kernels._jit import Kernel
from offgrad.kernels._parallel import BLOCK, parallel_for
from tests.forked import run_in_child, wait_for

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@contextmanager
def _repeating(work: Callable[[], object], threads: int = 1) -> Iterator[None]:
    """Repeat `work` in threads during the block."""
    stopping, began = threading.Event(), threading.Event()

    def repeat() -> None:
        while not stopping.is_set():
            work()
            began.set()

    started = [threading.Thread(target=repeat) for _ in range(threads)]
    for each in started:
        each.start()
    try:
        assert began.wait(60)
        yield
    finally:
        stopping.set()
        for each in started:
            each.join()


_numbers = itertools.count()


def _compile_kernel() -> None:
    """Compile a new kernel and run it. Source without a file is not cached on disk."""
    number = next(_numbers)
    scope: dict[str, Any] = {}
    exec(f"def add(x):\n    for k in range(x.size):\n        x[k] += {number}\n", scope)
    x = np.zeros(4)
    Kernel(scope["add"])(x)
    assert (x == number).all()


@pytest.mark.slow
def test_a_fork_while_another_thread_compiles() -> None:
    pytest.importorskip("numba")
    with _repeating(_compile_kernel):
        for _ in range(5):
            time.sleep(random.random() * 0.1)
            run_in_child(_compile_kernel)


def _limit_blas() -> None:
    with kernels.single_threaded_blas():
        assert {each.get_num_threads() for each in _blas_libraries()} == {1}


class _Slow:
    """A BLAS library that takes its time to change its number of threads."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.is_changing = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def set_num_threads(self, count: int) -> None:
        self.is_changing.set()
        time.sleep(0.2)
        self._library.set_num_threads(count)


def test_a_fork_while_another_thread_restores_the_threads_of_blas() -> None:
    (library, *_) = _blas_libraries()
    before = library.get_num_threads()
    library.set_num_threads(2)
    slow = _Slow(library)
    limiter = _Limiter([slow])

    is_entered, leave = threading.Event(), threading.Event()

    def enter_and_leave() -> None:
        entered = limiter.enter()
        is_entered.set()
        assert leave.wait(60)
        limiter.leave(entered)

    def in_child() -> None:
        assert library.get_num_threads() == 2
        limiter.leave(limiter.enter())
        assert library.get_num_threads() == 2

    thread = threading.Thread(target=enter_and_leave)
    thread.start()
    assert is_entered.wait(60)
    slow.is_changing.clear()
    leave.set()
    assert slow.is_changing.wait(60)
    run_in_child(in_child)
    thread.join()
    library.set_num_threads(before)


def test_a_fork_inside_the_limit_of_blas() -> None:
    before = [each.get_num_threads() for each in _blas_libraries()]

    def leave_in_child() -> None:
        assert {each.get_num_threads() for each in _blas_libraries()} == {1}
        limit.__exit__(None, None, None)
        assert [each.get_num_threads() for each in _blas_libraries()] == before

    with _repeating(_limit_blas, threads=2):
        for _ in range(10):
            limit = kernels.single_threaded_blas()
            with limit:
                run_in_child(leave_in_child)


def test_a_fork_inside_a_kernel_on_several_threads() -> None:
    kernels.set_num_threads(2)
    helping, leave = threading.Event(), threading.Event()
    caller = threading.get_ident()
    children: list[int] = []

    def body(start: int, stop: int) -> None:
        if threading.get_ident() != caller:
            helping.set()
            leave.wait(60)
        elif not children:
            assert helping.wait(60)
            children.append(os.fork())
            leave.set()

    try:
        parallel_for(body, 4, BLOCK)
    except RuntimeError as error:
        if children[0]:
            raise
        os._exit(0 if "forked inside a kernel" in str(error) else 1)
    finally:
        if not children[0]:
            os._exit(1)
    wait_for(children[0])


def test_a_use_may_end_in_another_thread() -> None:
    """As that of a context whose exit an interrupt has skipped, when its generator dies there."""
    (library, *_) = _blas_libraries()
    before = library.get_num_threads()
    library.set_num_threads(2)
    try:
        limiter = _Limiter([library])
        use = limiter.enter()
        assert library.get_num_threads() == 1
        thread = threading.Thread(target=limiter.leave, args=(use,))
        thread.start()
        thread.join()
        assert library.get_num_threads() == 2
    finally:
        library.set_num_threads(before)
