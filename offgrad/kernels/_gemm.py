"""BLAS's product of matrices inside compiled loops, called by its address.

A loop that calls BLAS itself needs no Python between its products, whose overhead exceeds the
arithmetic where matrices are small. The address is an argument of the loop, so that a loop from
Numba's cache fits any process; the type of the sizes selects 64-bit or 32-bit integers.
"""

from __future__ import annotations

import functools
from typing import Any

_ROW_MAJOR, _AS_IS = 101, 111  # 112 is transposed


def gemm(
    address: Any,
    integer: Any,
    form: tuple[int, int, int, int, int],
    a: Any,
    b: Any,
    beta: Any,
    c: Any,
) -> None:
    """Write a b + beta c into `c`, in compiled loops only.

    Args:
        address: of cblas_sgemm or cblas_dgemm.
        integer: 0 of BLAS's integer type.
        form: m, n, k, and 1 for each of `a` and `b` that is transposed, else 0. No size is 0;
            arrays may have further rows.
        a: [m, k], or [k, m] if transposed, C-contiguous, as all.
        b: [k, n], or [n, k].
        beta: 0 or 1, in the arrays' dtype.
        c: [m, n], written.
    """
    raise NotImplementedError("gemm runs in compiled loops")


@functools.cache
def register() -> None:
    """Register `gemm` with Numba."""
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import types
    from numba.extending import intrinsic, overload

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
        address: Any,
        integer: Any,
        form: Any,
        a: Any,
        b: Any,
        beta: Any,
        c: Any,
    ) -> None:
        whole, number = type(integer), type(beta)
        call(
            (
                address,
                enum(row_major),
                enum(as_is + form[3]),
                enum(as_is + form[4]),
                whole(form[0]),
                whole(form[1]),
                whole(form[2]),
                number(1),
                a.ctypes.data,
                whole(a.shape[1]),
                b.ctypes.data,
                whole(b.shape[1]),
                beta,
                c.ctypes.data,
                whole(c.shape[1]),
            )
        )

    overload(gemm, strict=False)(lambda *_: implementation)
