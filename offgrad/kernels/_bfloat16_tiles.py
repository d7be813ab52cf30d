"""Small products of bfloat16 with sums in float32, for compiled loops: AMX and AVX512-BF16.

Both instruction sets multiply pairs: two neighbours along the depth make one 32-bit number. Each
sum takes the products in order of the depth; numbers below 1.2e-38 count as 0.

Source of the instructions: Intel, "Intel Architecture Instruction Set Extensions and Future
Features", TDPBF16PS and VDPBF16PS.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings
from typing import Any

import numpy as np

from offgrad.kernels._array_tables import register as register_arrays
from offgrad.kernels._jit import backend
from offgrad.kernels._product_tiles import register as register_tiles

VARIABLE = "OFFGRAD_BFLOAT16"

WIDTH = 32
"""Columns of a tile, two vectors."""

DEPTH = 32
"""Numbers along the depth that AMX multiplies at once; packed matrices have whole ones."""

MAX_HEIGHT = 32
"""Rows of a tile, at most."""

_NEEDS = {
    "amx": {"+amx-tile", "+amx-bf16", "+avx512bf16", "+avx512f"},
    "avx512": {"+avx512bf16", "+avx512f"},
}
_AHEAD_ROWS = 4  # of the next tile that a step fetches

_HEIGHTS = {"amx": 32, "avx512": 12}
_KINDS: dict[str, Any] = {"amx": np.uint8(0), "avx512": np.uint16(0)}

# Linux lets a process use the tiles of AMX after this request.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18

_CONFIG = np.zeros(64, np.uint8)
_CONFIG[0] = 1
_CONFIG[16:32].view(np.uint16)[:] = 64  # bytes of a tile's rows
_CONFIG[48:56] = 16  # rows of a tile


@functools.cache
def instructions() -> str:
    """Return the instructions that multiply bfloat16: "amx", "avx512", or "" for none.

    The fastest that the CPU, Numba and the system allow, or those that OFFGRAD_BFLOAT16 names:
    "amx", "avx512" or "float32".
    """
    if backend() != "numba":
        return ""
    wanted = os.environ.get(VARIABLE, "")
    cpu, features = _target()
    usable = [each for each in available(features) if each != "amx" or _has_permission()]
    if not wanted:
        return fastest(cpu, usable)
    if wanted not in usable and wanted != "float32":
        warnings.warn(
            f"{VARIABLE} must be one of {', '.join([*usable, 'float32'])} on this machine, got "
            f"{wanted!r}: products of bfloat16 are computed in float32",
            RuntimeWarning,
            stacklevel=2,
        )
    return wanted if wanted in usable else ""


def available(features: str) -> list[str]:
    """Return the names of instructions that a CPU with these LLVM features has, the best first."""
    has = set(features.split(","))
    return [name for name, needs in _NEEDS.items() if needs <= has]


def fastest(cpu: str, usable: list[str]) -> str:
    """Return which of some instructions are faster than float32 on a CPU of this LLVM name.

    AVX512-BF16 multiplies twice as many numbers as float32 on AMD's Zen 4 and 5, but measured on
    Intel's Emerald Rapids it takes 1.4 times as long.
    """
    return next((each for each in usable if each == "amx" or cpu.startswith("znver")), "")


def _target() -> tuple[str, str]:
    """Return the CPU and the features for which Numba compiles; its settings change them."""
    try:
        from numba.core.registry import cpu_target

        _, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    except (ImportError, AttributeError, ValueError):
        return "", ""
    return str(cpu), str(features)


def _has_permission() -> bool:
    if sys.platform != "linux":
        return False
    try:
        system = ctypes.CDLL(None).syscall
        return bool(system(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)
    except (OSError, AttributeError):
        return False


def height(name: str) -> int:
    """Return the rows of a tile."""
    return _HEIGHTS[name]


def kind(name: str) -> Any:
    """Return the number whose type selects the instructions in the functions below."""
    return _KINDS[name]


def config_address() -> int:
    """Return the address of AMX's configuration."""
    return int(_CONFIG.ctypes.data)


def begin(kind: Any, config: int) -> None:
    """Prepare the CPU for `multiply_pairs`, in compiled loops only."""
    raise NotImplementedError("begin runs in compiled loops")


def end(kind: Any) -> None:
    """Free the CPU's tiles, in compiled loops only."""
    raise NotImplementedError("end runs in compiled loops")


def multiply_pairs(
    kind: Any, a: int, a_stride: int, panel: int, pairs: int, out: int, ahead: int
) -> None:
    """Write a b into `out`, in compiled loops only.

    Args:
        kind: of the instructions.
        a: address of [height, 2 pairs] bfloat16, whose rows begin `a_stride` bytes apart.
        a_stride: see a.
        panel: address of b as [pairs, WIDTH, 2], C-contiguous.
        pairs: a multiple of half of `DEPTH`.
        out: address of [height, WIDTH] float32, C-contiguous.
        ahead: address of two rows, like those of a, to fetch into the cache meanwhile.
    """
    raise NotImplementedError("multiply_pairs runs in compiled loops")


def multiply_split(
    kind: Any, steps: int, a: int, b: int, start: int, start_stride: int, out: int, stride: int,
    ahead: int,
) -> None:  # fmt: skip
    """Write start + a b of split numbers into `out`, with AMX, in compiled loops only.

    Args:
        kind: of the instructions.
        steps: number of steps along the depth, each of `DEPTH` numbers.
        a: address of [steps, high and low, 2, 16 rows, 16 pairs].
        b: address of [steps, high and low, 2, 16 pairs, 16 columns].
        start: address of [32, 32] float32, whose rows begin `start_stride` bytes apart; 0 for
            equal rows.
        start_stride: see start.
        out: address of [32, 32] float32, whose rows begin `stride` bytes apart.
        stride: see out.
        ahead: address of a tile as `out`, to fetch into the cache meanwhile.
    """
    raise NotImplementedError("multiply_split runs in compiled loops")


def split(first: int, second: int, high: int, low: int, ahead: int, interleaves: bool) -> None:
    """Split float32 into two bfloat16 each, in compiled loops only.

    Args:
        first, second: addresses of 16 float32.
        high: address of 32 bfloat16, the rounded numbers.
        low: address of 32 bfloat16, the rest of each, rounded.
        ahead: bytes from both to numbers that are split later, to fetch into the cache.
        interleaves: whether to write pairs of a number of `first` and one of `second`.
    """
    raise NotImplementedError("split runs in compiled loops")


def is_finite(tile: int, stride: int) -> bool:
    """Whether all of [32, 32] float32 are finite, in compiled loops only.

    Args:
        tile: address.
        stride: bytes from one row to the next.
    """
    raise NotImplementedError("is_finite runs in compiled loops")


def round_row(sums: int, bias: int, out: int) -> None:
    """Write `WIDTH` sums plus `bias` as bfloat16, below 1.2e-38 as 0, in compiled loops only.

    Args:
        sums, bias: addresses of float32 numbers.
        out: address.
    """
    raise NotImplementedError("round_row runs in compiled loops")


@functools.cache
def register() -> None:
    """Register the functions above with Numba; comes before loops that call them."""
    from numba import types
    from numba.extending import intrinsic

    from offgrad.kernels._compilers import overload

    register_arrays()
    register_tiles()

    def emitted(emit: Any, result: Any = types.void) -> Any:
        def typed(_: Any, arguments: Any) -> Any:
            return result(arguments), functools.partial(_unpacked, emit)

        return intrinsic(typed)

    configured, released = emitted(_emit_configure), emitted(_emit_release)
    tiles, dots = emitted(_emit_tiles), emitted(_emit_dots)
    rounded, products = emitted(_emit_rounded), emitted(_emit_split_products)
    row, pairs = (emitted(functools.partial(_emit_split, each)) for each in (False, True))
    finite = emitted(_emit_is_finite, types.boolean)

    def amx_begin(kind: Any, config: Any) -> None:
        configured((config,))

    def amx_end(kind: Any) -> None:
        released(())

    def amx_multiply(
        kind: Any, a: Any, a_stride: Any, panel: Any, pairs: Any, out: Any, ahead: Any
    ) -> None:
        tiles((a, a_stride, panel, pairs // 16, out, ahead))

    def avx_begin(kind: Any, config: Any) -> None:
        pass

    def avx_end(kind: Any) -> None:
        pass

    def avx_multiply(
        kind: Any, a: Any, a_stride: Any, panel: Any, pairs: Any, out: Any, ahead: Any
    ) -> None:
        dots((a, a_stride, panel, pairs, out))

    def round_(sums: Any, bias: Any, out: Any) -> None:
        rounded((sums, bias, out))

    def amx_split(  # type: ignore[no-untyped-def]
        kind, steps, a, b, start, start_stride, out, stride, ahead
    ):
        products((steps, a, b, start, start_stride, out, stride, ahead))

    def split_(first: Any, second: Any, high: Any, low: Any, ahead: Any, interleaves: Any) -> None:
        if interleaves:
            pairs((first, second, high, low, ahead))
        else:
            row((first, second, high, low, ahead))

    def is_finite_(tile: Any, stride: Any) -> Any:
        return finite((tile, stride))

    overload(round_row, lambda *_: round_)
    overload(split, lambda *_: split_)
    overload(is_finite, lambda *_: is_finite_)
    overload(multiply_split, lambda *_: amx_split)
    for function, amx, avx in (
        (begin, amx_begin, avx_begin),
        (end, amx_end, avx_end),
        (multiply_pairs, amx_multiply, avx_multiply),
    ):
        overload(function, lambda kind, *_, amx=amx, avx=avx: amx if kind == types.uint8 else avx)


def _unpacked(emit: Any, context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Call `emit` with the elements of the tuple that an intrinsic takes."""
    count = len(signature.args[0])
    result = emit(_Emitter(builder), *[builder.extract_value(values[0], i) for i in range(count)])
    return context.get_dummy_value() if result is None else result


class _Emitter:
    def __init__(self, builder: Any) -> None:
        from llvmlite import ir  # type: ignore[import-untyped]

        self.ir, self.builder = ir, builder
        self.byte, self.short, self.whole = (ir.IntType(bits) for bits in (8, 32, 64))
        self.pointer = self.byte.as_pointer()

    def const(self, value: int) -> Any:
        return self.ir.Constant(self.whole, value)

    def tile(self, number: int) -> Any:
        return self.ir.Constant(self.byte, number)

    def beyond(self, address: Any, nbytes: Any) -> Any:
        more = self.const(nbytes) if isinstance(nbytes, int) else nbytes
        return self.builder.add(address, more)

    def at(self, address: Any, kind: Any = None) -> Any:
        pointer = self.pointer if kind is None else kind.as_pointer()
        return self.builder.inttoptr(address, pointer)

    def load(self, address: Any, kind: Any) -> Any:
        result = self.builder.load(self.at(address, kind))
        result.align = 2
        return result

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        function = self.builder.module.globals.get(name)
        if function is None:
            kind = self.ir.FunctionType(result, [each.type for each in arguments])
            function = self.ir.Function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)

    def prefetch(self, address: Any, locality: int = 3) -> None:
        # Data, for reading.
        hints = [self.ir.Constant(self.short, each) for each in (0, locality, 1)]
        self.call("llvm.prefetch.p0i8", self.ir.VoidType(), self.at(address), *hints)

    def instruct(self, name: str, *arguments: Any) -> None:
        self.call(f"llvm.x86.{name}", self.ir.VoidType(), *arguments)

    def loop(self, count: Any, starts: list[Any], steps: list[Any], body: Any) -> None:
        """Emit `count` rounds, at least one, of `body`, with numbers that go on by `steps`."""
        builder, before = self.builder, self.builder.block
        inside, after = (builder.append_basic_block(name) for name in ("depth", "end"))
        builder.branch(inside)
        builder.position_at_end(inside)
        round_ = builder.phi(self.whole)
        round_.add_incoming(self.const(0), before)
        numbers = [builder.phi(self.whole) for _ in starts]
        for phi, start in zip(numbers, starts, strict=True):
            phi.add_incoming(start, before)
        finish = body(before, inside, numbers)
        following = builder.add(round_, self.const(1))
        round_.add_incoming(following, inside)
        for phi, step in zip(numbers, steps, strict=True):
            phi.add_incoming(self.beyond(phi, step), inside)
        finish()
        builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
        builder.position_at_end(after)


def _emit_configure(e: _Emitter, config: Any) -> None:
    e.instruct("ldtilecfg", e.at(config))


def _emit_release(e: _Emitter) -> None:
    e.instruct("tilerelease")


def _emit_tiles(
    e: _Emitter, a: Any, a_stride: Any, panel: Any, rounds: Any, out: Any, ahead: Any
) -> None:
    """Tiles 0 to 3 are the sums, 4 and 5 of a, 6 and 7 of b."""
    line = e.const(4 * WIDTH)
    half = e.builder.mul(a_stride, e.const(16))
    for number in range(4):
        e.instruct("tilezero", e.tile(number))

    def body(before: Any, inside: Any, numbers: list[Any]) -> Any:
        top, left, later = numbers
        for address in (later, e.beyond(later, a_stride)):
            e.prefetch(address)
        for number, address, stride in (
            (4, top, a_stride),
            (6, left, line),
            (5, e.beyond(top, half), a_stride),
            (7, e.beyond(left, 64), line),
        ):
            e.instruct("tileloadd64", e.tile(number), e.at(address), stride)
        for number in range(4):
            factors = e.tile(4 + number // 2), e.tile(6 + number % 2)
            e.instruct("tdpbf16ps", e.tile(number), *factors)
        return lambda: None

    e.loop(rounds, [a, panel, ahead], [2 * DEPTH, 16 * 4 * WIDTH, 2 * DEPTH], body)
    for number in range(4):
        target = e.beyond(out, number // 2 * 16 * 4 * WIDTH + number % 2 * 64)
        e.instruct("tilestored64", e.tile(number), e.at(target), line)


def _emit_split_products(
    e: _Emitter, steps: Any, a: Any, b: Any, start: Any, start_stride: Any, out: Any, stride: Any,
    ahead: Any,
) -> None:  # fmt: skip
    """Tiles 0 to 3 are the sums, 4 and 5 of a, 6 and 7 of b; each part is loaded where needed."""
    line, tile = e.const(64), 1024
    rows = e.const(_AHEAD_ROWS)

    def each_sum(instruction: str, address: Any, stride: Any) -> None:
        below = e.builder.mul(stride, e.const(16))
        for number in range(4):
            at = e.beyond(address, number % 2 * 64)
            at = e.beyond(at, below) if number > 1 else at
            e.instruct(instruction, e.tile(number), e.at(at), stride)

    def body(before: Any, inside: Any, numbers: list[Any]) -> Any:
        of_a, of_b, later = numbers
        for row in range(_AHEAD_ROWS):
            address = e.beyond(later, e.builder.mul(stride, e.const(row)))
            for at in (0, 64):
                e.prefetch(e.beyond(address, at))
        # In the order low high, high high, high low, neighbours share a factor, which stays loaded.
        for loads in (((4, of_a, 2), (6, of_b, 0)), ((4, of_a, 0),), ((6, of_b, 2),)):
            for number, address, at in loads:
                for i in range(2):
                    place = e.at(e.beyond(address, (at + i) * tile))
                    e.instruct("tileloadd64", e.tile(number + i), place, line)
            for number in range(4):
                factors = e.tile(4 + number // 2), e.tile(6 + number % 2)
                e.instruct("tdpbf16ps", e.tile(number), *factors)
        return lambda: None

    each_sum("tileloadd64", start, start_stride)
    e.loop(steps, [a, b, ahead], [4 * tile, 4 * tile, e.builder.mul(stride, rows)], body)
    each_sum("tilestored64", out, stride)


def _emit_split(
    interleaves: bool, e: _Emitter, first: Any, second: Any, high: Any, low: Any, ahead: Any
) -> None:
    ir, builder = e.ir, e.builder
    vector, bits = ir.VectorType(ir.FloatType(), 16), ir.VectorType(ir.IntType(16), 32)
    halves = [[16 * half + i for i in range(16)] for half in range(2)]

    def places(numbers: list[int]) -> Any:
        return ir.Constant(ir.VectorType(e.short, len(numbers)), numbers)

    def rounded(numbers: list[Any]) -> Any:
        name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        result = e.call(name, ir.VectorType(_bfloat(), 32), numbers[1], numbers[0])
        return builder.bitcast(result, bits)

    def store(parts: Any, address: Any) -> None:
        if interleaves:
            mixed = [16 * half + i for i in range(16) for half in range(2)]
            parts = builder.shuffle_vector(parts, parts, places(mixed))
        builder.store(parts, e.at(address, bits)).align = 2

    for each in (first, second):
        e.prefetch(e.beyond(each, ahead), 2)
    numbers = [e.load(each, vector) for each in (first, second)]
    parts = rounded(numbers)
    store(parts, high)
    whole = ir.VectorType(e.short, 16)
    rests = []
    for half, number in zip(halves, numbers, strict=True):
        wide = builder.zext(builder.shuffle_vector(parts, parts, places(half)), whole)
        moved = builder.shl(wide, ir.Constant(whole, [16] * 16))
        rests.append(builder.fsub(number, builder.bitcast(moved, vector)))
    store(rounded(rests), low)


def _emit_is_finite(e: _Emitter, tile: Any, stride: Any) -> Any:
    """Numbers less themselves add up to 0, unless one is infinite or not a number."""
    ir, builder = e.ir, e.builder
    vector = ir.VectorType(ir.FloatType(), 16)
    totals = [ir.Constant(vector, [0.0] * 16)] * 4
    for row in range(WIDTH):
        address = e.beyond(tile, builder.mul(stride, e.const(row)))
        for at in range(2):
            number = e.load(e.beyond(address, 64 * at), vector)
            which = row % 2 * 2 + at
            totals[which] = builder.fadd(totals[which], builder.fsub(number, number))
    total = functools.reduce(builder.fadd, totals)
    zeros = builder.fcmp_ordered("==", total, ir.Constant(vector, [0.0] * 16))
    bits = builder.bitcast(zeros, ir.IntType(16))
    return builder.icmp_unsigned("==", bits, ir.Constant(ir.IntType(16), 0xFFFF))


def _emit_dots(e: _Emitter, a: Any, a_stride: Any, panel: Any, pairs: Any, out: Any) -> None:
    """Sums of a few rows of two vectors stay in registers."""
    ir, builder = e.ir, e.builder
    sums_type, pairs_type = ir.VectorType(ir.FloatType(), 16), ir.VectorType(e.short, 16)
    factor_type = ir.VectorType(_bfloat(), 32)
    undefined = ir.Constant(pairs_type, ir.Undefined)
    rows, new = _HEIGHTS["avx512"], []

    def body(before: Any, inside: Any, numbers: list[Any]) -> Any:
        top, left = numbers
        sums = [builder.phi(sums_type) for _ in range(2 * rows)]
        for each in sums:
            each.add_incoming(ir.Constant(sums_type, [0.0] * 16), before)
        factors = [
            builder.bitcast(e.load(e.beyond(left, at), pairs_type), factor_type) for at in (0, 64)
        ]
        for row in range(rows):
            address = e.beyond(top, builder.mul(a_stride, e.const(row)))
            single = e.load(address, e.short)
            vector = builder.insert_element(undefined, single, ir.Constant(e.short, 0))
            zeros = ir.Constant(pairs_type, [0] * 16)
            spread = builder.bitcast(builder.shuffle_vector(vector, undefined, zeros), factor_type)
            for at, factor in enumerate(factors):
                total = sums[2 * row + at]
                name = "llvm.x86.avx512bf16.dpbf16ps.512"
                new.append(e.call(name, sums_type, total, spread, factor))

        def finish() -> None:
            for each, value in zip(sums, new, strict=True):
                each.add_incoming(value, inside)

        return finish

    e.loop(pairs, [a, panel], [4, 4 * WIDTH], body)
    for number, value in enumerate(new):
        builder.store(value, e.at(e.beyond(out, 64 * number), sums_type)).align = 4


def _emit_rounded(e: _Emitter, sums: Any, bias: Any, out: Any) -> None:
    ir = e.ir
    vector, result = ir.VectorType(ir.FloatType(), 16), ir.VectorType(_bfloat(), 32)
    low, high = (
        e.builder.fadd(*[e.load(e.beyond(each, at), vector) for each in (sums, bias)])
        for at in (0, 64)
    )
    numbers = e.call("llvm.x86.avx512bf16.cvtne2ps2bf16.512", result, high, low)
    bits = ir.VectorType(e.short, 16)
    e.builder.store(e.builder.bitcast(numbers, bits), e.at(out, bits)).align = 2


@functools.cache
def _bfloat() -> Any:
    """Return LLVM's type of bfloat16, which llvmlite lacks."""
    from llvmlite import ir

    class BFloat(ir.types._BaseFloatType):  # type: ignore[misc]
        null = "0.0"
        intrinsic_name = "bf16"

        def __str__(self) -> str:
            return "bfloat"

    BFloat._create_instance()
    return BFloat()
