"""Lossy codecs to small integers, with one scale for each group of numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from offgrad_storage.codecs.base import (
    Array,
    Bytes,
    Codec,
    blocks,
    flat,
)
from offgrad_storage.codecs.floats import real_numbers, round_bfloat16, widen_bfloat16

GROUP = 128
"""Numbers that share a scale."""

_STEPS = 1 << 16
"""How finely a level is divided for stochastic rounding."""


@dataclass(frozen=True)
class Parts:
    """The head of the encoded bytes of an array; groups kept exactly follow it.

    Attributes:
        groups: of 128 numbers, the last of which may have fewer.
        scale: dtype of the scales, one for each group: they come first.
        scales_nbytes, codes_nbytes: of the scales, and of the integers after them.
    """

    groups: int
    scale: np.dtype[Any]
    scales_nbytes: int
    codes_nbytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of scales and integers."""
        return self.scales_nbytes + self.codes_nbytes


class GroupInt(Codec):
    """Integers from -levels to levels, times a scale for each 128 numbers, rounded at random.

    A number between two levels is rounded to either one such that the mean over seeds is the
    number, to 2**-14 of a level; the same array and seed give the same integers. Zeros stay zeros.
    A group is kept exactly if it holds a NaN or an infinity, or if its largest number is near the
    ends of the dtype's range (float32: below 2**-100 or above 2**126). Applies to float16,
    bfloat16, float32, float64 and complex of these; a complex number counts as two.

    Encoded: the scales, the integers, the groups kept exactly. The scale of such a group is NaN.

    Args:
        bits: 8 or 4. With 4, the lower bits of a byte hold a number of the first half of a group,
            and the upper bits one of the second half.
    """

    lossless = False

    def __init__(self, bits: int) -> None:
        self.name = f"int{bits}"
        self.bits = bits
        self._levels = (1 << bits - 1) - 1
        self.error_bound = (
            f"|error| <= m / {self._levels} * (1 + 2**-12), with m the largest |x| of the group of "
            f"{GROUP}; times sqrt(2) if complex; plus m / 2**11 + 2**-25 if float16 and m / 2**8 "
            "if bfloat16"
        )

    def parts(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Parts | None:
        """The parts of encoded arrays of a shape and dtype; None if none is ever encoded."""
        return _parts(self.bits, math.prod(shape), dtype)

    def applies(self, array: Array) -> bool:
        """Whether it holds floats, and enough of them."""
        return self.parts(array.shape, array.dtype) is not None

    def encode(self, array: Array, seed: int = 0) -> Bytes | None:
        """The scales, the integers, the groups kept exactly."""
        parts = self.parts(array.shape, array.dtype)
        items = flat(array)
        numbers = _Numbers.of(items)
        if parts is None or numbers is None:
            return None
        start = parts.scales_nbytes
        data = np.empty(parts.nbytes, np.uint8)
        scales, codes = data[:start].view(parts.scale), data[start:]
        kept: list[Bytes] = []
        spare = array.nbytes - data.nbytes
        # Seeded by the bytes of the array: the time and place of encoding do not matter.
        random = np.random.SFC64([seed, xxhash.xxh3_64_intdigest(items.view(np.uint8).data)])
        for part in numbers.blocks():
            rows = _rows(part)
            with np.errstate(all="ignore"):  # of NaN and infinity, which are set apart
                integers, exact = self._quantize(numbers, part, scales[rows], random)
            if self.bits == 8:
                codes[part] = integers.reshape(-1)[: part.stop - part.start]
            else:
                halves = codes[rows.start * GROUP // 2 : rows.stop * GROUP // 2]
                low, high = np.split(integers, 2, axis=1)
                np.bitwise_or(low & 15, high << 4, out=halves.reshape(low.shape))
            for row in np.flatnonzero(exact):
                kept.append(numbers.group(rows.start + int(row)))
                spare -= kept[-1].nbytes
            if spare <= 0:
                return None
        return np.concatenate([data, *kept]) if kept else data

    def decode(self, data: Bytes, out: Array) -> None:
        """The integers times their scales."""
        parts = self.parts(out.shape, out.dtype)
        numbers = _Numbers.of(out.reshape(-1))
        if parts is None or numbers is None:
            raise self._damaged(f"they cannot be those of {out.size} items of dtype {out.dtype}")
        start, end = parts.scales_nbytes, parts.nbytes
        if data.nbytes < end:
            raise self._damaged(f"there are {data.nbytes}, fewer than {end}")
        scales = data[:start].view(parts.scale).astype(numbers.work)
        codes = data[start:end].view(np.int8)
        with np.errstate(all="ignore"):  # of NaN scales, and of damaged ones
            for part in numbers.blocks():
                rows = _rows(part)
                values = np.empty((rows.stop - rows.start, GROUP), numbers.work)
                if self.bits == 8:
                    values.reshape(-1)[: part.stop - part.start] = codes[part]
                else:
                    halves = codes[rows.start * GROUP // 2 : rows.stop * GROUP // 2]
                    halves = halves.reshape(-1, GROUP // 2)
                    values[:, : GROUP // 2] = (halves << 4) >> 4
                    values[:, GROUP // 2 :] = halves >> 4
                values *= scales[rows, np.newaxis]
                numbers.store(part, values)
        for index in np.flatnonzero(np.isnan(scales)):
            group = numbers.group(int(index))
            start, end = end, end + group.nbytes
            if data.nbytes < end:
                raise self._damaged("groups kept exactly are missing")
            group[:] = data[start:end]
        self._check_nbytes(data, end)

    def max_error(self, array: Array) -> NDArray[np.float64] | float:
        """The bound for each item."""
        numbers = _Numbers.of(flat(array)) if array.size else None
        if numbers is None:
            return 0.0
        with np.errstate(all="ignore"):  # of signalling NaNs, too
            sizes = np.abs(numbers.load(slice(0, numbers.count))).max(axis=1).astype(np.float64)
            bounds = sizes * ((1 + 2**-12) / self._levels + numbers.rounding) + numbers.absolute
        bounds[numbers.must_stay(sizes) | (sizes == 0)] = 0
        each = np.repeat(bounds, GROUP)[: numbers.count]
        if array.dtype.kind == "c":
            each = each[::2] * 2**0.5
        return each.reshape(array.shape)

    def _quantize(
        self, numbers: _Numbers, part: slice, scales: Array, random: np.random.SFC64
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Write the scale of each group; return the integers, and which groups to keep exactly."""
        rows = numbers.load(part)
        starts = np.arange(0, rows.size, GROUP)
        sizes = np.maximum.reduceat(np.abs(rows).reshape(-1), starts)  # thrice as fast as max(axis)
        exact = numbers.must_stay(sizes)
        if exact.any():
            rows = np.where(exact[:, np.newaxis], 0, rows)
            sizes[exact] = 0
        np.divide(sizes, self._levels, out=scales)
        scales[exact] = np.nan
        # Two steps less than the levels have, so that rounding never gets past the last level.
        factors = (self._levels * _STEPS - 2) / sizes
        factors[sizes == 0] = 0
        scaled = rows * factors[:, np.newaxis]
        steps = np.rint(scaled, out=scaled).astype(np.int32)
        steps += random.random_raw(rows.size // 4).view(np.uint16).reshape(rows.shape)
        steps >>= 16
        return steps.astype(np.int8).view(np.uint8), exact


class _Numbers:
    """A flat array as numbers to load and store in float32 or float64, by groups.

    Attributes:
        count: how many there are.
        work, scale: dtype of the numbers when loaded, and of encoded scales.
        rounding, absolute: relative and absolute error of storing a number.
    """

    def __init__(self, values: Array, is_bfloat16: bool) -> None:
        self._values = values
        self._is_bfloat16 = is_bfloat16
        self.count = values.size
        double = values.itemsize == 8
        self.work = np.dtype(np.float64 if double else np.float32)
        self.scale = self.work.newbyteorder("<")
        self._range = (2.0**-900, 2.0**1022) if double else (2.0**-100, 2.0**126)
        self.rounding = self.absolute = 0.0
        if values.itemsize == 2:
            self.rounding, self.absolute = (2.0**-8, 0.0) if is_bfloat16 else (2.0**-11, 2.0**-25)

    @classmethod
    def of(cls, items: Array) -> _Numbers | None:
        """The numbers of a flat array; None if it holds others than floats of up to 8 bytes."""
        dtype = items.dtype
        if dtype.name == "bfloat16":
            return cls(items.view(np.uint16), True)
        values = items if dtype.kind == "f" and dtype.itemsize == 2 else real_numbers(items)
        return None if values is None else cls(values, False)

    def blocks(self) -> Iterator[slice]:
        """Slices over whole groups, except for the last."""
        return blocks(self.count, self.work.itemsize, GROUP)

    def load(self, part: slice) -> Array:
        """Numbers, one group a row, filled up with zeros; not to be written to."""
        values = self._values[part]
        if self._is_bfloat16:
            values = widen_bfloat16(values)
        values = values.astype(self.work, copy=False)
        if values.size % GROUP:
            values = np.pad(values, (0, -values.size % GROUP))
        return values.reshape(-1, GROUP)

    def store(self, part: slice, rows: Array) -> None:
        """The opposite of load."""
        values = rows.reshape(-1)[: part.stop - part.start]
        if self._is_bfloat16:
            round_bfloat16(values, self._values[part])
        else:
            np.copyto(self._values[part], values, casting="unsafe")

    def group(self, index: int) -> Bytes:
        """The bytes of a group, as a view."""
        return self._values[index * GROUP : (index + 1) * GROUP].view(np.uint8)

    def must_stay(self, sizes: Array) -> NDArray[np.bool_]:
        """Which groups must be kept exactly, by the largest number of each."""
        smallest, largest = self._range
        ordinary: NDArray[np.bool_] = (sizes >= smallest) & (sizes <= largest) | (sizes == 0)
        return ~ordinary


@functools.lru_cache(maxsize=256)
def _parts(bits: int, size: int, dtype: np.dtype[Any]) -> Parts | None:
    numbers = _Numbers.of(np.empty(0, dtype))
    if numbers is None:
        return None
    count = 2 * size if dtype.kind == "c" else size
    groups = -(-count // GROUP)
    codes_nbytes = count if bits == 8 else groups * GROUP // 2
    parts = Parts(groups, numbers.scale, groups * numbers.scale.itemsize, codes_nbytes)
    return parts if parts.nbytes < size * dtype.itemsize else None


def _rows(part: slice) -> slice:
    """The groups of a slice of numbers."""
    return slice(part.start // GROUP, -(-part.stop // GROUP))
