"""Lossy codecs that keep fewer bits of each floating-point number."""

from __future__ import annotations

import functools
from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.codecs.base import (
    Array,
    Bytes,
    Codec,
    blocks,
    flat,
)

_BFLOAT16_LIMIT = (2 - 2**-8) * 2.0**127  # halfway from its largest number to infinity
_FLOAT16_LIMIT = 65520.0  # likewise
_SMALLEST_NORMAL = np.uint32(113 << 23)  # the bits of float32 for 2**-14


class _Half(Codec):
    """Two bytes for each real number of float32, float64 and complex of these.

    NaN stays a NaN and infinity stays infinity. An array with a number that would become infinite
    is stored as it is.
    """

    lossless = False
    _relative: float  # bound of the error, by the size of the number
    _absolute: float  # bound of the error besides

    def encode(self, array: Array, seed: int = 0) -> Bytes | None:
        """The rounded numbers."""
        numbers = real_numbers(flat(array)) if array.size else None
        if numbers is None:
            return None
        data = np.empty(numbers.size, "<u2")
        with np.errstate(all="ignore"):  # overflows are detected
            for part in blocks(numbers.size, numbers.itemsize):
                if not self._round(numbers[part], data[part]):
                    return None
        return data.view(np.uint8)

    def decode(self, data: Bytes, out: Array) -> None:
        """The numbers as ``out`` holds them."""
        numbers = real_numbers(out.reshape(-1))
        if numbers is None:
            raise self._damaged(f"they cannot be those of dtype {out.dtype}")
        self._check_nbytes(data, 2 * numbers.size)
        codes = data.view("<u2")
        with np.errstate(all="ignore"):  # of signalling NaNs
            for part in blocks(numbers.size, numbers.itemsize):
                self._widen(codes[part], numbers[part])

    def max_error(self, array: Array) -> NDArray[np.float64] | float:
        """The bound for each item."""
        absolute = self._absolute * (2**0.5 if array.dtype.kind == "c" else 1)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            parts = [each.astype(np.float64) * self._relative for each in (array.real, array.imag)]
        return np.where(np.isfinite(array), np.hypot(*parts) + absolute, 0.0)

    @abstractmethod
    def _round(self, numbers: Array, codes: NDArray[np.uint16]) -> bool:
        """Write the codes of a block; False if a number is too large."""

    @abstractmethod
    def _widen(self, codes: NDArray[np.uint16], numbers: Array) -> None:
        """Write the numbers of a block."""


class Float16(_Half):
    """IEEE half precision: 11 bits of precision from 6e-5 to 65504."""

    name = "float16"
    error_bound = "|error| <= |x| / 2**11 + 2**-25 (rounded to nearest even)"
    _relative = 2.0**-11
    _absolute = 2.0**-25

    def _round(self, numbers: Array, codes: NDArray[np.uint16]) -> bool:
        beyond = _beyond(numbers, _FLOAT16_LIMIT)
        if beyond is not None and np.isfinite(numbers[beyond]).any():
            return False
        if beyond is None and numbers.dtype == np.float32:
            _round_float16(numbers, codes)
        else:
            np.copyto(codes.view("<f2"), numbers, casting="unsafe")
        return True

    def _widen(self, codes: NDArray[np.uint16], numbers: Array) -> None:
        # A table of 256 KiB is two to five times as fast as the cast.
        np.copyto(numbers, _every_float16().take(codes))


class BFloat16(_Half):
    """The upper half of float32: 8 bits of precision, and float32's range.

    By integer arithmetic, which is as fast as ml_dtypes and does without it.
    """

    name = "bfloat16"
    error_bound = "|error| <= |x| / 2**8 + 2**-133 (rounded to nearest even)"
    _relative = 2.0**-8
    _absolute = 2.0**-133  # half of its smallest number, and the step from float64 to float32

    def _round(self, numbers: Array, codes: NDArray[np.uint16]) -> bool:
        single = numbers.astype(np.float32, copy=False)
        beyond = _beyond(single, _BFLOAT16_LIMIT)
        if beyond is not None and np.isfinite(numbers[beyond]).any():
            return False
        round_bfloat16(single, codes)
        if beyond is not None:
            nan = np.isnan(single)
            codes[nan] = single.view(np.uint32)[nan] >> 16 | 0x40
        return True

    def _widen(self, codes: NDArray[np.uint16], numbers: Array) -> None:
        np.copyto(numbers, widen_bfloat16(codes))


def _round_float16(numbers: NDArray[np.float32], codes: NDArray[np.uint16]) -> None:
    """Write the nearest float16 of each, as integers; right below ``_FLOAT16_LIMIT``.

    Up to three times as fast as NumPy's cast, which branches. Instead of a branch between normal
    and subnormal numbers, both are computed, of the size limited to either side of 2**-14, where
    the code is 1024. So the sum less 1024 is right for both.
    """
    bits = numbers.view(np.uint32)
    size = bits & 0x7FFFFFFF
    code = np.maximum(size, _SMALLEST_NORMAL)
    odd = code >> 13
    odd &= 1
    code += odd
    code += 0xFFF
    code -= 112 << 23  # from an exponent counted from -127 to one from -15
    code >>= 13
    np.minimum(size, _SMALLEST_NORMAL, out=size)
    tiny = size.view(np.float32)
    tiny += np.float32(0.5)  # the last bit of its sum is worth 2**-24, float16's smallest number
    code += size
    code -= 0x3F000000 + 1024  # 0x3F000000 is 0.5
    sign = np.right_shift(bits, 16, out=odd)
    sign &= 0x8000
    code |= sign
    np.copyto(codes, code, casting="unsafe")


@functools.cache
def _every_float16() -> NDArray[np.float32]:
    """The numbers that codes of float16 stand for, by code."""
    return np.arange(1 << 16).astype("<u2").view("<f2").astype(np.float32)


def round_bfloat16(numbers: NDArray[np.float32], codes: NDArray[np.uint16]) -> None:
    """Write the nearest bfloat16 of each, as integers; right for all but NaN."""
    bits = numbers.view(np.uint32)
    # Adding a half rounds to nearest; a little less unless the last bit is odd, to even.
    rounded = bits >> 16
    rounded &= 1
    rounded += bits
    rounded += 0x7FFF
    rounded >>= 16
    np.copyto(codes, rounded, casting="unsafe")


def widen_bfloat16(codes: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers that codes of bfloat16 stand for."""
    bits = codes.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def real_numbers(items: Array) -> Array | None:
    """Flat float32, float64, or complex of these, as a view of real numbers; None for others."""
    dtype = items.dtype
    if dtype.kind == "c" and dtype.itemsize in (8, 16):
        return items.view(f"{dtype.byteorder}f{dtype.itemsize // 2}")
    return items if dtype.kind == "f" and dtype.itemsize in (4, 8) else None


def _beyond(numbers: Array, limit: float) -> NDArray[np.bool_] | None:
    """Which numbers are NaN or at least ``limit`` in size; None, faster, if there is none."""
    if numbers.max() < limit and numbers.min() > -limit:
        return None
    return ~(np.abs(numbers) < limit)
