"""NumPy's functions over large arrays: pieces that stay in a core's cache, on several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arithmetic import LOOPS as ARITHMETIC
from offgrad.kernels._arithmetic import arithmetic_loop
from offgrad.kernels._arithmetic_rows import broadcasting_loop
from offgrad.kernels._arrays import BITS, Array, is_half, unexpanded
from offgrad.kernels._half_loops import loop_of_halves
from offgrad.kernels._halves import (
    FEW,
    arithmetic,
    as_float,
    convert,
    from_half,
    has_arithmetic,
    to_half,
)
from offgrad.kernels._jit import Kernel, backend
from offgrad.kernels._parallel import BLOCK, Body, parallel_for

CHUNK = 64 * 1024
"""Elements of a piece: a few arrays of this length stay in a core's cache between passes."""


_FEW_SHARED = 128 * 1024
"""So many elements NumPy adds or multiplies as fast as several threads."""

_MIN_THREADED = 1 << 20
"""Elements that several threads add or multiply faster in slices, with the GIL for each."""

_PIECE = 4 * CHUNK
"""Elements of a piece of 16-bit floats: smaller ones compete for the GIL."""


def in_chunks(body: Body, count: int, cost: int = 1) -> None:
    """Call `body(start, stop)` for pieces of ``range(count)`` of about `CHUNK` elements of work.

    As `parallel_for`; floating point warnings are off. Sizes alone decide the pieces.
    """
    step = max(1, CHUNK // max(1, cost))

    def run(start: int, stop: int) -> None:
        for first in range(start, stop, step):
            body(first, min(first + step, stop))

    with np.errstate(all="ignore"):
        parallel_for(run, count, cost)


def is_large(size: int) -> bool:
    """Whether work of `size` elements is worth several pieces."""
    return size > BLOCK


def elementwise(function: Callable[..., Any], out: Array, *arrays: Array) -> None:
    """Call ``function(*arrays, out=out)`` in pieces, flat ones if all are contiguous.

    In one call if `out` is small or not contiguous.

    Args:
        function: works on arrays of any number of dimensions; it gets 16-bit floats as float32,
            unless it is one of NumPy's and they are few.
        out: the results.
        arrays: they broadcast to the shape of `out`.
    """
    if is_half(out.dtype) and (out.size > FEW or type(function) is not np.ufunc):
        elementwise_flat(function, out, *arrays)
    else:
        _elementwise(function, out, *arrays)


def _least_size(function: Callable[..., Any]) -> int:
    return _FEW_SHARED if function in ARITHMETIC else CHUNK


def _elementwise(function: Callable[..., Any], out: Array, *arrays: Array) -> None:
    if out.size <= _least_size(function) or not out.flags.c_contiguous:
        function(*arrays, out=out)
        return
    arrays = tuple(map(unexpanded, arrays))
    if _are_flat(out, *[each for each in arrays if each.size > 1]):
        flat, flats = out.reshape(-1), [each.reshape(-1) for each in arrays]
        loop = arithmetic_loop(function, flats, flat)
        if loop is not None:
            parallel_for(loop, flat.size, merge=True)
            return
        flats = [np.broadcast_to(each, flat.shape) for each in flats]

        def piece(start: int, stop: int) -> None:
            function(*[each[start:stop] for each in flats], out=flat[start:stop])

        _in_pieces(function, piece, flat.size, 1)
    elif (rows := broadcasting_loop(function, [*arrays], out)) is not None:
        parallel_for(*rows, merge=True)
    elif function in ARITHMETIC and out.size < _MIN_THREADED:
        function(*arrays, out=out)
    else:
        _in_slices(function, out, [np.broadcast_to(each, out.shape) for each in arrays])


def _are_flat(out: Array, *arrays: Array) -> bool:
    return all(each.flags.c_contiguous and each.shape == out.shape for each in (out, *arrays))


def _in_slices(function: Callable[..., Any], out: Array, arrays: list[Array]) -> None:
    """Call ``function(*arrays, out=out)`` for slices of the first dimension that has several."""
    axis = next(at for at, size in enumerate(out.shape) if size > 1)
    out, *arrays = [each[(0,) * axis] for each in (out, *arrays)]
    count = len(out)

    def piece(start: int, stop: int) -> None:
        function(*[each[start:stop] for each in arrays], out=out[start:stop])

    _in_pieces(function, piece, count, out.size // count)


def _in_pieces(function: Callable[..., Any], piece: Body, count: int, cost: int) -> None:
    """Call `piece` for all of ``range(count)``: it calls `function`."""
    if type(function) is np.ufunc:  # one pass over the memory needs no cache
        with np.errstate(all="ignore"):
            parallel_for(piece, count, cost, merge=True)
    else:
        in_chunks(piece, count, cost)


def elementwise_flat(function: Callable[..., Any], out: Array, *arrays: Array) -> None:
    """Call ``function(*arrays, out)`` for pieces of one dimension, contiguous, as `elementwise`.

    The function gets 16-bit floats as float32.
    """
    is_wide = not is_half(out.dtype)
    flats = _flats(*arrays, out) if is_wide and out.size <= CHUNK else None
    if flats is not None:
        function(*flats)
        return
    if not is_wide and out.size > CHUNK and backend() == "numba":
        whole = [each for each in arrays if each.size > 1]
        if _are_flat(out, *whole):
            flats = [each.reshape(-1) for each in (*arrays, out)]
            if has_arithmetic(function, *flats):
                arithmetic(function, *flats)
            else:
                _in_float32(_positional(function), flats[-1], flats[:-1])
            return
    function = _positional(function)

    def piece(*parts: Array, out: Array) -> None:
        result = out.reshape(-1) if is_wide else np.empty(out.size, np.float32)
        parts = tuple([np.broadcast_to(each, out.shape) for each in parts])
        function(*[np.ascontiguousarray(as_float(each)).reshape(-1) for each in parts], result)
        if not is_wide:
            convert(result.reshape(out.shape), out)

    _elementwise(piece, out, *arrays)


def _positional(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes `out` as its last argument, as some of NumPy's do not."""
    if type(function) is not np.ufunc:
        return function
    return lambda *each: function(*each[:-1], out=each[-1])


def _in_float32(function: Callable[..., Any], out: Array, arrays: list[Array]) -> None:
    """Call ``function(*arrays, out)`` for pieces, converted to float32 in a core's cache.

    All are of one dimension, and of one length or one element.
    """
    narrow = to_half(out.dtype)
    loops = [from_half(each.dtype) if is_half(each.dtype) else None for each in arrays]
    sources = [each.view(BITS[2]) if is_half(each.dtype) else each for each in arrays]
    out = out.view(BITS[2])

    def run(start: int, stop: int) -> None:
        width = min(_PIECE, stop - start)
        rooms = np.empty((len(arrays) + 1, width), np.float32)
        bits = rooms.view(BITS[4])
        for room, each in zip(rooms, arrays, strict=False):
            if each.size == 1:
                room[...] = each[0]
        for first in range(start, stop, width):
            last = min(first + width, stop)
            parts = []
            for number, source in enumerate(sources):
                part, loop = rooms[number, : last - first], loops[number]
                if source.size == 1:
                    pass
                elif loop is None:
                    part = source[first:last]
                else:
                    loop(source[first:last], bits[number], 0, last - first)
                parts.append(part)
            function(*parts, rooms[-1, : last - first])
            narrow(bits[-1], out[first:last], 0, last - first)

    with np.errstate(all="ignore"):
        parallel_for(run, out.size, len(arrays), merge=True)


def by_loop(
    loop: Callable[..., Any], out: Array, *arrays: Array, numbers: tuple[Any, ...] = ()
) -> None:
    """Call a compiled ``loop(*arrays, out, *numbers, start, stop)`` in ranges.

    The arrays are as in `elementwise_flat`.
    """
    flats = None if is_half(out.dtype) else _flats(*arrays, out)
    if flats is not None:
        parallel_for(partial(loop, *flats, *numbers), out.size, merge=True)
    elif type(loop) is Kernel and loop.has_ranges and _are_halves(out, *arrays):
        bits = [each.reshape(-1).view(BITS[2]) for each in (*arrays, out)]
        body = partial(loop_of_halves(loop, out.dtype, len(arrays)), *bits, numbers)
        parallel_for(body, out.size, len(arrays), merge=True)
    else:
        elementwise_flat(lambda *each: loop(*each, *numbers, 0, each[-1].size), out, *arrays)


def _are_halves(out: Array, *arrays: Array) -> bool:
    """Return whether these are many 16-bit floats of one dtype, contiguous and of one shape."""
    return (
        is_half(out.dtype)
        and out.size > FEW
        and backend() == "numba"
        and _are_flat(out, *arrays)
        and all(each.dtype == out.dtype for each in arrays)
    )


def _flats(*arrays: Array) -> list[Array] | None:
    """Return arrays of one shape in one dimension; None if a large one is not contiguous."""
    shape = arrays[-1].shape
    is_few = arrays[-1].size <= CHUNK
    for each in arrays:
        if each.shape != shape or not (is_few or each.flags.c_contiguous):
            return None
    return [each.ravel() for each in arrays]


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[np.dtype[Any], Array] = {}


_scratch = _Scratch()


def scratch(number: int, size: int, dtype: np.dtype[Any]) -> Array:
    """Return the calling thread's scratch array `number` (0 to 2), of `size` elements.

    It keeps its contents until the thread asks for the same one again.
    """
    if size > CHUNK:
        return np.empty(size, dtype)
    arrays = _scratch.arrays.get(dtype)
    if arrays is None:
        arrays = _scratch.arrays[dtype] = np.empty((3, CHUNK), dtype)
    return arrays[number, :size]


_BITS: dict[int, Any] = {2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)}


def keep_where(values: Array, mask: Callable[[int, int], Array], out: Array) -> None:
    """Write `values` into `out` where a mask is true, else 0.

    Args:
        values: C-contiguous; NaN and infinities are dropped as other numbers are.
        mask: ``mask(start, stop)`` returns the bools of the elements start to stop - 1.
        out: as `values`.
    """
    bits = _BITS.get(values.dtype.itemsize)
    flat, result = values.reshape(-1), out.reshape(-1)
    if bits is None:
        result[...] = 0
        in_chunks(lambda a, b: np.copyto(result[a:b], flat[a:b], where=mask(a, b)), flat.size)
        return
    # A product of integers is vectorised; a selection in NumPy is not.
    flat, result = flat.view(bits), result.view(bits)

    def write(start: int, stop: int) -> None:
        np.multiply(flat[start:stop], mask(start, stop), out=result[start:stop])

    in_chunks(write, flat.size)


def fill_where(x: Array, mask: Array, value: Array, out: Array) -> None:
    """Write `x` into `out`, with `value` where the mask is true.

    Args:
        x: broadcasts to the shape of `out`.
        mask: bools, likewise.
        value: one element of x's dtype, without dimensions.
        out: C-contiguous, of x's dtype.
    """
    bits = _BITS.get(x.dtype.itemsize)
    if out.size <= CHUNK or bits is None or x.shape != out.shape or not x.flags.c_contiguous:
        _fill_slices(x, mask, value, out)
        return
    if mask.shape == out.shape and mask.flags.c_contiguous:
        x, mask, out = x.reshape(-1), mask.reshape(-1), out.reshape(-1)
    else:
        mask = np.broadcast_to(mask, out.shape)
    values, result, fill = x.view(bits), out.view(bits), value.view(bits)

    def write(start: int, stop: int) -> None:
        # The product drops the bits that differ from the value's.
        part, keep = result[start:stop], np.logical_not(mask[start:stop])
        if fill:
            np.bitwise_xor(values[start:stop], fill, out=part)
            np.multiply(part, keep, out=part)
            np.bitwise_xor(part, fill, out=part)
        else:
            np.multiply(values[start:stop], keep, out=part)

    in_chunks(write, len(result), result.size // len(result))


def _fill_slices(x: Array, mask: Array, value: Array, out: Array) -> None:
    if not out.ndim:
        out[...] = value if mask else x
        return
    x, mask = np.broadcast_to(x, out.shape), np.broadcast_to(mask, out.shape)

    def write(start: int, stop: int) -> None:
        np.copyto(out[start:stop], x[start:stop])
        np.copyto(out[start:stop], value, where=mask[start:stop])

    in_chunks(write, len(out), out.size // max(1, len(out)))
