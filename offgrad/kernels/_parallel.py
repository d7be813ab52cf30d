"""`parallel_for`: one small pool of Python threads under all kernels.

Compiled loops are shared without the GIL (`_shared_ranges`); bodies in Python, such as NumPy's
functions, release it while they compute. The problem's size alone fixes the ranges of partial sums,
which therefore have the same bits on any number of threads.

The calling thread takes its share and never waits for a worker that is busy elsewhere, so any
number of threads may call at once and nothing can deadlock. A `parallel_for` inside another runs
serially. A forked child starts with an empty pool; if the fork came inside a `parallel_for`, whose
helpers the child lacks, that call raises RuntimeError in the child.

For the reasons against Numba's threads and OpenMP see `_jit`.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from offgrad_storage.interrupts import MaskedLock, interruptible

from offgrad.kernels._blas import find_blas, limit_this_thread, set_blas_threads
from offgrad.kernels._jit import Kernel
from offgrad.kernels._shared_ranges import Cells, Ranges, post
from offgrad.kernels._waiting import (
    Counter,
    has_counted,
    may_prepare,
    prepare,
    usable_cpus,
    wait_for_work,
)
from offgrad.memory.forks import forkables

BLOCK = 128 * 1024
"""Minimum of elements in a range: distributing smaller ones costs more than it gains."""

SHARED_BLOCK = 16 * 1024
"""As `BLOCK`, for compiled loops, which threads share without the GIL."""

MAX_RANGES = 1024
"""Ranges of `in_ranges`, about: more take longer to describe than they gain."""

THREAD_NAME = "offgrad-kernels"
"""Prefix of the names of the pool's daemon threads."""

Body = Callable[..., None]


class _Job:
    """Ranges of one `parallel_for`, distributed to the threads that ask for one.

    Attributes:
        left: counted up by each helper that has left, if the caller may wait for it in a loop.
    """

    def __init__(self, body: Body, bounds: tuple[int, ...]) -> None:
        self._body: Body | None = body
        # next() on it runs no Python code: it is atomic under the GIL.
        self._ranges = pairwise(bounds)
        self._lock = MaskedLock()
        self._helpers = 0
        self._joined = 0
        self._closed = False
        self._process = os.getpid()
        self._finished = threading.Lock()  # whose wait, unlike an Event's, survives interrupts
        self._finished.acquire()
        self.left = Counter()
        self.error: BaseException | None = None

    def run(self, cells: Cells | None = None, helpers: int = 0) -> None:
        """Compute ranges until none is left; post the job in `cells` just before the first one."""
        body = self._body
        assert body is not None
        _thread.inside = True
        try:
            for start, stop in self._ranges:
                if self.error is not None:
                    return
                if cells is not None:
                    post(cells.address, helpers)
                    cells = None
                body(start, stop)
        finally:
            _thread.inside = False

    def help(self) -> Counter | None:
        """Compute ranges on a worker thread; return the counter of those that have left.

        Return None if the job has ended meanwhile.
        """
        with self._lock:
            if self._closed:
                return None
            self._helpers += 1
            self._joined += 1
        try:
            self.run()
        except BaseException as error:
            self.error = self.error or error
        with self._lock:
            self._helpers -= 1
            if self._closed and self._helpers == 0:
                self._finished.release()
        return self.left

    def close(self) -> None:
        """Wait until no worker uses the arrays, and release them.

        A worker that starts the job later finds it closed. Ctrl-C and other errors of signals wait,
        too: workers still write.
        """
        if os.getpid() != self._process:  # a worker may have held the lock, and left ranges undone
            raise RuntimeError(
                "the process was forked inside a kernel on several threads, which do not exist in "
                "the child: fork between operations, not in finalizers or signal handlers"
            )
        with self._lock:
            self._closed = True
        interrupt: BaseException | None = None
        while self._helpers > 0:
            try:
                if interrupt or not (_pool.cells.is_ready and has_counted(self.left, self._joined)):
                    self._finished.acquire()
            except BaseException as error:  # of a signal's handler
                self.error = interrupt = error
        self._body = None
        try:
            if interrupt is not None:
                raise interrupt
        finally:
            del interrupt  # this frame would hold the exception that holds it


class _ThreadState(threading.local):
    inside = False


class _Pool:
    """The worker threads.

    Attributes:
        lock: held while threads start.
    """

    def __init__(self) -> None:
        self.lock = MaskedLock()
        self.cells = Cells()
        self.forget_other_threads()
        forkables.add(self)

    def forget_other_threads(self) -> None:
        """In a forked child: no worker exists."""
        self.cells.reset()
        # A fork takes Numba's lock, for which its holder may wait: so it does not take this one.
        self._preparing = MaskedLock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._workers = 0

    def start(self, helpers: int) -> None:
        """Start threads until there are `helpers`."""
        if not self.cells.is_ready and may_prepare():
            with self._preparing, interruptible:
                if not self.cells.is_ready:
                    prepare(self.cells)
                    for _ in range(self._workers):  # which now wait for both kinds of work
                        self._jobs.put(None)
        if self._workers < helpers:
            find_blas()
            with self.lock:
                while self._workers < helpers:
                    name = f"{THREAD_NAME}-{self._workers}"
                    threading.Thread(target=self._serve, name=name, daemon=True).start()
                    self._workers += 1

    def offer(self, job: _Job, helpers: int) -> None:
        """Let `helpers` threads compute ranges of a job."""
        for _ in range(helpers):
            self._jobs.put(job)

    def _serve(self) -> None:
        np.seterr(all="ignore")  # in this thread; the caller decides for its own
        limit_this_thread()
        left: Counter | None = None
        while True:
            waits = self.cells.is_ready
            if waits:
                posted = self.cells.posted
                wait_for_work(self.cells, posted + 1 if self._jobs.empty() else 0, left)
            left = None
            try:
                job = self._jobs.get(block=not waits)
            except Empty:
                continue
            left = None if job is None else job.help()
            del job


def _initial_num_threads() -> int:
    text = os.environ.get("OFFGRAD_NUM_THREADS")
    if text is None:
        return usable_cpus()
    try:
        return _checked(int(text))
    except (ValueError, RuntimeError):
        raise ValueError(
            f"OFFGRAD_NUM_THREADS must be a whole number of threads, 1 or more; got {text!r}"
        ) from None


def _checked(count: int) -> int:
    if count < 1:
        raise RuntimeError(f"set_num_threads expects a positive integer, got {count}")
    return count


instead: list[Callable[[Body, int, int], bool]] = []
"""At most one function, asked first whether it has computed all ranges in another way."""

_thread = _ThreadState()
_pool = _Pool()
_num_threads: int | None = None


def get_num_threads() -> int:
    """The number of threads that a kernel may use, the caller's included.

    The default is OFFGRAD_NUM_THREADS, else the number of CPUs this process may run on.
    """
    global _num_threads
    if _num_threads is None:
        _num_threads = _initial_num_threads()
    return _num_threads


def set_num_threads(count: int) -> None:
    """Let kernels and BLAS use `count` threads, the caller's included, in the whole process.

    Results of kernels and of large products do not depend on it. Threads of the program that
    compute at the same time share `count` - 1 helpers.

    Raises:
        RuntimeError: for a count below 1.
    """
    global _num_threads
    _num_threads = _checked(count)
    set_blas_threads(count)


def apply_environment() -> None:
    """Let BLAS use OFFGRAD_NUM_THREADS threads if it is set; `get_num_threads` checks its value."""
    text = os.environ.get("OFFGRAD_NUM_THREADS", "")
    if text.isdecimal() and int(text) > 0:
        set_blas_threads(int(text))


def block_items(cost: int) -> int:
    """The number of items of `cost` elements each in one range of `parallel_for`."""
    return max(1, -(-BLOCK // max(1, cost)))


def shared_cost(cost: int) -> int:
    """Return the cost for which ranges of `parallel_for`, and `block_items`, have `SHARED_BLOCK`
    instead of `BLOCK` elements: for partial sums in loops that threads share.
    """
    return cost * BLOCK // SHARED_BLOCK


def parallel_for(
    body: Body, count: int, cost: int = 1, merge: bool = False, workers: int | None = None
) -> None:
    """Call `body(start, stop)` for ranges that cover `range(count)`, on several threads.

    Args:
        body: Works on items start to stop - 1. It may run on any thread, at the same time as its
            other ranges; it should release the GIL, and write where no other range does. Threads
            share the ranges of ``partial(loop, *arguments)`` without the GIL, for a compiled loop
            whose last parameters are `start` and `stop`, or `start`, `stop` and `worker`: the
            number of the thread within the call, below `workers`.
        count: Number of items; with 0 `body` is not called.
        cost: Elements of work per item, for the size of the ranges: `block_items(cost)` each.
        merge: Let threads take neighbouring ranges as one, the first ones larger than the last. For
            bodies whose results do not depend on where a range begins. Fewer calls compete for the
            GIL.
        workers: Threads at most, the caller's included, for which `num_workers` has been asked:
            another thread may change their number. None to ask here.

    An exception raised by `body` is raised here, after all threads have stopped; the remaining
    ranges are then not computed.
    """
    step = block_items(cost)
    if instead and instead[0](body, count, step):
        return
    loop = _loop(body)
    if loop is not None and merge:
        step = -(-step * SHARED_BLOCK // BLOCK)
    helpers = 0 if count <= step else _helpers(-(-count // step), workers)
    if count > step and not (helpers == 0 and merge):
        _run(body, _bounds(count, step, helpers, merge), helpers)
    elif count > 0:
        body(0, count, *(() if loop is None else loop.first_worker))


def in_ranges(body: Body, bounds: Sequence[int], workers: int | None = None) -> None:
    """Call `body(start, stop)` for neighbours of `bounds`, or of some of them, as `parallel_for`.

    Results must not depend on where a range begins.
    """
    count = len(bounds) - 1
    if instead and instead[0](lambda start, stop: body(bounds[start], bounds[stop]), count, 1):
        return
    step = max(1, count // MAX_RANGES)
    if step > 1:
        bounds = [*bounds[:-1:step], bounds[-1]]
    _run(body, tuple(bounds), _helpers(len(bounds) - 1, workers))


def num_workers(tasks: int | None = None) -> int:
    """Return how many threads may compute ranges of a call from here, of so many tasks."""
    count = 1 if _thread.inside else get_num_threads()
    return count if tasks is None else max(1, min(count, tasks))


def _helpers(ranges: int, workers: int | None) -> int:
    return max(0, min(num_workers() if workers is None else workers, ranges) - 1)


def _loop(body: Body) -> Kernel[..., Any] | None:
    """Return the loop that `body` calls if threads can share it."""
    if type(body) is partial and type(body.func) is Kernel and body.func.has_ranges:
        return body.func
    return None


@functools.lru_cache(maxsize=256)
def _bounds(count: int, step: int, helpers: int, merge: bool) -> tuple[int, ...]:
    """Return the bounds of ranges of `step` items; with `merge`, each a share of what is left."""
    if not merge:
        return *range(0, count, step), count
    bounds = [0]
    while bounds[-1] < count:
        steps = -(-(count - bounds[-1]) // step)
        bounds.append(min(count, bounds[-1] + step * -(-steps // (2 * (helpers + 1)))))
    return tuple(bounds)


@functools.lru_cache(maxsize=256)
def _ranges(bounds: tuple[int, ...], helpers: int) -> Ranges:
    return Ranges(bounds, helpers)


def _run(body: Body, bounds: tuple[int, ...], helpers: int) -> None:
    loop = _loop(body)
    rest = () if loop is None else loop.first_worker
    if loop is not None and len(bounds) > 2:
        _pool.start(helpers)
        if _pool.cells.is_ready:
            ranges = _ranges(bounds, helpers)
            body(ranges.address, -_pool.cells.address, *rest)
            return
        helpers = 0 if rest else helpers  # Python's threads have no number
    if helpers == 0:
        for start, stop in pairwise(bounds):
            body(start, stop, *rest)
        return
    job = _Job(body, bounds)
    try:
        try:
            _pool.start(helpers)
            _pool.offer(job, helpers)
            job.run(_pool.cells if _pool.cells.is_ready else None, helpers)
        except BaseException as error:
            job.error = error
            raise
        finally:
            job.close()
        if job.error is not None:
            raise job.error
    finally:
        job.error = None  # its frames hold the job, and so the arrays
