"""int8 and int4 in Zarr: arrays of integers, of their scales, and of exact groups.

The encoded bytes of a tensor are written in one piece, as any tensor is: scales, integers, groups
kept exactly. The slots of the array NAME are the integers in that file. The scales, about 1/32 of
their bytes, and the exact groups, usually none, are copied into companion arrays when the folder is
published. All three are uncompressed; a number is value * scale.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.codecs import codec as find_codec
from offgrad_storage.codecs.base import Bytes
from offgrad_storage.codecs.groups import GROUP, GroupInt
from offgrad_storage.entry import Entry, Pack, bytes_of
from offgrad_storage.files.direct_file import create
from offgrad_storage.memory.buffer_pool import PAGE, BufferPool, round_up
from offgrad_storage.zarr.format import shard_index

_BLOCK_NBYTES = 1 << 20  # of a chunk of the companion arrays, and of a copied block
_DTYPES = ("float16", "float32", "float64")
_FORMULA = {
    8: "x = value * scale; one scale for each 128 values in C order. Where the scale is NaN, the "
    "values are the next row of {name}.exact instead",
    4: "x = value * scale; one scale for each 64 bytes: their lower 4 bits are the first 64 values "
    "of a group of 128 in C order, their upper 4 bits the others, from -7 to 7 in two's "
    "complement. Where the scale is NaN, the values are the next row of {name}.exact instead",
}

Array = NDArray[Any]


class Groups:
    """Storage of tensors of one shape and dtype as integers and scales.

    Args:
        codec: "int8" or "int4".
        shape, dtype: of the tensors: those that the codec applies to.

    Attributes:
        integers: shape and dtype of a slot of integers: int8 of the tensor's shape, or uint8 of two
            values each, [groups, 64].
        parts: the places of integers and scales in the encoded bytes.
    """

    def __init__(self, codec: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        coder = _group_codec(codec)
        parts = coder.parts(shape, dtype)
        assert parts is not None
        self.parts = parts
        self._codec = coder
        self._shape = shape
        self._dtype = dtype
        self._row_nbytes = GROUP * dtype.itemsize
        self.integers = (
            (shape, np.dtype("i1"))
            if coder.bits == 8
            else ((parts.groups, GROUP // 2), np.dtype("u1"))
        )

    def attributes(self, name: str) -> dict[str, Any]:
        """Attributes for readers: how to convert the integers to floats."""
        return {
            "offgrad_dtype": self._dtype.name,
            "offgrad_shape": list(self._shape),
            "offgrad_group": GROUP,
            "offgrad_formula": _FORMULA[self._codec.bits].format(name=name),
        }

    def write_companions(
        self, group: Any, folder: Path, name: str, slots: Sequence[Entry], buffers: BufferPool
    ) -> dict[str, list[int]]:
        """Write NAME.scales, [slots, groups], and if need be NAME.exact, [groups kept, 128].

        Returns:
            ``offgrad_exact`` where there is one: the first row in it of each slot.
        """
        remove_companions(folder, name)
        reader = _Reader(buffers)
        kept = [-(-self._kept_nbytes(slot) // self._row_nbytes) for slot in slots]
        _write_rows(
            group, folder, f"{name}.scales", self.parts.scale, (len(slots), self.parts.groups),
            (self._scales(reader, slot) for slot in slots), [f"{name}.slot", f"{name}.group"],
        )  # fmt: skip
        if not any(kept):
            return {}
        _write_rows(
            group, folder, f"{name}.exact", self._dtype, (sum(kept), GROUP),
            self._exact(reader, slots), [f"{name}.row", f"{name}.member"],
        )  # fmt: skip
        return {"offgrad_exact": [0, *itertools.accumulate(kept)][:-1]}

    def _kept_nbytes(self, slot: Entry) -> int:
        """Bytes of the exact groups: of all groups, if the tensor is not encoded."""
        return slot.payload_nbytes - (self.parts.nbytes if slot.encoded_nbytes is not None else 0)

    def _scales(self, reader: _Reader, slot: Entry) -> Bytes:
        """The scales of a slot, NaN for a group kept exactly."""
        if slot.encoded_nbytes is not None:
            return reader.read(slot, 0, self.parts.scales_nbytes)
        return bytes_of(np.full(self.parts.groups, np.nan, self.parts.scale))

    def _exact(self, reader: _Reader, slots: Sequence[Entry]) -> Iterator[Bytes]:
        """The exact groups; the last one of a tensor is filled with zeros."""
        for slot in slots:
            nbytes = self._kept_nbytes(slot)
            start = slot.payload_nbytes - nbytes
            for done in range(0, nbytes, _BLOCK_NBYTES):
                yield reader.read(slot, start + done, min(_BLOCK_NBYTES, nbytes - done))
            yield np.zeros(-nbytes % self._row_nbytes, np.uint8)


def dequantize(group: Any, name: str, slot: int) -> Array:
    """The floats of a slot of an int8 or int4 array that a ZarrStore has written.

    They are bit for bit those that ``get`` returns. For int8 without exact groups it computes, with
    one scale for each 128 numbers::

        values = group[name][slot].reshape(-1).astype("f4")
        values *= np.repeat(group[f"{name}.scales"][slot], 128)[: values.size]

    Args:
        group: the zarr group that holds the array, or the Dataset that xarray makes of it.
        name: of the array; the attribute ``offgrad_codec`` of the array is "int8" or "int4".
        slot: an index along its first axis.

    Returns:
        A new array of the tensor's shape and dtype.

    Raises:
        ValueError: the array has another codec, or the arrays do not belong together.
        IndexError, KeyError: there is no such slot or array.
    """
    stored = group[name]
    attributes = stored.attrs
    coder = _group_codec(attributes.get("offgrad_codec"))
    dtype_name, shape = attributes.get("offgrad_dtype"), attributes.get("offgrad_shape")
    if dtype_name not in _DTYPES:
        raise ValueError(f"{name}: offgrad_dtype must be one of {_DTYPES}, got {dtype_name!r}")
    dtype, shape = np.dtype(dtype_name), tuple(shape)
    slot = range(stored.shape[0])[slot]
    codes = np.ascontiguousarray(stored[slot])
    scales = np.ascontiguousarray(group[f"{name}.scales"][slot])
    parts = coder.parts(shape, dtype)
    if parts is None or (parts.scales_nbytes, parts.codes_nbytes) != (scales.nbytes, codes.nbytes):
        raise ValueError(
            f"{name}: {scales.size} scales and {codes.nbytes} bytes of integers are not those of "
            f"{dtype} {shape}"
        )
    kept = np.isnan(scales)
    data = [bytes_of(scales), bytes_of(codes)]
    if kept.any():
        first = attributes["slots"]["offgrad_exact"][slot]
        rows = group[f"{name}.exact"][first : first + np.count_nonzero(kept)]
        exact = np.ascontiguousarray(rows, dtype).reshape(-1)
        filled = -math.prod(shape) % GROUP if kept[-1] else 0
        data.append(bytes_of(exact[: exact.size - filled]))
    out = np.empty(shape, dtype)
    coder.decode(np.concatenate(data), out)
    return out


def remove_companions(folder: Path, name: str) -> None:
    """Remove the arrays of ``write_companions``, if they exist."""
    for each in ("scales", "exact"):
        shutil.rmtree(folder / f"{name}.{each}", ignore_errors=True)


class _Reader:
    """Reads parts of stored arrays; the last pack is cached, since the next part is often in it."""

    def __init__(self, buffers: BufferPool) -> None:
        self._buffers = buffers
        self._pack: Pack | None = None
        self._data: Bytes

    def read(self, entry: Entry, offset: int, nbytes: int) -> Bytes:
        """``nbytes`` from ``offset`` of the stored bytes of ``entry``."""
        if entry.pack is None:
            within = offset % PAGE
            return self._pages(entry, offset - within, within + nbytes)[within:]
        if entry.pack is not self._pack:
            self._data = self._pages(entry.pack, 0, entry.pack.nbytes)
            self._pack = entry.pack
        return self._data[entry.offset + offset :][:nbytes]

    def _pages(self, entry: Entry, offset: int, nbytes: int) -> Bytes:
        file, start, _ = entry.place
        data: Bytes = self._buffers.empty(round_up(nbytes), np.uint8)
        file.read_part(entry, data, start + offset, nbytes)
        return data[:nbytes]


def _group_codec(name: Any) -> GroupInt:
    if name not in ("int8", "int4"):
        raise ValueError(f"the codec must be int8 or int4, got {name!r}")
    found = find_codec(name)
    assert isinstance(found, GroupInt)
    return found


def _write_rows(
    group: Any,
    folder: Path,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, int],
    blocks: Iterable[Bytes],
    dimensions: list[str],
) -> None:
    """Write a two-dimensional array: one shard, of chunks of whole rows, one after another.

    zarr writes the metadata. Writing the data with zarr would hold all of it in memory, or read and
    write each chunk many times.
    """
    from zarr.codecs import BytesCodec

    count, width = shape
    row_nbytes = width * dtype.itemsize
    rows = max(1, min(count, _BLOCK_NBYTES // row_nbytes))
    chunks = -(-count // rows) or 1
    (folder / name).mkdir(mode=0o700)
    group.create_array(
        name,
        shape=shape,
        shards=(chunks * rows, width),
        chunks=(rows, width),
        dtype=dtype,
        filters=None,
        serializer=BytesCodec(endian="little"),
        compressors=None,
        dimension_names=dimensions,
    )
    (folder / name / "zarr.json").chmod(0o600)
    if not count:
        return
    shard = folder / name / "c" / "0" / "0"
    shard.parents[1].mkdir(mode=0o700)
    shard.parents[0].mkdir(mode=0o700)
    with open(create(shard), "wb") as file:
        for block in blocks:
            file.write(block.data)
        file.write(bytes((chunks * rows - count) * row_nbytes))
        each = rows * row_nbytes
        file.write(shard_index([(number * each, each) for number in range(chunks)]))
