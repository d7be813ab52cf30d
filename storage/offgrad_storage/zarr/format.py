"""The format of ZarrStore's files: one Zarr 3 array, in one shard, for each kind of tensor.

The tensors of one kind (dtype, shape and codec) are the slots of one array, along its first axis.
The array is a single shard: a file that holds each slot's chunks wherever they were written, in any
order and with anything between them, and at its end or start an index of where they are.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

CHUNK_NBYTES = 1 << 30  # Blosc takes, and Linux writes at once, just under 2 GiB

_NOWHERE = (2**64 - 1, 2**64 - 1)
_NUMBERS = "?bhilqBHILQefdFD"
_CODEC_DTYPES = {"packed": np.dtype("?"), "bfloat16": np.dtype("<f4")}
_BLOSC_NAMES = ("lz4", "lz4hc", "zstd", "zlib", "blosclz")
_BLOSC_SHUFFLES = ("shuffle", "bitshuffle", "noshuffle")

DType = np.dtype[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How one tensor is stored.

    Attributes:
        dtype: of the stored view of its bytes.
        shape: its shape, with one more axis where ``dtype`` is smaller than the tensor's own; or
            its size.
        chunk: the shape of a chunk. Chunks are C-contiguous, and all of the same size: the last
            one along an axis is padded, with anything.
        grid: chunks along each axis; their order in the index is C order.
    """

    dtype: DType
    shape: Shape
    chunk: Shape
    grid: Shape

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one chunk, before it is encoded."""
        return math.prod(self.chunk) * self.dtype.itemsize


def layout(shape: Shape, dtype: DType, limit: int | None = None) -> Layout:
    """The layout of a tensor in chunks of at most ``limit`` bytes, cut along the first axis.

    So chunks are its bytes in C order. A tensor with larger rows is stored flat.
    """
    return _layout(shape, dtype, CHUNK_NBYTES if limit is None else limit)


@functools.lru_cache(1024)
def _layout(shape: Shape, dtype: DType, limit: int) -> Layout:
    stored, extra = storable(dtype)
    shape = (*shape, *extra)
    if math.prod(shape[1:]) * stored.itemsize > limit:
        shape = (math.prod(shape),)
    chunk = [max(1, n) for n in shape]  # Zarr has no empty chunks
    nbytes = math.prod(chunk) * stored.itemsize
    if nbytes > limit:
        pieces = -(-chunk[0] // max(1, limit * chunk[0] // nbytes))
        chunk[0] = -(-chunk[0] // pieces)  # of similar size, for little padding
    grid = tuple(-(-max(1, n) // c) for n, c in zip(shape, chunk, strict=True))
    return Layout(stored, shape, tuple(chunk), grid)


def storable(dtype: DType) -> tuple[DType, Shape]:
    """The dtype of Zarr 3 to view an array's bytes as, and the axes that the view adds.

    Booleans, numbers of either byte order, dates and durations keep their dtype. Others (bfloat16,
    structured, text, long double, ...) become unsigned integers of their size, or of one byte with
    another axis.
    """
    if dtype.kind == "c" and dtype.str[0] == ">" and dtype.itemsize <= 16:
        # zarrs reverses all bytes of a complex number, which swaps its parts.
        return np.dtype(f">f{dtype.itemsize // 2}"), (2,)
    timed = dtype.kind in "mM" and np.datetime_data(dtype)[0] != "generic"
    if timed or (dtype.num < 256 and dtype.char in _NUMBERS):
        return np.dtype(dtype.str), ()  # zarr does not know that "q" is "l"
    if dtype.itemsize in (1, 2, 4, 8):
        return np.dtype(f"u{dtype.itemsize}"), ()
    return np.dtype("u1"), (dtype.itemsize,)


def shard_index(entries: Sequence[tuple[int, int] | None]) -> bytes:
    """The index of a shard: each chunk's offset in the file and length in bytes; None for no chunk.

    It has an entry for each slot that the shard has room for, times the chunks of a slot. It is the
    very end of the file, or the start. A slot without a chunk reads as zeros (dates as NaT).
    """
    import google_crc32c

    numbers = np.array([entry or _NOWHERE for entry in entries], "<u8").tobytes()
    return numbers + struct.pack("<I", google_crc32c.value(numbers))


def index_nbytes(chunks: int) -> int:
    """The size of the index of a shard with room for so many chunks."""
    return 16 * chunks + 4


def compressor(codec: str) -> Any:
    """The zarr codec of a name, None for "none".

    Names are "none", "zstd", "packed" (for booleans), "bfloat16" (for float32, rounded), "int8"
    and "int4" (for the integers of ``zarr.groups``: None) and "blosc-NAME" with NAME one of
    lz4, lz4hc, zstd, zlib, blosclz, and optionally "-shuffle" (the default), "-bitshuffle" or
    "-noshuffle".
    """
    from zarr.codecs import BloscCodec, ZstdCodec

    if codec in ("none", "int8", "int4"):
        return None
    if codec == "zstd":
        return ZstdCodec(level=1)
    if codec == "packed":
        # Every reader has this one, and it leaves a boolean one bit; few know packbits.
        return BloscCodec(cname="lz4", clevel=1, shuffle="bitshuffle")
    if codec == "bfloat16":
        # Stored as float32, because few readers know the dtype bfloat16; zarr-python does not.
        return BloscCodec(cname="lz4", clevel=1, shuffle="shuffle")
    family, _, rest = codec.partition("-")
    name, dash, shuffle = rest.partition("-")
    shuffle = shuffle if dash else "shuffle"
    if family != "blosc" or name not in _BLOSC_NAMES or shuffle not in _BLOSC_SHUFFLES:
        raise ValueError(
            f"unknown codec {codec!r}; there are none, zstd, packed, bfloat16, int8, int4, and "
            f"blosc-NAME[-SHUFFLE] with NAME of {', '.join(_BLOSC_NAMES)} "
            f"and SHUFFLE of {', '.join(_BLOSC_SHUFFLES)}"
        )
    return BloscCodec(cname=name, clevel=1, shuffle=shuffle)


def dimension_names(name: str, ndim: int) -> list[str]:
    """Names for the axes of the array ``name``, of which ``ndim`` are a tensor's.

    xarray wants names, all different, and of one size wherever they occur in a group.
    """
    return [f"{name}.slot", *(f"{name}.{axis}" for axis in range(ndim))]


def create(
    group: Any,
    name: str,
    tensor_shape: Shape,
    dtype: DType,
    count: int,
    codec: str,
    attributes: Mapping[str, Any],
    names: Sequence[str] | None = None,
    capacity: int | None = None,
    index_location: Literal["start", "end"] = "end",
) -> str:
    """Have zarr write the metadata of an array of ``count`` slots; no file of data is touched.

    Args:
        group: the zarr group, of format 3, that has no array of that name.
        name: the array's name.
        tensor_shape: the shape of one slot, as the tensor has it.
        dtype: the tensor's dtype.
        count: slots of the array.
        codec: as ``compressor`` knows it.
        attributes: JSON. ``offgrad_codec`` is added, and ``offgrad_dtype`` and
            ``offgrad_shape`` where zarr gives back others than the tensor's.
        names: names of the axes, those of ``storable`` included; None for ``dimension_names``.
        capacity: slots that the shard, hence its index, has room for; None for ``count``. Up to
            there ``resize`` changes the metadata alone.
        index_location: of the shard's index.

    Returns:
        The path of the shard's file, relative to the group's folder.
    """
    from zarr.codecs import BytesCodec

    if codec in _CODEC_DTYPES and dtype != _CODEC_DTYPES[codec]:
        raise ValueError(f"codec {codec!r} is for {_CODEC_DTYPES[codec]}, not for {dtype}")
    tensor = layout(tensor_shape, dtype)
    slots = max(1, count if capacity is None else capacity)
    if slots < count:
        raise ValueError(f"{count} slots are more than the capacity of {capacity}")
    room = tuple(c * n for c, n in zip(tensor.chunk, tensor.grid, strict=True))
    attributes = dict(attributes) | {"offgrad_codec": codec}
    if tensor.dtype != dtype or not dtype.isnative:
        attributes["offgrad_dtype"] = str(dtype)
    if len(tensor.shape) < len(tensor_shape):
        attributes["offgrad_shape"] = list(tensor_shape)
    array = group.create_array(
        name,
        shape=(count, *tensor.shape),
        shards={"shape": (slots, *room), "index_location": index_location},
        chunks=(1, *tensor.chunk),
        dtype=tensor.dtype,
        filters=None,
        # By itself zarr says "little" for either byte order.
        serializer=BytesCodec(endian="big" if tensor.dtype.str[0] == ">" else "little"),
        compressors=compressor(codec),
        attributes=attributes,
        dimension_names=names or dimension_names(name, len(tensor.shape)),
    )
    return f"{name}/{array.metadata.encode_chunk_key((0,) * array.ndim)}"
