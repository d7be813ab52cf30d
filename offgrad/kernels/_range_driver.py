"""How loops over ranges are compiled: so that several threads share the ranges of one call.

A loop whose last parameters are `start` and `stop`, or `start`, `stop` and `worker`, computes one
range when it is called with numbers. Called with the address of ranges and, as `stop`, the negative
address of the pool's cells (see `_shared_ranges`), it offers all of these ranges to the pool's
threads. Numba converts the call's arguments once, and no thread needs the GIL for a range.

Between the converted arguments and the loop stands the driver, a function of the loop's own type:
it keeps the arguments on the stack, and gives the pool the address of a C function that computes
one range of them.
"""

from __future__ import annotations

from typing import Any

VERSION = b"6"
"""Part of the names of compiled loops in the cache: a change here or of `_compilers` makes it
another one."""

LEAD = 2
"""The pool's cell with the address of the function that leads a call; see `_shared_ranges`."""

FAILED_ELSEWHERE = 1 << 32
"""What that function returns if a range failed on another thread."""

_PARAMETERS = ("start", "stop", "worker")

_FIRST = 2
"""Arguments of a compiled function before the loop's own: the result and the exception."""


def has_ranges(names: tuple[str, ...]) -> bool:
    """Return whether a loop with parameters of these names computes ranges."""
    return names[-2:] == _PARAMETERS[:2] or names[-3:] == _PARAMETERS


def create_wrapper(lower: Any, release_gil: bool) -> None:
    """Add the function that Python calls to a loop's library: it calls the driver."""
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba.core.callwrapper import PyCallWrapper

    context, fndesc = lower.context, lower.fndesc
    module = context.create_module("wrapper")
    kind = context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes)
    loop = ir.Function(module, kind, fndesc.llvm_func_name)
    driver = _emit_driver(context, module, loop, fndesc)
    PyCallWrapper(
        context, module, driver, fndesc, lower.env, lower.call_helper, release_gil
    ).build()
    lower.library.add_ir_module(module)


def _emit_driver(context: Any, module: Any, loop: Any, fndesc: Any) -> Any:
    from llvmlite import ir

    whole = ir.IntType(64)
    kinds = loop.function_type.args  # result, exception, and the arguments' parts
    kept = ir.LiteralStructType(kinds[1:])
    last = -3 if fndesc.args[-1] == _PARAMETERS[-1] else -2  # `start`
    compute = _emit_range(context, module, loop, kept, last)
    driver = ir.Function(module, loop.function_type, f"{fndesc.llvm_func_name}.driver")
    driver.linkage = "internal"
    builder = ir.IRBuilder(driver.append_basic_block("entry"))
    arguments = builder.alloca(kept)
    given = [*driver.args]
    for number in _counts(context, fndesc.argtypes):
        given[_FIRST + number] = ir.Constant(given[_FIRST + number].type, None)
    start, stop = given[last], given[last + 1]
    is_one_range = builder.icmp_signed(">=", stop, ir.Constant(whole, 0))
    with builder.if_then(is_one_range, likely=False):
        builder.ret(builder.call(loop, given, attrs=("noinline",)))
    for number, value in enumerate(given[1:]):
        builder.store(value, _field(builder, arguments, number))
    pool = builder.neg(stop)
    lead_kind = ir.FunctionType(whole, [whole] * 4).as_pointer()
    cell = builder.add(pool, ir.Constant(whole, LEAD * 8))
    lead = builder.inttoptr(builder.load(builder.inttoptr(cell, whole.as_pointer())), lead_kind)
    code = builder.call(
        lead,
        (pool, start, builder.ptrtoint(compute, whole), builder.ptrtoint(arguments, whole)),
    )
    is_elsewhere = builder.icmp_signed("==", code, ir.Constant(whole, FAILED_ELSEWHERE))
    with builder.if_then(is_elsewhere, likely=False):
        context.call_conv.return_user_exc(
            builder, MemoryError, ("a range of the loop failed on another thread",)
        )
    builder.ret(builder.trunc(code, loop.function_type.return_type))
    return driver


def _counts(context: Any, kinds: Any) -> list[int]:
    """Return which of the arguments' parts point to counts of references to arrays.

    The caller holds the arrays. Without these pointers a loop counts nothing: each slice would
    count twice, and threads would compete for the counts.
    """
    from numba import types

    counts, at = [], 0
    for kind in kinds:
        if isinstance(kind, types.BaseTuple):
            counts += [at + each for each in _counts(context, kind.types)]
        elif isinstance(kind, types.Array):
            counts.append(at)
        at += _number_of_parts(context.data_model_manager[kind].get_argument_type())
    return counts


def _number_of_parts(part: Any) -> int:
    return sum(map(_number_of_parts, part)) if isinstance(part, (tuple, list)) else 1


def _emit_range(context: Any, module: Any, loop: Any, kept: Any, last: int) -> Any:
    """Emit a C function of kept arguments, start, stop and worker, which returns 0 or an error."""
    from llvmlite import ir
    from numba.core.callconv import RETCODE_NONE, RETCODE_OK

    whole = ir.IntType(64)
    compute = ir.Function(module, ir.FunctionType(whole, [whole] * 4), f"{loop.name}.range")
    compute.linkage = "internal"
    builder = ir.IRBuilder(compute.append_basic_block("entry"))
    arguments, start, stop, worker = compute.args
    kept_at = builder.inttoptr(arguments, kept.as_pointer())
    given = [builder.load(_field(builder, kept_at, number)) for number in range(len(kept.elements))]
    given[last], given[last + 1] = start, stop
    if last == -3:
        given[-1] = worker
    # The thread that called the loop raises its exception; those of others are dropped.
    dropped = builder.alloca(given[0].type.pointee)
    is_caller = builder.icmp_signed("==", worker, ir.Constant(whole, 0))
    given[0] = builder.select(is_caller, given[0], dropped)
    result = builder.alloca(loop.function_type.args[0].pointee)
    code = builder.call(loop, (result, *given), attrs=("noinline",))
    is_ok, is_none = (builder.icmp_signed("==", code, each) for each in (RETCODE_OK, RETCODE_NONE))
    is_fine = builder.or_(is_ok, is_none)
    builder.ret(builder.select(is_fine, ir.Constant(whole, 0), builder.sext(code, whole)))
    return compute


def _field(builder: Any, struct: Any, number: int) -> Any:
    from llvmlite import ir

    index = ir.IntType(32)
    return builder.gep(struct, (ir.Constant(index, 0), ir.Constant(index, number)), inbounds=True)
