"""Ranges of one loop on the pool's threads, which take them without the GIL.

The pool has some cells of memory. A call takes a slot of them, writes there where its ranges,
its arguments and its C function are (see `_range_driver`), and counts `EVENTS` up. Threads that
wait for work in `serve` see that, and take ranges until none is left, as the caller does; then the
caller waits for those that still compute. If no slot is free, or no thread comes, the caller
computes all ranges itself.

A thread counts itself among a slot's users before it looks at the function again, and the caller
removes the function before it looks at the users: so none uses a call that has returned.

A thread that finds no work for some time sleeps. To wake one takes microseconds, so the caller
wakes two, and each of these two more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ctypes import CDLL, addressof, c_int64, c_void_p, memset, sizeof
from typing import Any

import numpy as np

from offgrad.kernels import _atomics
from offgrad.kernels._atomics import call, compare_exchange, fetch_add, load, pause, store
from offgrad.kernels._jit import compile_c_function, inlined, jit
from offgrad.kernels._range_driver import FAILED_ELSEWHERE, LEAD

POSTED, EVENTS, _SLEEPING = 0, 1, 3
"""Cells that count jobs that need the GIL, these and shared loops, and threads that sleep."""

_LINE = 8  # cells of a cache line
_MUTEX, _CONDITION = _LINE, 2 * _LINE
_RUN, _ARGUMENTS, _RANGES, _FAILED = 0, 1, 2, 3
# What threads write lies in lines of its own, two apart, since CPUs fetch pairs of lines.
_NEXT, _USERS, _JOINED, _OWNER = 2 * _LINE, 4 * _LINE, 4 * _LINE + 1, 6 * _LINE
_SLOT, _SLOTS = 8 * _LINE, 8
_FIRST = 4 * _LINE

_ROUNDS = 20_000
"""How often a caller looks whether threads have left until it offers its core to others."""


class Cells:
    """The cells of a pool.

    Attributes:
        address: of the first.
    """

    def __init__(self) -> None:
        count = _FIRST + _SLOTS * _SLOT
        self._memory = (c_int64 * (count + _SLOT))()
        self.address = -(-addressof(self._memory) // (_SLOT * 8)) * _SLOT * 8
        self._cells = (c_int64 * count).from_address(self.address)

    @property
    def is_ready(self) -> bool:
        """Whether loops may use the cells."""
        return self._cells[LEAD] != 0

    def prepare(self) -> None:
        """Compile what loops call, or load it from the cache; one thread at a time."""
        if not self.is_ready:
            address = _lead_address()
            self._init_mutex()
            serve(0, self.address, 0, 0, 0)
            post(self.address, 0)
            self._cells[LEAD] = address

    def reset(self) -> None:
        """Forget calls and threads: in a forked child."""
        lead = self._cells[LEAD]
        memset(self.address, 0, sizeof(self._cells))
        if lead:
            self._init_mutex()
            self._cells[LEAD] = lead

    def _init_mutex(self) -> None:
        system = CDLL(None)
        system.pthread_mutex_init(c_void_p(self.address + _MUTEX * 8), None)
        system.pthread_cond_init(c_void_p(self.address + _CONDITION * 8), None)

    @property
    def posted(self) -> int:
        """The number of jobs that need the GIL."""
        return self._cells[POSTED]


class Ranges:
    """Ranges as `serve` reads them.

    Attributes:
        address: of the number of threads that may join, of ranges, and of the ranges' bounds.
    """

    def __init__(self, bounds: Sequence[int], helpers: int) -> None:
        self._numbers = np.array([helpers, len(bounds) - 1, *bounds], np.int64)
        self.address: int = self._numbers.ctypes.data


@inlined
def _take(slot: int, worker: int) -> int:
    """Compute ranges until none is left; return 0, or the error of one."""
    run, arguments = load(slot + _RUN * 8), load(slot + _ARGUMENTS * 8)
    ranges = load(slot + _RANGES * 8)
    count = load(ranges + 8)
    error = 0
    if run != 0:
        number = fetch_add(slot + _NEXT * 8, 1)
        while number < count:
            bounds = ranges + 8 * (2 + number)
            code = call(run, arguments, load(bounds), load(bounds + 8), worker)
            if code != 0:
                error = code
                store(slot + _NEXT * 8, count)
                store(slot + _FAILED * 8, 1)
            number = fetch_add(slot + _NEXT * 8, 1)
    return error


@inlined
def _take_alone(ranges: int, run: int, arguments: int) -> int:
    for number in range(load(ranges + 8)):
        bounds = ranges + 8 * (2 + number)
        code = call(run, arguments, load(bounds), load(bounds + 8), 0)
        if code != 0:
            return code
    return 0


def yield_core() -> None:
    """Let another thread run on this core, in compiled loops only."""
    raise NotImplementedError("yield_core runs in compiled loops")


def lock(mutex: int) -> None:
    """Lock the mutex at an address, in compiled loops only."""
    raise NotImplementedError("lock runs in compiled loops")


def unlock(mutex: int) -> None:
    """Unlock the mutex at an address, in compiled loops only."""
    raise NotImplementedError("unlock runs in compiled loops")


def wait(condition: int, mutex: int) -> None:
    """Sleep until `signal` wakes this thread, without the mutex meanwhile."""
    raise NotImplementedError("wait runs in compiled loops")


def signal(condition: int) -> None:
    """Wake one thread that sleeps in `wait`."""
    raise NotImplementedError("signal runs in compiled loops")


@inlined
def _wake(pool: int, helpers: int) -> None:
    """Wake up to `helpers` threads, two at most: each of them wakes two more."""
    if helpers > 0 and load(pool + _SLEEPING * 8) > 0:
        lock(pool + _MUTEX * 8)
        signal(pool + _CONDITION * 8)
        if helpers > 1:
            signal(pool + _CONDITION * 8)
        unlock(pool + _MUTEX * 8)


@jit
def post(pool: int, helpers: int) -> None:
    """Tell the threads that a job has come that up to `helpers` of them compute with the GIL."""
    fetch_add(pool + POSTED * 8, 1)
    fetch_add(pool + EVENTS * 8, 1)
    _wake(pool, helpers)


def _lead(pool: int, ranges: int, run: int, arguments: int) -> int:
    """Compute all ranges of a call, with those threads that come; return 0, or the error of one."""
    slot = 0
    for number in range(_SLOTS if load(ranges) > 0 else 0):
        at = pool + (_FIRST + number * _SLOT) * 8
        if load(at + _OWNER * 8) == 0 and compare_exchange(at + _OWNER * 8, 0, 1):
            slot = at
            break
    if slot == 0:
        return _take_alone(ranges, run, arguments)
    store(slot + _NEXT * 8, 0)
    store(slot + _JOINED * 8, 0)
    store(slot + _FAILED * 8, 0)
    store(slot + _RANGES * 8, ranges)
    store(slot + _ARGUMENTS * 8, arguments)
    store(slot + _RUN * 8, run)
    fetch_add(pool + EVENTS * 8, 1)
    _wake(pool, load(ranges))
    error = _take(slot, 0)
    store(slot + _RUN * 8, 0)
    rounds = 0
    while load(slot + _USERS * 8) != 0:
        rounds += 1
        if rounds < _ROUNDS:
            pause()
        else:
            yield_core()
    failed = load(slot + _FAILED * 8)
    store(slot + _OWNER * 8, 0)
    if error == 0 and failed != 0:
        return FAILED_ELSEWHERE
    return error


@jit
def serve(counted: int, pool: int, target: int, rounds: int, delay: int) -> None:
    """Count `counted` up, and compute ranges of shared loops until `POSTED` is at least `target`.

    Args:
        counted: an address, or 0.
        pool: the address of its cells.
        target: see above.
        rounds: how often to look without work until the thread sleeps.
        delay: how many rounds to wait before it returns.
    """
    if counted != 0:
        fetch_add(counted, 1)
    seen, done, has_slept = -1, 0, False
    while load(pool + POSTED * 8) < target:
        events = load(pool + EVENTS * 8)
        if events != seen:
            seen = events
            for number in range(_SLOTS):
                slot = pool + (_FIRST + number * _SLOT) * 8
                if load(slot + _RUN * 8) == 0:
                    continue
                fetch_add(slot + _USERS * 8, 1)
                if load(slot + _RUN * 8) != 0:
                    most = load(load(slot + _RANGES * 8))
                    joined = fetch_add(slot + _JOINED * 8, 1)
                    if joined < most:
                        if has_slept:
                            _wake(pool, most - joined - 1)
                        _take(slot, joined + 1)
                        done, has_slept = 0, False
                fetch_add(slot + _USERS * 8, -1)
        elif done < rounds:
            pause()
            done += 1
        else:
            fetch_add(pool + _SLEEPING * 8, 1)
            lock(pool + _MUTEX * 8)
            while load(pool + EVENTS * 8) == seen:
                wait(pool + _CONDITION * 8, pool + _MUTEX * 8)
            unlock(pool + _MUTEX * 8)
            fetch_add(pool + _SLEEPING * 8, -1)
            done, has_slept = 0, True
    if has_slept:
        _wake(pool, 2)
    for _ in range(delay):
        load(pool)
        pause()


@functools.cache
def register() -> None:
    """Register what these loops call with Numba."""
    from numba import types

    from offgrad.kernels._compilers import intrinsic

    _atomics.register()
    address = types.int64
    for function, name, parameters in (
        (yield_core, "sched_yield", 0),
        (lock, "pthread_mutex_lock", 1),
        (unlock, "pthread_mutex_unlock", 1),
        (signal, "pthread_cond_signal", 1),
        (wait, "pthread_cond_wait", 2),
    ):
        intrinsic(
            function, types.void(*[address] * parameters), functools.partial(_emit_call, name)
        )


def _emit_call(name: str, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Call a function of the C library, and drop the code that it returns."""
    from llvmlite import ir  # type: ignore[import-untyped]

    kind = ir.FunctionType(ir.IntType(32), [each.type for each in arguments])
    module = builder.module
    function = module.globals.get(name) or ir.Function(module, kind, name)
    builder.call(function, arguments)
    return context.get_dummy_value()


@functools.cache
def _lead_address() -> int:
    register()
    return compile_c_function(_lead, parameters=4)
