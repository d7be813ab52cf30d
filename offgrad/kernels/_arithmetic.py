"""Arithmetic and rounding of large arrays, which threads share without the GIL.

The bits are NumPy's, but for `add_scaled`, `add_product`, and the sign of the larger or smaller of
two zeros.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._elementary_math import larger, smaller
from offgrad.kernels._jit import Kernel, inlined, jit, loop_of, uses_numba
from offgrad.kernels._loop_templates import (
    array_and_number,
    array_in_place,
    number_and_array,
    number_in_place,
    one_array,
    two_arrays,
)
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
def _sum_with_scaled(a: Any, factor: Any, b: Any) -> Any:
    return a + factor * b


@inlined
def _sum_with_product(a: Any, b: Any, c: Any, factor: Any) -> Any:
    return a + factor * b * c


@inlined
def _product(a: Any, _: Any, b: Any) -> Any:
    return a * b


@inlined
def _quotient(a: Any, _: Any, b: Any) -> Any:
    return quotient(a, b)


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


@inlined
def _square(a: Any) -> Any:
    return a * a


@inlined
def _reciprocal(a: Any) -> Any:
    return np.reciprocal(a)


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


def _loops(value: Any, commutes: bool) -> tuple[Kernel[..., None], ...]:
    second = loop_of(array_and_number, value)
    first = second if commutes else loop_of(number_and_array, value)
    return loop_of(two_arrays, value), second, first


def _in_place_loops(of_array: Any, of_number: Any) -> tuple[Kernel[..., None], Kernel[..., None]]:
    return loop_of(array_in_place, of_array), loop_of(number_in_place, of_number)


_SUMS_IN_PLACE = _in_place_loops(_sum_with_scaled, operator.add)
_IN_PLACE: dict[Any, tuple[Kernel[..., None], Kernel[..., None]]] = {
    np.add: _SUMS_IN_PLACE,
    np.subtract: _SUMS_IN_PLACE,
    np.multiply: _in_place_loops(_product, operator.mul),
    np.divide: _in_place_loops(_quotient, quotient),
}

LOOPS: dict[Any, tuple[Kernel[..., None], ...]] = {
    np.add: _loops(operator.add, commutes=True),
    np.subtract: _loops(operator.sub, commutes=False),
    np.multiply: _loops(operator.mul, commutes=True),
    np.divide: _loops(quotient, commutes=False),
    np.maximum: _loops(larger, commutes=True),
    np.minimum: _loops(smaller, commutes=True),
    np.negative: (loop_of(one_array, _negative),),
    np.absolute: (loop_of(one_array, _absolute),),
    np.square: (loop_of(one_array, _square),),
    np.sqrt: (loop_of(one_array, _root),),
    np.reciprocal: (loop_of(one_array, _reciprocal),),
    np.floor: (loop_of(one_array, _floor),),
    np.ceil: (loop_of(one_array, _ceil),),
    np.trunc: (loop_of(one_array, _trunc),),
    np.rint: (loop_of(one_array, _rint),),
}
"""Of each function of two arrays: the loop of two arrays, of an array and a number, of a number and
an array. Of one of one array: its loop.
"""
