"""Codec: the interface of encodings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

BLOCK_NBYTES = 256 << 10
"""Bytes of a block: small enough for its temporaries to stay in the cache."""


class Codec(ABC):
    """Turns an array into fewer bytes and back. Thread-safe; equal to another of the same name.

    Attributes:
        name: as ``codec()`` takes it.
        lossless: whether decoding gives the array bit for bit.
        error_bound: how far off a decoded value may be, in words and as a formula; "" if lossless.
    """

    name: str
    lossless: ClassVar[bool] = True
    error_bound: str = ""

    def applies(self, array: Array) -> bool:
        """Whether ``encode`` may return bytes, judged by dtype and size."""
        return True

    @abstractmethod
    def encode(self, array: Array, seed: int = 0) -> Bytes | None:
        """The encoded bytes of ``array``, perhaps read-only; None to store it as it is.

        None if the codec does not apply to the dtype or the values, or would not make the array
        smaller.

        Args:
            array: of any memory order and any dtype of fixed size without Python objects.
            seed: of the stochastic rounding. The same array and seed give the same bytes.
        """

    @abstractmethod
    def decode(self, data: Bytes, out: Array) -> None:
        """Fill ``out`` with the array that ``data`` was encoded from.

        Args:
            data: all bytes that ``encode`` returned, at any address.
            out: C-contiguous, with the shape and dtype of the array.

        Raises:
            ValueError: the bytes are damaged. Not all damage is found: verify a checksum before.
        """

    def max_error(self, array: Array) -> NDArray[np.float64] | float:
        """An upper bound of ``|decoded - array|``: one for each item, or for all of them.

        For an array that ``encode`` encodes. Items that are NaN or infinite stay so, complex ones
        part by part; for these the bound has no meaning.
        """
        return 0.0

    def _damaged(self, what: str) -> ValueError:
        return ValueError(f"{self.name}: the encoded bytes are damaged: {what}")

    def _check_nbytes(self, data: Bytes, expected: int) -> None:
        if data.nbytes != expected:
            raise self._damaged(f"there are {data.nbytes}, not {expected}")

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, Codec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"codec({self.name!r})"


class Plain(Codec):
    """Stores every array as it is."""

    name = "none"

    def encode(self, array: Array, seed: int = 0) -> Bytes | None:
        """None."""
        return None

    def decode(self, data: Bytes, out: Array) -> None:
        """Raise ValueError: no array is ever encoded."""
        raise ValueError(f"{self.name} encodes nothing, so there is nothing to decode")


def flat(array: Array) -> Array:
    """The items in C order, one-dimensional and contiguous: a view where that is possible."""
    return np.ascontiguousarray(array).reshape(-1)


def blocks(count: int, itemsize: int, multiple: int = 1) -> Iterator[slice]:
    """Slices that cover ``count`` items, each of BLOCK_NBYTES at most.

    All but the last hold a multiple of ``multiple`` items.
    """
    step = max(multiple, BLOCK_NBYTES // itemsize // multiple * multiple)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
