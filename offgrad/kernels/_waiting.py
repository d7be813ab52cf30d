"""Waiting in a compiled loop, without the GIL, for a thread that is about to count.

A sleeping thread takes 20 to 50 us to wake, in which a loop computes 100,000 elements. So threads
first look at a number in memory over and over, as OpenMP's do, for at most `SPIN_MICROSECONDS`.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from ctypes import addressof, c_int64

from offgrad.kernels import _jit
from offgrad.kernels._atomics import load, pause
from offgrad.kernels._shared_ranges import Cells, register, serve


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_FEW_CPUS = 4
_DEFAULT = 100 if usable_cpus() <= _FEW_CPUS else 1000

SPIN_MICROSECONDS = {"passive": 0, "active": 2000}.get(
    os.environ.get("OMP_WAIT_POLICY", "").lower(), _DEFAULT
)
"""How long a thread looks at a counter before it sleeps, by the variable that OpenMP reads.

On many CPUs it is longer: to wake many threads takes longer, and other programs need fewer CPUs.
"""

_HANDOVER_MICROSECONDS = 2
"""How long the thread that counts may take until it computes without the GIL.

A thread that asks for the GIL earlier sleeps until it is free."""


class Counter:
    """A number that threads count up and wait for.

    Loops count it up atomically, without the GIL; `count` does not.
    """

    def __init__(self) -> None:
        self._cell = c_int64()
        self.address = addressof(self._cell)

    @property
    def value(self) -> int:
        """The number."""
        return self._cell.value

    def count(self) -> None:
        """Count one. Of two threads that do so at once, one may not count: waits take longer."""
        self._cell.value += 1


@_jit.jit
def _wait(address: int, target: int, rounds: int) -> bool:
    for _ in range(rounds):
        if load(address) >= target:
            return True
        pause()
    return False


def may_prepare() -> bool:
    """Return whether threads may wait in compiled loops: Numba has been imported, and compiles."""
    return "numba" in sys.modules and os.name == "posix" and _jit.compiles()


def prepare(cells: Cells) -> None:
    """Compile the loops in which threads wait, or load them; one thread at a time.

    Threads of the pool never compile. They would do so while the program goes on, and a fork in
    that time would wait for Numba's lock, and leave it taken in the child.
    """
    _rounds_per_microsecond()
    cells.prepare()


def wait_for_work(cells: Cells, target: int, finished: Counter | None) -> None:
    """Count `finished` up, then wait until `target` jobs are posted.

    Meanwhile the thread computes ranges of shared loops. Whoever posts a job has the GIL, and
    releases it within microseconds.
    """
    per_microsecond = _rounds_per_microsecond()
    counted = 0 if finished is None else finished.address
    rounds, delay = SPIN_MICROSECONDS * per_microsecond, _HANDOVER_MICROSECONDS * per_microsecond
    serve(counted, cells.address, target, rounds, delay)


def has_counted(counter: Counter, target: int) -> bool:
    """Return whether `counter` reaches `target` soon; it is counted up without the GIL."""
    return _wait(counter.address, target, SPIN_MICROSECONDS * _rounds_per_microsecond())


@functools.cache
def _rounds_per_microsecond() -> int:
    """Return how often a waiting thread looks in a microsecond, from 20 to 300 on x86.

    The first call compiles the loops.
    """
    register()
    counter, rounds, seconds = Counter(), 1000, []
    _wait(counter.address, 1, 1)  # compiles
    for _ in range(5):
        began = time.perf_counter()
        _wait(counter.address, 1, rounds)
        seconds.append(time.perf_counter() - began)
    return max(1, int(rounds / min(seconds) / 1e6))
