"""Waiting in a compiled loop, without the GIL, for a thread that is about to count.

A sleeping thread takes 20 to 50 us to wake, in which a loop computes 100,000 elements. So threads
first look at a number in memory over and over, as OpenMP's do, for at most `SPIN_MICROSECONDS`.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import time
from ctypes import addressof, c_int64
from typing import Any

from offgrad.kernels import _jit

SPIN_MICROSECONDS = 0 if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive" else 100
"""How long a thread looks at a counter before it sleeps; not at all if OMP_WAIT_POLICY says so."""

_HANDOVER_MICROSECONDS = 2
"""How long the thread that counts may take until it computes without the GIL.

A thread that asks for the GIL earlier sleeps until it is free."""

_NEVER = 1 << 62


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


def reached(address: int, target: int, rounds: int) -> bool:
    """Return whether the number at `address` is at least `target` in one of some rounds.

    In compiled loops only.
    """
    raise NotImplementedError("reached runs in compiled loops")


def count_up(address: int) -> None:
    """Count the number at `address` up by one, atomically, in compiled loops only."""
    raise NotImplementedError("count_up runs in compiled loops")


@_jit.jit
def _wait(counted: int, address: int, target: int, rounds: int, delay: int) -> bool:
    if counted != 0:
        count_up(counted)
    is_reached = reached(address, target, rounds)
    if is_reached:
        reached(address, _NEVER, delay)  # looks on, to let time pass
    return is_reached


_is_prepared = False


def prepare() -> None:
    """Compile the loop, or load it, where threads may wait in it: Numba has been imported.

    Threads of the pool never compile. They would do so while the program goes on, and a fork in
    that time would wait for Numba's lock, and leave it taken in the child.
    """
    global _is_prepared
    numba = None if _is_prepared or SPIN_MICROSECONDS == 0 else sys.modules.get("numba")
    if numba is not None and _jit.backend() == "numba" and not numba.config.DISABLE_JIT:
        _rounds_per_microsecond()
        _is_prepared = True


def can_wait() -> bool:
    """Return whether threads wait in a compiled loop: `prepare` has been called, with success."""
    return SPIN_MICROSECONDS > 0 and _is_prepared


def wait_for_work(posted: Counter, target: int, finished: Counter | None) -> None:
    """Count `finished` up, then wait until `posted` is at least `target`, or for some time.

    Whoever counts `posted` up has the GIL, and releases it within microseconds.
    """
    per_microsecond = _rounds_per_microsecond()
    counted = 0 if finished is None else finished.address
    rounds, delay = SPIN_MICROSECONDS * per_microsecond, _HANDOVER_MICROSECONDS * per_microsecond
    _wait(counted, posted.address, target, rounds, delay)


def has_counted(counter: Counter, target: int) -> bool:
    """Return whether `counter` reaches `target` soon; it is counted up without the GIL."""
    return _wait(0, counter.address, target, SPIN_MICROSECONDS * _rounds_per_microsecond(), 0)


@functools.cache
def _rounds_per_microsecond() -> int:
    """Return how often a waiting thread looks in a microsecond, from 20 to 300 on x86.

    The first call compiles the loop.
    """
    _register()
    counter, rounds, seconds = Counter(), 1000, []
    _wait(0, counter.address, 1, 1, 0)  # compiles
    for _ in range(5):
        began = time.perf_counter()
        _wait(0, counter.address, 1, rounds, 0)
        seconds.append(time.perf_counter() - began)
    return max(1, int(rounds / min(seconds) / 1e6))


@functools.cache
def _register() -> None:
    """Register the functions above with Numba; comes before loops that call them."""
    from numba import types
    from numba.extending import intrinsic, overload

    @intrinsic  # type: ignore[untyped-decorator]
    def looking(_: Any, address: Any, target: Any, rounds: Any) -> Any:
        return types.boolean(address, target, rounds), _emit_looking

    @intrinsic  # type: ignore[untyped-decorator]
    def counting(_: Any, address: Any) -> Any:
        return types.void(address), _emit_counting

    overload(reached, strict=False)(
        lambda *_: lambda address, target, rounds: looking(address, target, rounds)
    )
    overload(count_up, strict=False)(lambda *_: lambda address: counting(address))


def _emit_looking(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    from llvmlite import ir  # type: ignore[import-untyped]

    address, target, rounds = arguments
    whole = ir.IntType(64)
    cell = builder.inttoptr(address, whole.as_pointer())
    before = builder.block
    look, pause, end = (builder.append_basic_block(name) for name in ("look", "pause", "end"))
    builder.branch(look)
    builder.position_at_end(look)
    done = builder.phi(whole)
    value = builder.load_atomic(cell, "acquire", 8)
    is_reached = builder.icmp_signed(">=", value, target)
    builder.cbranch(is_reached, end, pause)
    builder.position_at_end(pause)
    if platform.machine() in ("x86_64", "AMD64"):
        builder.call(builder.module.declare_intrinsic(
            "llvm.x86.sse2.pause", (), ir.FunctionType(ir.VoidType(), ())
        ), ())  # fmt: skip
    counted = builder.add(done, ir.Constant(whole, 1))
    done.add_incoming(ir.Constant(whole, 0), before)
    done.add_incoming(counted, pause)
    builder.cbranch(builder.icmp_signed("<", counted, rounds), look, end)
    builder.position_at_end(end)
    return is_reached


def _emit_counting(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    from llvmlite import ir

    whole = ir.IntType(64)
    cell = builder.inttoptr(arguments[0], whole.as_pointer())
    builder.atomic_rmw("add", cell, ir.Constant(whole, 1), "seq_cst")
    return context.get_dummy_value()
