"""General lossless compression by numcodecs; the bytes are those that readers of Zarr decode."""

from __future__ import annotations

import struct
from abc import abstractmethod
from typing import Any

import numpy as np

from offgrad_storage.codecs.base import (
    Array,
    Bytes,
    Codec,
    flat,
)
from offgrad_storage.entry import bytes_of

BLOSC_NAMES = ("lz4", "lz4hc", "zstd", "zlib", "blosclz")
BLOSC_SHUFFLES = ("shuffle", "bitshuffle", "noshuffle")
_ZSTD_MAGIC = 0xFD2FB528


class Compressor(Codec):
    """A codec of numcodecs.

    numcodecs reports neither unused output nor truncated input, so the sizes in the header are
    compared first.
    """

    _max_nbytes: int
    _codec: Any

    def encode(self, array: Array, seed: int = 0) -> Bytes | None:
        """The compressed bytes of the array in C order."""
        if not 0 < array.nbytes <= self._max_nbytes:
            return None
        data = self.compress(array)
        return data if data.nbytes < array.nbytes else None

    def compress(self, array: Array) -> Bytes:
        """The compressed bytes, even if they are not fewer."""
        return np.frombuffer(self._codec.encode(self._input(flat(array))), np.uint8)

    def decode(self, data: Bytes, out: Array) -> None:
        """Decompress into ``out``."""
        found = self._decoded_nbytes(data)
        if found != out.nbytes:
            raise self._damaged(f"they decode to {found} bytes, not {out.nbytes}")
        try:
            self._codec.decode(data, out=bytes_of(out))
        except RuntimeError as error:
            raise self._damaged(str(error)) from error

    def _input(self, array: Array) -> Array:
        return bytes_of(array)

    @abstractmethod
    def _decoded_nbytes(self, data: Bytes) -> int | None:
        """How many bytes the header promises; None if there is no such header."""


class Lz4(Compressor):
    """LZ4 without a frame, after its size in four bytes."""

    name = "lz4"
    _max_nbytes = 0x7E000000

    def __init__(self) -> None:
        from numcodecs.lz4 import LZ4

        self._codec = LZ4()

    def _decoded_nbytes(self, data: Bytes) -> int | None:
        return int(struct.unpack_from("<I", data.data)[0]) if data.nbytes >= 4 else None


class Zstd(Compressor):
    """Zstandard, level 1."""

    name = "zstd"
    _max_nbytes = 1 << 62

    def __init__(self) -> None:
        from numcodecs.zstd import Zstd

        self._codec = Zstd(level=1)

    def _decoded_nbytes(self, data: Bytes) -> int | None:
        # RFC 8878, section 3.1.1.1: magic, descriptor, window, dictionary, content size.
        if data.nbytes < 5 or struct.unpack_from("<I", data.data)[0] != _ZSTD_MAGIC:
            return None
        descriptor = int(data[4])
        single = descriptor >> 5 & 1
        start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
        nbytes = (single, 2, 4, 8)[descriptor >> 6]
        if not nbytes or data.nbytes < start + nbytes:
            return None
        size = int.from_bytes(data[start : start + nbytes].tobytes(), "little")
        return size + 256 if nbytes == 2 else size


class Blosc(Compressor):
    """Blosc 1, level 1: bytes or bits of the same rank are shuffled together, then compressed.

    Args:
        compressor: one of BLOSC_NAMES.
        shuffle: one of BLOSC_SHUFFLES.
    """

    _max_nbytes = (1 << 31) - 1 - 16  # 16 bytes of header

    def __init__(self, compressor: str, shuffle: str) -> None:
        from numcodecs import blosc

        # Its threads would write the blocks in a random order; zarr disables them as well. Getting
        # the lock now imports a module that a forked process would wait for.
        blosc.use_threads = False
        blosc.get_mutex()
        self.name = f"blosc-{compressor}" + (f"-{shuffle}" if shuffle != "shuffle" else "")
        number = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[shuffle]
        self._codec = blosc.Blosc(compressor, clevel=1, shuffle=number)

    def _input(self, array: Array) -> Array:
        # The size of the items, which numcodecs takes from the dtype; Blosc knows none above 255.
        size = array.itemsize if array.itemsize <= 255 else 1
        return bytes_of(array).view(f"V{size}")

    def _decoded_nbytes(self, data: Bytes) -> int | None:
        if data.nbytes < 16:
            return None
        decoded, _, encoded = struct.unpack_from("<III", data.data, 4)
        return int(decoded) if encoded == data.nbytes else None
