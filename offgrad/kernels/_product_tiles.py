"""Small products in registers, and copies in their order, for compiled loops: vectors of LLVM.

A tile of the result is a few rows of a few vectors, whose sums stay in registers over a block of
the depth. Each sum begins with 0 and takes the products of the block in order; then what stands in
memory is added. So neither sizes nor the place in a matrix changes a bit.

Source of the scheme: K. Goto, R. van de Geijn, "Anatomy of high-performance matrix multiplication",
ACM Transactions on Mathematical Software, 2008.
"""

from __future__ import annotations

import functools
from typing import Any

VECTORS = 3
"""Vectors in a row of a panel, at most."""


@functools.cache
def vector_shape() -> tuple[int, int]:
    """Return the bytes of a vector of this CPU, and the rows that its registers hold at once."""
    from llvmlite import binding  # type: ignore[import-untyped]

    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, 8
    return (32, 4) if features.get("avx2") else (16, 4)


def multiply(
    vectors: int,
    tiles: int,
    rows: int,
    depth: int,
    a: int,
    a_row: int,
    a_depth: int,
    packed: int,
    start: int,
    start_stride: int,
    c: int,
    c_stride: int,
    ahead: int,
    number: Any,
) -> None:
    """Write start + a b into `c`, in compiled loops only.

    Args:
        vectors: in a row of b and c, at most `VECTORS`.
        tiles: number of tiles, at least 1: each is as many rows of c as registers hold.
        rows: rows of `a` in each tile; those of `c` beyond repeat the last.
        depth: not 0.
        a: address of the first row of [tiles * rows, depth].
        a_row, a_depth: elements from one row and one column of `a` to the next.
        packed: address of b, C-contiguous.
        start: address of what is added, which may be `c`.
        start_stride, c_stride: elements from one row to the next; 0 to add the same row to all.
        ahead: bytes from the first row of a tile to a row that is needed later; each tile fetches
            that row and its part of `c` into the cache. 0 where all is there.
        number: any number of the arrays' dtype.
    """
    raise NotImplementedError("multiply runs in compiled loops")


def copy_vector(source: int, target: int, number: Any) -> None:
    """Copy a vector from one address to another, in compiled loops only."""
    raise NotImplementedError("copy_vector runs in compiled loops")


def copy_turned(source: int, stride: int, target: int, target_stride: int, number: Any) -> None:
    """Write the transpose of a square of as many rows as a vector has elements, in loops only.

    Args:
        source: address; its rows begin `stride` elements apart.
        target: address; its rows begin `target_stride` elements apart.
        number: any number of the arrays' dtype.
    """
    raise NotImplementedError("copy_turned runs in compiled loops")


@functools.cache
def register() -> None:
    """Register the functions above with Numba; comes before loops that call them."""
    from numba import types
    from numba.extending import intrinsic

    from offgrad.kernels._compilers import overload

    def emitted(emit: Any, count: int) -> Any:
        def typed(_: Any, arguments: Any) -> Any:
            return types.void(arguments), functools.partial(_unpacked, emit, count)

        return intrinsic(typed)

    tile3, tile2, tile1 = (emitted(_emit_tiles, count) for count in (3, 2, 1))
    copied, turned = emitted(_emit_copy, 1), emitted(_emit_turned, 1)

    def multiply_(  # type: ignore[no-untyped-def]
        vectors, tiles, rows, depth, a, a_row, a_depth, packed, start, start_stride, c, c_stride,
        ahead, number,
    ):  # fmt: skip
        rest = (
            tiles, rows, depth, a, a_row, a_depth, packed, start, start_stride, c, c_stride, ahead,
            number,
        )  # fmt: skip
        if vectors == 3:
            tile3(rest)
        elif vectors == 2:
            tile2(rest)
        else:
            tile1(rest)

    def copy_(source: Any, target: Any, number: Any) -> None:
        copied((source, target, number))

    def turned_(source: Any, stride: Any, target: Any, target_stride: Any, number: Any) -> None:
        turned((source, stride, target, target_stride, number))

    for function, body in ((multiply, multiply_), (copy_vector, copy_), (copy_turned, turned_)):
        overload(function, lambda *_, body=body: body)


class _Emitter:
    """Emits instructions on vectors of `number`'s dtype."""

    def __init__(self, builder: Any, number: Any, nbytes: int, size: int) -> None:
        from llvmlite import ir

        self.ir, self.builder, self.nbytes, self.size = ir, builder, nbytes, size
        self.number, self.lanes = number.type, nbytes // size
        self.vector = ir.VectorType(number.type, self.lanes)
        self.whole, self.short = ir.IntType(64), ir.IntType(32)
        self.undefined = ir.Constant(self.vector, ir.Undefined)

    def const(self, value: int) -> Any:
        return self.ir.Constant(self.whole, value)

    def at(self, address: Any, stride: Any, index: int) -> Any:
        """Return the address of row `index`."""
        step = self.builder.mul(stride, self.const(index * self.size))
        return self.builder.add(address, step)

    def beyond(self, address: Any, nbytes: int) -> Any:
        return self.builder.add(address, self.const(nbytes))

    def _pointer(self, address: Any, kind: Any) -> Any:
        return self.builder.inttoptr(address, kind.as_pointer())

    def load(self, address: Any) -> Any:
        result = self.builder.load(self._pointer(address, self.vector))
        result.align = self.size
        return result

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self._pointer(address, self.vector)).align = self.size

    def spread(self, address: Any) -> Any:
        """Return a vector of the element at `address`."""
        ir = self.ir
        value = self.builder.load(self._pointer(address, self.number))
        single = self.builder.insert_element(self.undefined, value, ir.Constant(self.short, 0))
        return self.shuffle(single, self.undefined, [0] * self.lanes)

    def shuffle(self, a: Any, b: Any, places: list[int]) -> Any:
        ir = self.ir
        mask = ir.Constant(ir.VectorType(self.short, len(places)), places)
        return self.builder.shuffle_vector(a, b, mask)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        kind = self.ir.FunctionType(self.vector, [self.vector] * 3)
        return self._call(f"llvm.fma.v{self.lanes}f{8 * self.size}", kind, [a, b, c])

    def prefetch(self, address: Any) -> None:
        ir = self.ir
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, *[self.short] * 3])
        hints = [ir.Constant(self.short, each) for each in (0, 3, 1)]  # of data, for reading
        pointer = self.builder.inttoptr(address, byte)
        self._call("llvm.prefetch.p0i8", kind, [pointer, *hints])

    def _call(self, name: str, kind: Any, arguments: list[Any]) -> Any:
        function = self.builder.module.globals.get(name)
        if function is None:
            function = self.ir.Function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)


def _unpacked(
    emit: Any, count: int, context: Any, builder: Any, signature: Any, values: Any
) -> Any:
    """Call `emit` with the elements of the tuple that an intrinsic takes; the last is a number."""
    tuple_ = signature.args[0]
    arguments = [builder.extract_value(values[0], i) for i in range(len(tuple_))]
    nbytes, most = vector_shape()
    size = tuple_.types[-1].bitwidth // 8
    emitter = _Emitter(builder, arguments[-1], nbytes, size)
    emit(emitter, count, most, *arguments[:-1])
    return context.get_dummy_value()


def _emit_tiles(
    e: _Emitter,
    vectors: int,
    most: int,
    tiles: Any,
    rows: Any,
    depth: Any,
    a: Any,
    a_row: Any,
    a_depth: Any,
    packed: Any,
    start: Any,
    start_stride: Any,
    c: Any,
    c_stride: Any,
    ahead: Any,
) -> None:
    builder, last = e.builder, e.builder.sub(rows, e.const(1))
    offsets = []
    for row in range(most):
        index = e.const(row)
        index = builder.select(builder.icmp_signed("<", index, last), index, last)
        offsets.append(builder.mul(builder.mul(a_row, index), e.const(e.size)))
    step = builder.mul(a_depth, e.const(e.size))
    before = builder.block
    head, fetch, entry, body, end, after = (
        builder.append_basic_block(name)
        for name in ("tile", "fetch", "entry", "depth", "sums", "end")
    )
    builder.branch(head)
    builder.position_at_end(head)
    tile, top, begin, to = (builder.phi(e.whole) for _ in range(4))
    for phi, value in ((tile, e.const(0)), (top, a), (begin, start), (to, c)):
        phi.add_incoming(value, before)
    lines = [builder.add(top, offset) for offset in offsets]
    later = builder.add(top, ahead)
    builder.cbranch(builder.icmp_signed("!=", ahead, e.const(0)), fetch, entry)
    builder.position_at_end(fetch)
    for row in range(most):
        target = e.at(to, c_stride, row)
        for at in range(vectors):
            e.prefetch(e.beyond(target, at * e.nbytes))
    builder.branch(entry)
    builder.position_at_end(entry)
    builder.branch(body)
    builder.position_at_end(body)
    k, offset, line = (builder.phi(e.whole) for _ in range(3))
    for phi, value in ((k, e.const(0)), (offset, e.const(0)), (line, packed)):
        phi.add_incoming(value, entry)
    sums = [builder.phi(e.vector) for _ in range(most * vectors)]
    for each in sums:
        each.add_incoming(e.ir.Constant(e.vector, [0.0] * e.lanes), entry)
    factors = [e.load(e.beyond(line, at * e.nbytes)) for at in range(vectors)]
    e.prefetch(builder.add(later, offset))
    new = []
    for row, address in enumerate(lines):
        value = e.spread(builder.add(address, offset))
        for at, factor in enumerate(factors):
            new.append(e.fma(value, factor, sums[row * vectors + at]))
    following = builder.add(k, e.const(1))
    k.add_incoming(following, body)
    offset.add_incoming(builder.add(offset, step), body)
    line.add_incoming(e.beyond(line, vectors * e.nbytes), body)
    for each, value in zip(sums, new, strict=True):
        each.add_incoming(value, body)
    builder.cbranch(builder.icmp_signed("<", following, depth), body, end)
    builder.position_at_end(end)
    for row in range(most):
        from_, target = e.at(begin, start_stride, row), e.at(to, c_stride, row)
        for at in range(vectors):
            added = e.load(e.beyond(from_, at * e.nbytes))
            total = builder.fadd(added, new[row * vectors + at])
            e.store(total, e.beyond(target, at * e.nbytes))
    next_tile = builder.add(tile, e.const(1))
    tile.add_incoming(next_tile, end)
    for phi, stride in ((top, a_row), (begin, start_stride), (to, c_stride)):
        phi.add_incoming(e.at(phi, stride, most), end)
    builder.cbranch(builder.icmp_signed("<", next_tile, tiles), head, after)
    builder.position_at_end(after)


def _emit_copy(e: _Emitter, vectors: int, most: int, source: Any, target: Any) -> None:
    e.store(e.load(source), target)


def _emit_turned(
    e: _Emitter, vectors: int, most: int, source: Any, stride: Any, target: Any, target_stride: Any
) -> None:
    lanes = e.lanes
    half = lanes // 2
    places = [[i // 2 + lanes * (i % 2) + start for i in range(lanes)] for start in (0, half)]
    rows = [e.load(e.at(source, stride, row)) for row in range(lanes)]
    for row in range(2 * lanes, 3 * lanes):  # too far apart for the CPU to foresee
        e.prefetch(e.at(source, stride, row))
    # To interleave the first half of all rows with the second, log2(lanes) times, transposes.
    for _ in range(lanes.bit_length() - 1):
        rows = [
            e.shuffle(rows[row], rows[row + half], each) for row in range(half) for each in places
        ]
    for row, value in enumerate(rows):
        e.store(value, e.at(target, target_stride, row))
