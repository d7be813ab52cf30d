"""Encoding of arrays on their way into a store, and decoding on their way out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage._checks import check_count
from offgrad_storage.codecs import Codec
from offgrad_storage.entry import Entry, Pack

Array = NDArray[Any]


class Encoder:
    """Applies the codec of a store.

    Args:
        codec: None to store arrays as they are.
        seed: of the codec's random rounding.
    """

    def __init__(self, codec: Codec | None, seed: int) -> None:
        check_count("seed", seed)
        self.codec = codec
        self._seed = seed

    def applies(self, array: Array) -> bool:
        """Whether ``encode`` may return something other than ``array``."""
        return self.codec is not None and self.codec.applies(array)

    def encode(self, entry: Entry, array: Array) -> Array:
        """The bytes to store for ``array``: encoded if that makes it smaller, else ``array``."""
        if self.codec is None or isinstance(entry, Pack):
            return array
        data = self.codec.encode(array, self._seed)
        if data is None:
            return array
        entry.encoded_nbytes = data.nbytes
        return data

    def is_encoded(self, entry: Entry) -> bool:
        """Whether the stored bytes of ``entry`` are those of the codec."""
        return self.codec is not None and entry.encoded_nbytes is not None

    def decode(self, data: Array, out: Array) -> None:
        """Fill the C-contiguous ``out`` from the encoded bytes ``data``."""
        assert self.codec is not None
        self.codec.decode(data, out)

    def copy_as_stored(self, source: Array, out: Array) -> None:
        """Fill ``out`` from an array whose write is pending, rounded as it will be stored."""
        if self.codec is not None and not self.codec.lossless:
            data = self.codec.encode(source, self._seed)
            if data is not None:
                self.codec.decode(data, out)
                return
        np.copyto(out, source)
