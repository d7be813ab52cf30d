"""Arithmetic and rounding of large arrays, which threads share without the GIL.

The bits are NumPy's, but for `add_scaled`, `add_product`, and the sign of the larger or smaller of
two zeros.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._elementary_math import larger, smaller
from offgrad.kernels._jit import Kernel, inlined, jit, uses_numba
from offgrad.kernels._parallel import parallel_for


def arithmetic_loop(ufunc: Any, arrays: list[Array], out: Array) -> partial[None] | None:
    """Return the body of a `parallel_for` over the elements of ``ufunc(*arrays, out=out)``.

    None where NumPy computes it.

    Args:
        ufunc: one of NumPy's.
        arrays: of one dimension; one of two may have a single element.
        out: of one dimension.
    """
    loops = LOOPS.get(ufunc)
    if loops is None or len(arrays) != ufunc.nin or not uses_numba(*arrays, out):
        return None
    a, b = arrays[0], arrays[-1]
    if a.dtype != out.dtype or b.dtype != out.dtype:
        return None
    if ufunc.nin == 1:
        return partial(loops[0], a, out) if a.size == out.size else None
    if a.size == b.size == out.size:
        return partial(loops[0], a, b, out)
    if a.size == out.size:
        return partial(loops[1], a, b[0], out)
    return partial(loops[2], b, a[0], out) if b.size == out.size else None


def add_scaled(a: Array, b: Array, factor: Any, out: Array) -> None:
    """Write ``a + factor * b`` into `out`; `a` and `b` broadcast.

    Float32 and float64 of one shape and memory order are computed in one pass, and rounded once
    where the CPU can.
    """
    arrays = (a, b, out)
    is_flat = all(each.shape == out.shape and each.flags.c_contiguous for each in arrays)
    if is_flat and a.dtype == b.dtype == out.dtype and uses_numba(*arrays):
        flats = a.reshape(-1), b.reshape(-1), out.dtype.type(factor), out.reshape(-1)
        parallel_for(partial(_add_scaled_loop, *flats), out.size, merge=True)
    else:
        np.add(a, b * out.dtype.type(factor), out=out)


def add_product(a: Array, b: Array, c: Array, factor: Any, out: Array) -> None:
    """Write ``a + (factor * b) * c`` into `out`; the arrays broadcast.

    Float32 and float64 of one shape and memory order are computed in one pass, in which the last
    product is not rounded where the CPU can.
    """
    arrays = (a, b, c, out)
    is_flat = all(each.shape == out.shape and each.flags.c_contiguous for each in arrays)
    if is_flat and len({each.dtype for each in arrays}) == 1 and uses_numba(*arrays):
        flats = a.reshape(-1), b.reshape(-1), c.reshape(-1), out.reshape(-1)
        parallel_for(
            partial(_add_product_loop, out.dtype.type(factor), *flats), out.size, merge=True
        )
    else:
        np.add(a, (b if factor == 1 else b * out.dtype.type(factor)) * c, out=out)


def may_be_in_place(out: Array, b: Array) -> bool:
    """Whether `in_place` takes an array `b` for `out`."""
    return (
        type(out) is type(b) is np.ndarray
        and out.dtype.char in "fd"
        and out.dtype == b.dtype
        and out.shape == b.shape
        and out.flags.c_contiguous
        and b.flags.c_contiguous
        and not np.may_share_memory(out, b)
    )


@np.errstate(all="ignore")
def in_place(ufunc: Any, out: Array, b: Array, factor: Any = 1) -> None:
    """Write ``ufunc(out, factor * b)`` into `out`, rounded as by `add_scaled`.

    Args:
        ufunc: np.add, np.subtract, np.multiply or np.divide; `factor` is for the first two.
        out: C-contiguous float32 or float64.
        b: as `out`, in other memory, or a single element of its dtype. LLVM vectorises no loop over
            an array that another argument is as well.
    """
    number = out.dtype.type
    if not uses_numba(out, b):
        ufunc(out, b if factor == 1 else b * number(factor), out=out)
        return
    of_array, of_number = _IN_PLACE[ufunc]
    flat = out.reshape(-1)
    factor = number(-factor if ufunc is np.subtract else factor)
    if b.size == out.size:
        body = partial(of_array, flat, factor, b.reshape(-1))
    else:
        body = partial(of_number, flat, factor * b.reshape(-1)[0])
    parallel_for(body, flat.size, merge=True)


@inlined
def quotient(a: Any, b: Any) -> Any:
    """Return a / b, rounded once: a helper's arithmetic is not rearranged."""
    return a / b


@inlined
def _sum_with_product(a: Any, b: Any, c: Any, factor: Any) -> Any:
    return a + factor * b * c


@inlined
def _negative(a: Any) -> Any:
    return -a


@inlined
def _absolute(a: Any) -> Any:
    return abs(a)


@inlined
def _root(a: Any) -> Any:
    return np.sqrt(a)


@inlined
def _floor(a: Any) -> Any:
    return np.floor(a)


@inlined
def _ceil(a: Any) -> Any:
    return np.ceil(a)


@inlined
def _trunc(a: Any) -> Any:
    return np.trunc(a)


@inlined
def _rint(a: Any) -> Any:
    return np.rint(a)


@jit
def _add_loop(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = a[i] + b[i]


@jit
def _subtract_loop(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = a[i] - b[i]


@jit
def _multiply_loop(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = a[i] * b[i]


@jit
def _divide_loop(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = quotient(a[i], b[i])


@jit
def _add_scaled_loop(a: Any, b: Any, factor: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = a[i] + factor * b[i]


@jit
def _add_product_loop(factor: Any, a: Any, b: Any, c: Any, out: Any, start: int, stop: int) -> None:
    a, b, c, out = a[start:stop], b[start:stop], c[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = _sum_with_product(a[i], b[i], c[i], factor)


@jit
def _add_number_loop(a: Any, number: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = a[i] + number


@jit
def _subtract_number_loop(a: Any, number: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = a[i] - number


@jit
def _subtract_from_number_loop(a: Any, number: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = number - a[i]


@jit
def _multiply_by_number_loop(a: Any, number: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = a[i] * number


@jit
def _divide_by_number_loop(a: Any, number: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = quotient(a[i], number)


@jit
def _divide_number_loop(a: Any, number: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = quotient(number, a[i])


@jit
def _add_in_place_loop(out: Any, factor: Any, b: Any, start: int, stop: int) -> None:
    out, b = out[start:stop], b[start:stop]
    for i in range(out.size):
        out[i] += factor * b[i]


@jit
def _multiply_in_place_loop(out: Any, _: Any, b: Any, start: int, stop: int) -> None:
    out, b = out[start:stop], b[start:stop]
    for i in range(out.size):
        out[i] *= b[i]


@jit
def _divide_in_place_loop(out: Any, _: Any, b: Any, start: int, stop: int) -> None:
    out, b = out[start:stop], b[start:stop]
    for i in range(out.size):
        out[i] = quotient(out[i], b[i])


@jit
def _add_number_in_place_loop(out: Any, number: Any, start: int, stop: int) -> None:
    out = out[start:stop]
    for i in range(out.size):
        out[i] += number


@jit
def _multiply_by_number_in_place_loop(out: Any, number: Any, start: int, stop: int) -> None:
    out = out[start:stop]
    for i in range(out.size):
        out[i] *= number


@jit
def _divide_by_number_in_place_loop(out: Any, number: Any, start: int, stop: int) -> None:
    out = out[start:stop]
    for i in range(out.size):
        out[i] = quotient(out[i], number)


@jit
def _maximum_loop(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = larger(a[i], b[i])


@jit
def _maximum_with_number_loop(a: Any, number: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = larger(a[i], number)


@jit
def _minimum_loop(a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = smaller(a[i], b[i])


@jit
def _minimum_with_number_loop(a: Any, number: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = smaller(a[i], number)


@jit
def _negative_loop(a: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = _negative(a[i])


@jit
def _absolute_loop(a: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = _absolute(a[i])


@jit
def _square_loop(a: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = a[i] * a[i]


@jit
def _root_loop(a: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = _root(a[i])


@jit
def _reciprocal_loop(a: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = quotient(out.dtype.type(1), a[i])


@jit
def _floor_loop(a: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = _floor(a[i])


@jit
def _ceil_loop(a: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = _ceil(a[i])


@jit
def _trunc_loop(a: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = _trunc(a[i])


@jit
def _rint_loop(a: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = _rint(a[i])


_IN_PLACE: dict[Any, tuple[Kernel[..., None], Kernel[..., None]]] = {
    np.add: (_add_in_place_loop, _add_number_in_place_loop),
    np.subtract: (_add_in_place_loop, _add_number_in_place_loop),
    np.multiply: (_multiply_in_place_loop, _multiply_by_number_in_place_loop),
    np.divide: (_divide_in_place_loop, _divide_by_number_in_place_loop),
}

LOOPS: dict[Any, tuple[Kernel[..., None], ...]] = {
    np.add: (_add_loop, _add_number_loop, _add_number_loop),
    np.subtract: (_subtract_loop, _subtract_number_loop, _subtract_from_number_loop),
    np.multiply: (_multiply_loop, _multiply_by_number_loop, _multiply_by_number_loop),
    np.divide: (_divide_loop, _divide_by_number_loop, _divide_number_loop),
    np.maximum: (_maximum_loop, _maximum_with_number_loop, _maximum_with_number_loop),
    np.minimum: (_minimum_loop, _minimum_with_number_loop, _minimum_with_number_loop),
    np.negative: (_negative_loop,),
    np.absolute: (_absolute_loop,),
    np.square: (_square_loop,),
    np.sqrt: (_root_loop,),
    np.reciprocal: (_reciprocal_loop,),
    np.floor: (_floor_loop,),
    np.ceil: (_ceil_loop,),
    np.trunc: (_trunc_loop,),
    np.rint: (_rint_loop,),
}
"""Of each function of two arrays: the loop of two arrays, of an array and a number, of a number and
an array. Of one of one array: its loop.
"""
