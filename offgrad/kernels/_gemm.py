"""BLAS's product of matrices inside compiled loops, called by its address.

A loop that calls BLAS itself needs no Python between its products, whose overhead exceeds the
arithmetic where matrices are small. The address is an argument of the loop, so that a loop from
Numba's cache fits any process; the type of the sizes selects 64-bit or 32-bit integers.
"""

from __future__ import annotations

import functools
from typing import Any

_ROW_MAJOR, _AS_IS = 101, 111  # 112 is transposed


def strided_gemm(
    blas: Any,
    m: int,
    n: int,
    k: int,
    a: int,
    a_stride: int,
    a_transposed: int,
    b: int,
    b_stride: int,
    b_transposed: int,
    beta: Any,
    c: int,
    c_stride: int,
) -> None:
    """Write a b + beta c into `c`, in compiled loops only.

    Args:
        blas: the address of cblas_sgemm or cblas_dgemm, and 0 of BLAS's integer type.
        m, n, k: sizes, none of them 0.
        a: address of [m, k], or [k, m] if `a_transposed` is 1.
        b: address of [k, n], or [n, k] if `b_transposed` is 1.
        beta: 0 or 1, in the arrays' dtype.
        c: address of [m, n], written.
        a_stride, b_stride, c_stride: elements from one row to the next.
    """
    raise NotImplementedError("strided_gemm runs in compiled loops")


@functools.cache
def register() -> None:
    """Register `strided_gemm` with Numba."""
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import types
    from numba.extending import intrinsic

    from offgrad.kernels._compilers import overload

    @intrinsic  # type: ignore[untyped-decorator]
    def call(_: Any, arguments: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            tuple_ = signature.args[0]
            address, *rest = (builder.extract_value(values[0], i) for i in range(len(tuple_)))
            pointer = ir.FunctionType(ir.VoidType(), [each.type for each in rest]).as_pointer()
            builder.call(builder.inttoptr(address, pointer), rest)
            return context.get_dummy_value()

        return types.void(arguments), codegen

    enum = types.int32
    row_major, as_is = _ROW_MAJOR, _AS_IS

    def implementation(
        blas: Any,
        m: Any,
        n: Any,
        k: Any,
        a: Any,
        a_stride: Any,
        a_transposed: Any,
        b: Any,
        b_stride: Any,
        b_transposed: Any,
        beta: Any,
        c: Any,
        c_stride: Any,
    ) -> None:
        address, integer = blas
        whole, number = type(integer), type(beta)
        call(
            (
                address,
                enum(row_major),
                enum(as_is + a_transposed),
                enum(as_is + b_transposed),
                whole(m),
                whole(n),
                whole(k),
                number(1),
                a,
                whole(a_stride),
                b,
                whole(b_stride),
                beta,
                c,
                whole(c_stride),
            )
        )

    overload(strided_gemm, lambda *_: implementation)
