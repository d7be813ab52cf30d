"""Products of a few rows with one matrix, again and again, inside compiled loops.

A recurrent layer multiplies the same matrix at each step by a state of few rows. BLAS copies the
matrix into panels at each call, which then takes as long as the arithmetic; here `pack` does it
once. The product is a loop over vectors of LLVM, so it needs no BLAS, and each sum runs over the
depth in one order.

Source of the scheme: K. Goto, R. van de Geijn, "Anatomy of high-performance matrix multiplication",
ACM Transactions on Mathematical Software, 2008.
"""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import numpy as np

from offgrad import memory
from offgrad.kernels._arrays import Array
from offgrad.kernels._jit import jit
from offgrad.kernels._parallel import parallel_for
from offgrad.kernels._product_tiles import VECTORS, vector_shape


def width(dtype: np.dtype[Any]) -> int:
    """Return the columns of a panel."""
    return VECTORS * vector_shape()[0] // dtype.itemsize


def pack(matrix: Array, transposed: bool = False) -> Array:
    """Return a copy of a C-contiguous [depth, columns] matrix as [panels, depth, width].

    Columns beyond the last are 0. With `transposed`, the matrix is [columns, depth].
    """
    depth, columns = matrix.shape[::-1] if transposed else matrix.shape
    wide = width(matrix.dtype)
    packed = memory.empty((-(-columns // wide), depth, wide), matrix.dtype)
    body = partial(_pack_loop, matrix, transposed, packed)
    parallel_for(body, len(packed), depth * wide, merge=True)
    return packed


@jit
def _pack_loop(matrix: Any, transposed: bool, packed: Any, start: int, stop: int) -> None:
    _, depth, wide = packed.shape
    columns = matrix.shape[0] if transposed else matrix.shape[1]
    zero = packed.dtype.type(0)
    for panel in range(start, stop):
        first = panel * wide
        count = min(wide, columns - first)
        if transposed:
            # In pieces whose lines of both matrices stay in the cache.
            for start in range(0, depth, 16):
                for j in range(count):
                    row = matrix[first + j]
                    for k in range(start, min(start + 16, depth)):
                        packed[panel, k, j] = row[k]
        else:
            for k in range(depth):
                for j in range(count):
                    packed[panel, k, j] = matrix[k, first + j]
        for k in range(depth):
            for j in range(count, wide):
                packed[panel, k, j] = zero


def add_product(
    a: int,
    a_stride: int,
    rows: int,
    depth: int,
    packed: int,
    panels: int,
    c: int,
    c_stride: int,
    number: Any,
) -> None:
    """Add a b to `c`, in compiled loops only.

    Args:
        a: address of [rows, depth].
        a_stride: elements from one row of `a` to the next.
        rows, depth: sizes; `depth` is not 0.
        packed: address of what `pack` made of b.
        panels: their number.
        c: address of [rows, panels * width].
        c_stride: elements from one row of `c` to the next.
        number: any number of the arrays' dtype.
    """
    raise NotImplementedError("add_product runs in compiled loops")


@functools.cache
def register() -> None:
    """Register `add_product` with Numba."""
    from numba import types
    from numba.extending import intrinsic

    from offgrad.kernels._compilers import overload

    nbytes, most = vector_shape()

    def tile(rows: int) -> Any:
        def typed(_: Any, a: Any, a_stride: Any, depth: Any, b: Any, c: Any, c_stride: Any, n: Any):  # type: ignore[no-untyped-def]
            signature = types.void(*[types.int64] * 6, n)
            return signature, functools.partial(_emit_tile, nbytes, rows)

        return intrinsic(typed)

    tile8, tile4, tile2, tile1 = (tile(rows) for rows in (8, 4, 2, 1))

    def choose(
        a: Any,
        a_stride: Any,
        rows: Any,
        depth: Any,
        packed: Any,
        panels: Any,
        c: Any,
        c_stride: Any,
        number: Any,
    ) -> Any:
        size = number.bitwidth // 8
        row_nbytes = VECTORS * nbytes

        def implementation(
            a: Any,
            a_stride: Any,
            rows: Any,
            depth: Any,
            packed: Any,
            panels: Any,
            c: Any,
            c_stride: Any,
            number: Any,
        ) -> None:
            for panel in range(panels):
                b = packed + panel * depth * row_nbytes
                at = c + panel * row_nbytes
                row = 0
                if most == 8:
                    while rows - row >= 8:
                        x, y = a + row * a_stride * size, at + row * c_stride * size
                        tile8(x, a_stride, depth, b, y, c_stride, number)
                        row += 8
                while rows - row >= 4:
                    x, y = a + row * a_stride * size, at + row * c_stride * size
                    tile4(x, a_stride, depth, b, y, c_stride, number)
                    row += 4
                if rows - row >= 2:
                    x, y = a + row * a_stride * size, at + row * c_stride * size
                    tile2(x, a_stride, depth, b, y, c_stride, number)
                    row += 2
                if rows - row == 1:
                    x, y = a + row * a_stride * size, at + row * c_stride * size
                    tile1(x, a_stride, depth, b, y, c_stride, number)

        return implementation

    overload(add_product, choose)


def _emit_tile(
    nbytes: int, rows: int, context: Any, builder: Any, signature: Any, arguments: Any
) -> Any:
    """Emit c += a b for `rows` rows and one panel: sums stay in registers over the whole depth."""
    from llvmlite import ir  # type: ignore[import-untyped]

    a, a_stride, depth, b, c, c_stride, number = arguments
    size = signature.args[-1].bitwidth // 8
    lanes = nbytes // size
    whole, vector = ir.IntType(64), ir.VectorType(number.type, lanes)
    name = f"llvm.fma.v{lanes}f{8 * size}"
    fma = builder.module.globals.get(name)
    if fma is None:
        fma = ir.Function(builder.module, ir.FunctionType(vector, [vector] * 3), name)

    def const(value: int) -> Any:
        return ir.Constant(whole, value)

    def pointer(address: Any, kind: Any) -> Any:
        return builder.inttoptr(address, kind.as_pointer())

    def load(address: Any) -> Any:
        result = builder.load(pointer(address, vector))
        result.align = size
        return result

    def rows_of(address: Any, stride: Any) -> list[Any]:
        step = builder.mul(stride, const(size))
        return [builder.add(address, builder.mul(step, const(row))) for row in range(rows)]

    places = [
        builder.add(start, const(at * nbytes))
        for start in rows_of(c, c_stride)
        for at in range(VECTORS)
    ]
    initial, starts = [load(place) for place in places], rows_of(a, a_stride)
    before = builder.block
    body, after = builder.append_basic_block("depth"), builder.append_basic_block("end")
    builder.branch(body)
    builder.position_at_end(body)
    k = builder.phi(whole)
    k.add_incoming(const(0), before)
    sums = [builder.phi(vector) for _ in places]
    for each, start in zip(sums, initial, strict=True):
        each.add_incoming(start, before)
    line = builder.add(b, builder.mul(k, const(VECTORS * nbytes)))
    factors = [load(builder.add(line, const(at * nbytes))) for at in range(VECTORS)]
    undefined = ir.Constant(vector, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    new = []
    for row, start in enumerate(starts):
        at = builder.add(start, builder.mul(k, const(size)))
        value = builder.load(pointer(at, number.type))
        single = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        spread = builder.shuffle_vector(single, undefined, zeros)
        for at, factor in enumerate(factors):
            new.append(builder.call(fma, [spread, factor, sums[row * VECTORS + at]]))
    following = builder.add(k, const(1))
    k.add_incoming(following, body)
    for each, value in zip(sums, new, strict=True):
        each.add_incoming(value, body)
    builder.cbranch(builder.icmp_signed("<", following, depth), body, after)
    builder.position_at_end(after)
    for place, value in zip(places, new, strict=True):
        builder.store(value, pointer(place, vector)).align = size
    return context.get_dummy_value()
