"""The codecs of a ZarrStore: they produce the bytes of zarr's codecs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.codecs import Codec
from offgrad_storage.codecs import codec as find_codec
from offgrad_storage.codecs.base import Bytes
from offgrad_storage.codecs.general import Compressor
from offgrad_storage.codecs.groups import GroupInt
from offgrad_storage.zarr.blosc_frames import (
    decode_bfloat16,
    decode_mask,
    encode_bfloat16,
    encode_mask,
    stored,
)
from offgrad_storage.zarr.format import layout

Array = NDArray[Any]

_LOSSY = ("bfloat16", "int8", "int4")
_REAL = (np.dtype("<f2"), np.dtype("<f4"), np.dtype("<f8"))
_OWN = ("auto", "none", *_LOSSY)


class ZarrCodec(Codec):
    """Makes chunks that any reader of Zarr 3 decodes.

    Args:
        name: "auto" packs the bits of masks, losslessly, and stores other arrays as they are;
            "none"; "bfloat16" rounds float32, "int8" and "int4" round float16, float32 and float64
            to integers and scales (see ``zarr.groups``), each with "auto" for other arrays;
            "zstd", or "blosc-NAME[-SHUFFLE]" as in ``codec``, for all arrays.

    Attributes:
        lossless: whether arrays come back bit for bit.
    """

    def __init__(self, name: str) -> None:
        if name not in (*_OWN, "zstd") and not name.startswith("blosc-"):
            raise ValueError(
                f"unknown codec {name!r} of a ZarrStore; there are auto, none, bfloat16, int8, "
                "int4, zstd, and blosc-NAME[-SHUFFLE] with NAME of lz4, lz4hc, zstd, zlib, blosclz "
                "and SHUFFLE of shuffle, bitshuffle, noshuffle"
            )
        found = None if name in _OWN else find_codec(name)
        assert found is None or isinstance(found, Compressor)
        self._general = found
        self._rounding = find_codec(name if name in _LOSSY else "none")
        self.name = name if self._general is None else self._general.name
        self.lossless = self._rounding.lossless  # type: ignore[misc]
        self.error_bound = self._rounding.error_bound

    def kind(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        """The name of the zarr codec for arrays of a shape and dtype."""
        if 0 in shape or math.prod(layout(shape, dtype).grid) > 1:
            return "none"  # no bytes, or several chunks
        if self._general is not None:
            return self.name
        if self.name != "none" and dtype == np.bool_:
            return "packed"
        if isinstance(self._rounding, GroupInt):
            real = dtype in _REAL
            return self.name if real and self._rounding.parts(shape, dtype) else "none"
        return "bfloat16" if self.name == "bfloat16" and dtype == np.dtype("<f4") else "none"

    def applies(self, array: Array) -> bool:
        """Whether arrays of that dtype and shape are encoded."""
        return self.kind(array.shape, array.dtype) != "none"

    def encode(self, array: Array, seed: int = 0) -> Bytes | None:
        """The chunk, perhaps a little larger than the array; None to store the array as it is."""
        kind = self.kind(array.shape, array.dtype)
        if kind == "none":
            return None
        if isinstance(self._rounding, GroupInt) and kind == self.name:
            return self._rounding.encode(array, seed)
        items = np.ascontiguousarray(array).reshape(-1)
        if kind == "packed":
            other = items.view(np.uint8).max() > 1  # neither true nor false, but stored
            return stored(items, bits=True) if other else encode_mask(items)
        if kind == "bfloat16":
            rounded = self._rounding.encode(items)
            return stored(items) if rounded is None else encode_bfloat16(rounded.view("<u2"))
        assert self._general is not None
        return self._general.compress(items.view(layout(items.shape, items.dtype).dtype))

    def decode(self, data: Bytes, out: Array) -> None:
        """Fill ``out`` from the chunk."""
        kind = self.kind(out.shape, out.dtype)
        if kind == "packed":
            decode_mask(data, out)
        elif kind == "bfloat16":
            decode_bfloat16(data, out)
        else:
            coder = self._rounding if self._general is None else self._general
            coder.decode(data, out)

    def max_error(self, array: Array) -> NDArray[np.float64] | float:
        """The bound for each item."""
        rounded = self.kind(array.shape, array.dtype) in _LOSSY
        return self._rounding.max_error(array) if rounded else 0.0
