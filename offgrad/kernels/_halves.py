"""Conversions between float32 and the floats of 2 bytes, float16 and bfloat16.

NumPy converts float16 one element at a time, and bfloat16 on one thread. These loops work on the
bits as integers, so that they vectorise on every CPU, and round as NumPy does: to the nearest, ties
to even.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from offgrad import memory
from offgrad.kernels._arrays import BITS, Array, is_half
from offgrad.kernels._jit import Kernel, backend, inlined, jit
from offgrad.kernels._parallel import parallel_for

P = ParamSpec("P")
R = TypeVar("R")

FEW = 1024
"""So many elements NumPy converts as fast."""

_SINGLE = np.dtype(np.float32)
_FEW_COLUMNS = 8  # of a row: fewer NumPy converts as fast
_COST = 2  # of an element, in the time that kernels spend on one

converting: set[str] = set()
"""The names of the kernels that `in_float32` decorates."""


def convert(source: Array, target: Array) -> None:
    """Write `source`, of any dtype, into `target`, of the same shape and any other dtype."""
    loop = None
    if source.size > FEW and backend() == "numba":
        if target.dtype == _SINGLE and is_half(source.dtype):
            loop = from_half(source.dtype)
        elif source.dtype == _SINGLE and is_half(target.dtype):
            loop = to_half(target.dtype)
    if loop is not None:
        flats = _flats(source, target)
        if flats is not None:
            parallel_for(partial(loop, *flats), source.size, _COST, merge=True)
            return
        rows = _rows(source, target)
        if rows is not None:
            body = partial(_by_rows(loop), *rows)
            parallel_for(body, source.size // rows[2], _COST * rows[2], merge=True)
            return
    with np.errstate(all="ignore"):
        np.copyto(target, source, casting="unsafe")


def as_float(array: Array) -> Array:
    """Return floats of 1 or 2 bytes as float32, in their memory order; other arrays themselves."""
    if array.dtype.itemsize >= 4 or array.dtype.kind in "biu":
        return array
    out = _single_like(array)
    convert(array, out)
    return out


def in_float32(*written: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a kernel that has loops for float32 and float64 alone.

    It gets arrays of 2-byte floats as float32, and what it writes is rounded once.

    Args:
        written: the names of the parameters whose arrays it writes.
    """

    def decorate(kernel: Callable[P, R]) -> Callable[P, R]:
        names = [*inspect.signature(kernel).parameters]

        @functools.wraps(kernel)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            for each in args:
                if isinstance(each, np.ndarray) and is_half(each.dtype):
                    break
            else:
                return kernel(*args, **kwargs)
            results: list[tuple[Array, Array]] = []

            def wide(name: str, value: Any) -> Any:
                if not isinstance(value, np.ndarray) or not is_half(value.dtype):
                    return value
                if name not in written:
                    return as_float(value)
                results.append((_single_like(value), value))
                return results[-1][0]

            positional: Any = [wide(*each) for each in zip(names, args, strict=False)]
            named: Any = {name: wide(name, value) for name, value in kwargs.items()}
            returned = kernel(*positional, **named)
            for result, array in results:
                convert(result, array)
            return returned

        converting.add(kernel.__name__)
        return wrapper

    return decorate


def _single_like(array: Array) -> Array:
    if array.flags.c_contiguous:
        return memory.empty(array.shape, _SINGLE)
    order = sorted(range(array.ndim), key=lambda dim: -abs(array.strides[dim]))
    back = sorted(range(array.ndim), key=order.__getitem__)
    return memory.empty(tuple([array.shape[dim] for dim in order]), _SINGLE).transpose(back)


def _flats(a: Array, b: Array) -> tuple[Array, Array] | None:
    """Return two arrays of one shape as bits in one dimension; None if memory orders differ."""
    if not (a.flags.c_contiguous and b.flags.c_contiguous):
        if a.strides != tuple([each * a.itemsize // b.itemsize for each in b.strides]):
            return None
        order = sorted(range(a.ndim), key=lambda dim: -a.strides[dim])
        a, b = a.transpose(order), b.transpose(order)
        if not (a.flags.c_contiguous and b.flags.c_contiguous):
            return None
    return a.reshape(-1).view(BITS[a.itemsize]), b.reshape(-1).view(BITS[b.itemsize])


def _rows(a: Array, b: Array) -> tuple[Array, Array, int, int, int] | None:
    """Return two arrays of one shape as bits that `_convert_rows` reads; None if it cannot.

    That is two arrays of one dimension, the columns of a row, and the elements from one row of
    either to its next.
    """
    steps = [(n, s, t) for n, s, t in zip(a.shape, a.strides, b.strides, strict=True) if n > 1]
    if not a.flags.aligned or not b.flags.aligned or any(min(each) <= 0 for each in steps):
        return None
    merged: list[tuple[int, int, int]] = []
    for size, of_a, of_b in sorted(steps, key=lambda step: step[1]):
        inner = merged[-1] if merged else (1, 0, 0)
        if merged and (of_a, of_b) == (inner[0] * inner[1], inner[0] * inner[2]):
            merged[-1] = inner[0] * size, *inner[1:]
        else:
            merged.append((size, of_a, of_b))
    if len(merged) != 2 or merged[0][1:] != (a.itemsize, b.itemsize):
        return None
    (columns, *_), (count, of_a, of_b) = merged
    if of_a % a.itemsize or of_b % b.itemsize or columns < _FEW_COLUMNS:
        return None
    steps_of = of_a // a.itemsize, of_b // b.itemsize
    x, y = (
        as_strided(each, ((count - 1) * step + columns,), (each.itemsize,))
        for each, step in zip((a, b), steps_of, strict=True)
    )
    return x.view(BITS[a.itemsize]), y.view(BITS[b.itemsize]), columns, *steps_of


@functools.cache
def _by_rows(loop: Kernel[..., None]) -> Kernel[..., None]:
    """Return the loop that converts rows by `loop`, which converts one dimension."""
    return Kernel(_convert_rows, {"convert_row": loop})


def convert_row(*_: Any) -> None:
    """Convert a row: a loop that `_by_rows` puts in the place of this name."""
    raise NotImplementedError("compiled loops of rows call others in its place")


def _convert_rows(
    source: Any, target: Any, columns: int, source_step: int, target_step: int,
    start: int, stop: int,
) -> None:  # fmt: skip
    for row in range(start, stop):
        from_, to = row * source_step, row * target_step
        convert_row(source[from_ : from_ + columns], target[to : to + columns], 0, columns)


def from_half(dtype: np.dtype[Any]) -> Kernel[[Array, Array, int, int], None]:
    """Return the loop that writes the bits of a 16-bit dtype as those of float32.

    Its arguments are the arrays, of one dimension, and the range of their elements.
    """
    return _from_float16 if dtype.kind == "f" else _from_bfloat16


def to_half(dtype: np.dtype[Any]) -> Kernel[[Array, Array, int, int], None]:
    """Return the loop that writes the bits of float32 as those of a 16-bit dtype."""
    return _to_float16 if dtype.kind == "f" else _to_bfloat16


_CODES: dict[Any, int] = {np.add: 0, np.subtract: 1, np.multiply: 2}


def has_arithmetic(function: Any, *arrays: Array) -> bool:
    """Whether `arithmetic` computes this function of arrays in one dimension."""
    if function not in _CODES or len(arrays) != 3:
        return False
    a, b, out = arrays
    if a.dtype != out.dtype or a.size == 1:
        return False
    return b.dtype == a.dtype if b.size > 1 else is_half(b.dtype) or b.dtype == _SINGLE


def arithmetic(function: Any, a: Array, b: Array, out: Array) -> None:
    """Write a sum, difference or product of 16-bit floats in one pass over the memory.

    Args:
        function: np.add, np.subtract or np.multiply.
        a: of the dtype and length of `out`.
        b: as a; or one element, float32 or of 16 bits.
        out: [n].
    """
    code, x, result = _CODES[function], a.view(BITS[2]), out.view(BITS[2])
    of_arrays, by_number = _FLOAT16_LOOPS if out.dtype.kind == "f" else _BFLOAT16_LOOPS
    if b.size == 1:
        body = partial(by_number, code, x, np.float32(b[0]), result)
    else:
        body = partial(of_arrays, code, x, b.view(BITS[2]), result)
    parallel_for(body, out.size, merge=True)


_SIGN, _MAGNITUDE, _INFINITY, _QUIET = (
    np.uint32(each) for each in (0x80000000, 0x7FFFFFFF, 0x7F800000, 0x400000)
)
_SIXTEEN, _THIRTEEN, _ONE, _ZERO = (np.uint32(each) for each in (16, 13, 1, 0))

_HALF_MAGNITUDE, _HALF_INFINITY = np.uint32(0x7FFF), np.uint32(0x7C00)
_BIAS = np.float32(2.0**112)
"""The exponents of float32 exceed those of float16 by so much."""

_OVERFLOW = np.uint32((127 + 16) << 23)
_SMALLEST = np.uint32((127 - 14) << 23)
"""The bits of the smallest float16 that is no subnormal number."""

_SUBNORMAL = np.uint32((127 - 15 + 23 - 10 + 1) << 23)
"""The bits of a number beside which a float32 has the last digit of a subnormal float16."""

_DIGITS = np.float32(_SUBNORMAL.view(np.float32))
_REBIAS = np.uint32((15 - 127) % 512 << 23)
_ROUND_16, _ROUND_13 = np.uint32(0x7FFF), np.uint32(0xFFF)


@inlined
def bfloat16_bits(bits: Any) -> Any:
    """Return the bits of a float32, a uint32, as those of bfloat16."""
    odd = np.uint32(np.uint32(bits >> _SIXTEEN) & _ONE)
    rounded = np.uint32(np.uint32(bits + _ROUND_16) + odd)
    nan = np.uint32((bits & _SIGN) | _INFINITY | _QUIET)
    result = nan if np.uint32(bits & _MAGNITUDE) > _INFINITY else rounded
    return np.uint16(np.uint32(result) >> _SIXTEEN)


@inlined
def float16_bits(bits: Any) -> Any:
    """Return the bits of a float32, a uint32, as those of float16."""
    magnitude = np.uint32(bits & _MAGNITUDE)
    odd = np.uint32(np.uint32(magnitude >> _THIRTEEN) & _ONE)
    normal = np.uint32(np.uint32(magnitude + _REBIAS) + np.uint32(_ROUND_13 + odd))
    normal = np.uint32(normal >> _THIRTEEN)
    sum_ = np.float32(np.uint32(magnitude).view(np.float32) + _DIGITS)
    subnormal = np.uint32(sum_.view(np.uint32) - _SUBNORMAL)
    large = np.uint32(0x7E00) if magnitude > _INFINITY else _HALF_INFINITY
    result = subnormal if magnitude < _SMALLEST else normal
    result = large if magnitude >= _OVERFLOW else result
    return np.uint16(np.uint32(result) | np.uint32(np.uint32(bits & _SIGN) >> _SIXTEEN))


@inlined
def _of_bfloat16(bits: Any) -> Any:
    return np.uint32(np.uint32(bits) << _SIXTEEN)


@inlined
def _of_float16(bits: Any) -> Any:
    half = np.uint32(bits)
    magnitude = np.uint32(half & _HALF_MAGNITUDE)
    number = np.uint32(magnitude << _THIRTEEN).view(np.float32) * _BIAS
    special = _INFINITY if magnitude >= _HALF_INFINITY else _ZERO
    sign = np.uint32(np.uint32(half << _SIXTEEN) & _SIGN)
    return np.uint32(np.float32(number).view(np.uint32) | special | sign)


@inlined
def _combined(code: int, x_bits: Any, y: Any) -> Any:
    """Return the bits of a sum (0), difference (1) or product (2)."""
    x = np.uint32(x_bits).view(np.float32)
    result = x * y if code == 2 else x + y if code == 0 else x - y
    return np.float32(result).view(np.uint32)


@jit
def _from_bfloat16(source: Any, target: Any, start: int, stop: int) -> None:
    source, target = source[start:stop], target[start:stop]
    for i in range(source.size):
        target[i] = _of_bfloat16(source[i])


@jit
def _to_bfloat16(source: Any, target: Any, start: int, stop: int) -> None:
    source, target = source[start:stop], target[start:stop]
    for i in range(source.size):
        target[i] = bfloat16_bits(np.uint32(source[i]))


@jit
def _from_float16(source: Any, target: Any, start: int, stop: int) -> None:
    source, target = source[start:stop], target[start:stop]
    for i in range(source.size):
        target[i] = _of_float16(source[i])


@jit
def _to_float16(source: Any, target: Any, start: int, stop: int) -> None:
    source, target = source[start:stop], target[start:stop]
    for i in range(source.size):
        target[i] = float16_bits(np.uint32(source[i]))


@jit
def _bfloat16_arrays(code: int, a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        y = np.uint32(_of_bfloat16(b[i])).view(np.float32)
        out[i] = bfloat16_bits(_combined(code, _of_bfloat16(a[i]), y))


@jit
def _bfloat16_by_number(code: int, a: Any, y: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = bfloat16_bits(_combined(code, _of_bfloat16(a[i]), y))


@jit
def _float16_arrays(code: int, a: Any, b: Any, out: Any, start: int, stop: int) -> None:
    a, b, out = a[start:stop], b[start:stop], out[start:stop]
    for i in range(out.size):
        y = np.uint32(_of_float16(b[i])).view(np.float32)
        out[i] = float16_bits(_combined(code, _of_float16(a[i]), y))


@jit
def _float16_by_number(code: int, a: Any, y: Any, out: Any, start: int, stop: int) -> None:
    a, out = a[start:stop], out[start:stop]
    for i in range(out.size):
        out[i] = float16_bits(_combined(code, _of_float16(a[i]), y))


_BFLOAT16_LOOPS = _bfloat16_arrays, _bfloat16_by_number
_FLOAT16_LOOPS = _float16_arrays, _float16_by_number
