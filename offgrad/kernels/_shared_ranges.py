"""Ranges of one loop on the pool's threads, which take them without the GIL.

The pool has some cells of memory. A call takes a slot of them, writes there where its ranges,
its arguments and its C function are (see `_range_driver`), and counts `SHARED` up. Threads that
wait for work in `serve` see that, and take ranges until none is left, as the caller does; then the
caller waits for those that still compute. If no slot is free, or no thread waits, the caller
computes all ranges itself.

A thread counts itself among a slot's users before it looks at the function again, and the caller
removes the function before it looks at the users: so none uses a call that has returned.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ctypes import addressof, c_int64
from typing import Any

import numpy as np

from offgrad.kernels import _atomics
from offgrad.kernels._atomics import call, compare_exchange, fetch_add, load, pause, store
from offgrad.kernels._jit import compile_c_function, inlined, jit
from offgrad.kernels._range_driver import FAILED_ELSEWHERE, LEAD

POSTED, SHARED = 0, 1
"""Cells that count jobs that need the GIL, and shared loops."""

_LINE = 8  # cells of a cache line
_RUN, _ARGUMENTS, _RANGES, _FAILED = 0, 1, 2, 3
_NEXT, _USERS, _JOINED, _OWNER = 2 * _LINE, 4 * _LINE, 4 * _LINE + 1, 6 * _LINE
_SLOT, _SLOTS = 8 * _LINE, 8
_FIRST = 2 * _LINE

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

    def prepare(self) -> None:
        """Compile what loops call, or load it from the cache."""
        if not self._cells[LEAD]:
            self._cells[LEAD] = _lead_address()
            serve(0, self.address, 0, 0, 0)

    @property
    def posted(self) -> int:
        """The number of jobs that need the GIL."""
        return self._cells[POSTED]

    def count_posted(self) -> None:
        """Count one. Of two threads that do so at once, one may not count: waits take longer."""
        self._cells[POSTED] += 1


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


def _lead(pool: int, ranges: int, run: int, arguments: int) -> int:
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
    fetch_add(pool + SHARED * 8, 1)
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
def serve(counted: int, pool: int, target: int, rounds: int, delay: int) -> bool:
    """Count `counted` up, and compute ranges of shared loops.

    Args:
        counted: an address, or 0.
        pool: the address of its cells.
        target: return True when `POSTED` is at least that.
        rounds: how often to look without work until it returns False.
        delay: how many rounds to wait before it returns True.
    """
    if counted != 0:
        fetch_add(counted, 1)
    seen, done = -1, 0
    while done < rounds:
        if load(pool + POSTED * 8) >= target:
            for _ in range(delay):
                load(pool)
                pause()
            return True
        shared = load(pool + SHARED * 8)
        if shared == seen:
            pause()
            done += 1
            continue
        seen = shared
        for number in range(_SLOTS):
            slot = pool + (_FIRST + number * _SLOT) * 8
            if load(slot + _RUN * 8) == 0:
                continue
            fetch_add(slot + _USERS * 8, 1)
            if load(slot + _RUN * 8) != 0:
                joined = fetch_add(slot + _JOINED * 8, 1)
                if joined < load(load(slot + _RANGES * 8)):
                    _take(slot, joined + 1)
                    done = 0
            fetch_add(slot + _USERS * 8, -1)
    return False


@functools.cache
def register() -> None:
    """Register what these loops call with Numba."""
    from numba import types
    from numba.extending import overload

    _atomics.register()
    sched_yield = types.ExternalFunction("sched_yield", types.int32())

    def give() -> Any:
        def implementation() -> None:
            sched_yield()

        return implementation

    overload(yield_core, strict=False)(give)


@functools.cache
def _lead_address() -> int:
    register()
    return compile_c_function(_lead, parameters=4)
