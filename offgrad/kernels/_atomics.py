"""Reads and writes of memory that threads share, for compiled loops.

All are sequentially consistent. Addresses are those of 64-bit integers.
"""

from __future__ import annotations

import functools
import platform
from typing import Any


def load(address: int) -> int:
    """Return the integer at `address`."""
    raise NotImplementedError("load runs in compiled loops")


def store(address: int, value: int) -> None:
    """Write the integer at `address`."""
    raise NotImplementedError("store runs in compiled loops")


def fetch_add(address: int, value: int) -> int:
    """Add to the integer at `address`, and return what it was."""
    raise NotImplementedError("fetch_add runs in compiled loops")


def compare_exchange(address: int, expected: int, value: int) -> bool:
    """Write the integer at `address` if it is `expected`; return whether it was."""
    raise NotImplementedError("compare_exchange runs in compiled loops")


def pause() -> None:
    """Tell the CPU that the loop waits for another thread."""
    raise NotImplementedError("pause runs in compiled loops")


def call(function: int, a: int, b: int, c: int, d: int) -> int:
    """Return what the C function of four 64-bit integers at an address returns."""
    raise NotImplementedError("call runs in compiled loops")


@functools.cache
def register() -> None:
    """Register the functions above with Numba; comes before loops that call them."""
    from numba import types

    from offgrad.kernels._compilers import intrinsic

    whole = types.int64
    intrinsic(load, whole(whole), _emit_load)
    intrinsic(store, types.void(whole, whole), _emit_store)
    intrinsic(fetch_add, whole(whole, whole), _emit_add)
    intrinsic(compare_exchange, types.boolean(whole, whole, whole), _emit_exchange)
    intrinsic(pause, types.void(), _emit_pause)
    intrinsic(call, whole(whole, whole, whole, whole, whole), _emit_call)


def _cell(builder: Any, address: Any) -> Any:
    from llvmlite import ir  # type: ignore[import-untyped]

    return builder.inttoptr(address, ir.IntType(64).as_pointer())


def _emit_load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.load_atomic(_cell(builder, arguments[0]), "seq_cst", 8)


def _emit_store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    builder.store_atomic(arguments[1], _cell(builder, arguments[0]), "seq_cst", 8)
    return context.get_dummy_value()


def _emit_add(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.atomic_rmw("add", _cell(builder, arguments[0]), arguments[1], "seq_cst")


def _emit_exchange(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    address, expected, value = arguments
    pair = builder.cmpxchg(_cell(builder, address), expected, value, "seq_cst", "seq_cst")
    return builder.extract_value(pair, 1)


def _emit_pause(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    from llvmlite import ir

    if platform.machine() in ("x86_64", "AMD64"):
        nothing = ir.FunctionType(ir.VoidType(), ())
        builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), nothing), ())
    return context.get_dummy_value()


def _emit_call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    from llvmlite import ir

    function, *given = arguments
    whole = ir.IntType(64)
    kind = ir.FunctionType(whole, [whole] * len(given))
    return builder.call(builder.inttoptr(function, kind.as_pointer()), given)
