"""Lossless codecs that look at values: packed bits, mostly zeros, small integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.codecs.base import (
    Array,
    Bytes,
    Codec,
    blocks,
    flat,
)
from offgrad_storage.entry import bytes_of


class PackBits(Codec):
    """Eight bools to a byte, the first in the highest bit. Applies to bool alone.

    An array that holds other bytes than 0 and 1 is stored as it is.
    """

    name = "packbits"

    def applies(self, array: Array) -> bool:
        """Whether it holds bools, and more than one."""
        return bool(array.dtype == np.bool_) and array.size > 1

    def encode(self, array: Array, seed: int = 0) -> Bytes | None:
        """The packed bits."""
        if not self.applies(array):
            return None
        items = flat(array).view(np.uint8)
        data = np.empty(-(-items.size // 8), np.uint8)
        for part in blocks(items.size, 1):
            if items[part].max() > 1:
                return None
            data[_bits(part)] = np.packbits(items[part])
        return data

    def decode(self, data: Bytes, out: Array) -> None:
        """Unpack."""
        self._check_nbytes(data, -(-out.size // 8))
        items = bytes_of(out)
        for part in blocks(items.size, 1):
            items[part] = np.unpackbits(data[_bits(part)], count=part.stop - part.start)


class Sparse(Codec):
    """A bit for each word that says whether it is zero, then the words that are not.

    Words are compared by their bits, so that -0.0 and NaN survive. A word is an item, or where that
    is no power of two up to 8 bytes, the largest such piece of it. Dense arrays are found out by
    one count, at the speed of memory.
    """

    name = "sparse"

    def encode(self, array: Array, seed: int = 0) -> Bytes | None:
        """The bits, then the words."""
        if not array.nbytes:
            return None
        words = _words(flat(array))
        nbits = -(-words.size // 8)
        nbytes = nbits + np.count_nonzero(words) * words.itemsize
        if nbytes >= array.nbytes:
            return None
        data = np.empty(nbytes, np.uint8)
        end = nbits
        for part in blocks(words.size, words.itemsize, 8):
            there = words[part] != 0
            data[_bits(part)] = np.packbits(there)
            # Twice to five times as fast as indexing by a mask, which mispredicts its branches.
            found = words[part].take(np.flatnonzero(there)).view(np.uint8)
            data[end : end + found.nbytes] = found
            end += found.nbytes
        return data

    def decode(self, data: Bytes, out: Array) -> None:
        """Spread the words over zeros."""
        words = _words(out.reshape(-1))
        end = -(-words.size // 8)
        if data.nbytes < end:
            raise self._damaged(f"there are {data.nbytes}, fewer than {end}")
        for part in blocks(words.size, words.itemsize, 8):
            there = np.unpackbits(data[_bits(part)], count=part.stop - part.start)
            places = np.flatnonzero(there.view(np.bool_))
            start, end = end, end + places.size * words.itemsize
            if data.nbytes < end:
                raise self._damaged("words are missing")
            words[part] = 0
            # A copy, because placing from an odd address takes four times as long.
            words[part][places] = data[start:end].copy().view(words.dtype)
        self._check_nbytes(data, end)


class Downcast(Codec):
    """Integers in the smallest integer dtype that holds all of them, after a byte that names it."""

    name = "downcast"

    def encode(self, array: Array, seed: int = 0) -> Bytes | None:
        """The dtype's letter, then the integers."""
        if array.dtype.kind not in "iu" or not array.size:
            return None
        items = flat(array)
        low = high = int(items[0])
        for part in blocks(items.size, items.itemsize):
            low = min(low, int(items[part].min()))
            high = max(high, int(items[part].max()))
            target = _smallest(low, high)
            if target.itemsize >= items.itemsize:
                return None
        data = np.empty(1 + items.size * target.itemsize, np.uint8)
        if data.nbytes >= array.nbytes:
            return None
        data[0] = ord(target.char)
        np.copyto(data[1:].view(target), items, casting="unsafe")
        return data

    def decode(self, data: Bytes, out: Array) -> None:
        """Cast back."""
        letter = chr(data[0]) if data.nbytes else ""
        if not letter or letter not in "bBhHiI":
            raise self._damaged("no dtype is named first")
        source = np.dtype(f"<{letter}")
        self._check_nbytes(data, 1 + out.size * source.itemsize)
        np.copyto(out.reshape(-1), data[1:].view(source), casting="unsafe")


def _bits(part: slice) -> slice:
    """Where the bits of a block are that starts at a multiple of 8."""
    return slice(part.start // 8, -(-part.stop // 8))


def _words(items: Array) -> NDArray[np.unsignedinteger[Any]]:
    """Flat and contiguous items as unsigned words that their size is a multiple of."""
    size = 8
    while items.itemsize % size:
        size //= 2
    return bytes_of(items).view(f"u{size}")


def _smallest(low: int, high: int) -> np.dtype[Any]:
    for letter in "BHI" if low >= 0 else "bhi":
        dtype = np.dtype(f"<{letter}")
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return dtype
    return np.dtype("<u8" if low >= 0 else "<i8")
