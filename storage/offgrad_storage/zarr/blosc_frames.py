"""Blosc frames, for every reader of Blosc, of data that needs no compressor.

Blosc with "bitshuffle" puts the lowest bits of all booleans first, then seven planes of zeros. With
"shuffle" it puts the two low bytes of all float32 first: zeros, where the numbers were rounded to
bfloat16. LZ4 shortens the zeros and keeps the rest. So all of the frame but the bits is known
beforehand, and NumPy packs these three to ten times as fast as Blosc does.

The frame: https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst
A block: https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 18  # bytes of a decoded block: within a core's cache
_SMALLEST = 256  # elements; below, a frame is stored as it is
_VERSION, _LZ4_VERSION = 2, 1
_SHUFFLE, _STORED, _BITSHUFFLE = 0x01, 0x02, 0x04
_LZ4_WHOLE_BLOCKS = 1 << 5 | 0x10

Bytes = NDArray[np.uint8]


def encode_mask(mask: NDArray[np.bool_]) -> Bytes:
    """A C-contiguous array of fewer than 2**31 - 1024 booleans as a Blosc frame of LZ4 blocks.

    About 0.129 bytes an element; 1 element a byte below 256 elements.
    """
    flat = mask.reshape(-1)
    size = flat.size
    if size < _SMALLEST:
        return stored(flat, bits=True)
    # Blocks of one size, each of whole bytes of bits; the rest is stored as it is.
    count = -(-size // _BLOCK)
    block = size // count // 8 * 8
    before, after = _around(block)
    rest = _rest(flat[count * block :])
    width = len(before) + block // 8 + len(after)
    table = 16 + 4 * (count + bool(rest.size))
    end = table + count * width
    frame: Bytes = np.empty(end + rest.size, np.uint8)
    frame[:16] = _header(_BITSHUFFLE, 1, size, block, frame.size)
    starts = np.arange(table, end + bool(rest.size), width, dtype="<u4")
    frame[16:table] = starts.view(np.uint8)
    rows = frame[table:end].reshape(count, width)
    rows[:, : len(before)] = before
    bits = flat[: count * block].reshape(count, block)
    rows[:, len(before) : -len(after)] = np.packbits(bits, axis=1, bitorder="little")
    rows[:, -len(after) :] = after
    frame[end:] = rest
    return frame


def decode_mask(frame: Bytes, out: NDArray[np.bool_]) -> None:
    """Fill the C-contiguous ``out`` from a frame of ``encode_mask`` or ``stored``, and no other."""
    flat = out.reshape(-1)
    size = flat.size
    if frame[2] & _STORED:
        flat[:] = frame[16:].view(np.bool_)
        return
    count = -(-size // _BLOCK)
    block = size // count // 8 * 8
    before, after = _around(block)
    left = flat[count * block :]
    end = frame.size - (4 + left.size if left.size else 0)
    width = len(before) + block // 8 + len(after)
    rows = frame[end - count * width : end].reshape(count, width)
    for row, bits in zip(flat[: count * block].reshape(count, block), rows, strict=True):
        packed = bits[len(before) : -len(after)]
        row[:] = np.unpackbits(packed, bitorder="little").view(np.bool_)
    if left.size % 8:
        left[:] = frame[end + 4 :].view(np.bool_)
    elif left.size:
        packed = frame[end + 4 : end + 4 + left.size // 8]
        left[:] = np.unpackbits(packed, bitorder="little").view(np.bool_)


def encode_bfloat16(bits: NDArray[np.uint16]) -> Bytes:
    """A C-contiguous array of fewer than 2**29 - 1024 bfloat16, by their bits, as a Blosc frame.

    It decodes to their values as little-endian float32. About 2.016 bytes an element; 4 below
    256 elements.
    """
    flat = bits.reshape(-1)
    size = flat.size
    if size < _SMALLEST:
        return stored(flat.astype("<u4") << 16)
    blocks = _float_blocks(size)
    table = 16 + 4 * len(blocks)
    before = [_before_floats(stop - start) for start, stop in blocks]
    widths = [len(b) + 2 * (stop - start) for b, (start, stop) in zip(before, blocks, strict=True)]
    ends = table + np.cumsum(widths)
    frame: Bytes = np.empty(ends[-1], np.uint8)
    frame[:16] = _header(_SHUFFLE, 4, 4 * size, 4 * (blocks[0][1]), frame.size)
    frame[16:table] = (ends - widths).astype("<u4").view(np.uint8)
    for b, end, (start, stop) in zip(before, ends, blocks, strict=True):
        half, block = stop - start, flat[start:stop]
        frame[end - 2 * half - len(b) : end - 2 * half] = b
        np.copyto(frame[end - 2 * half : end - half], block, casting="unsafe")  # the low bytes
        np.copyto(frame[end - half : end], block >> 8, casting="unsafe")
    return frame


def decode_bfloat16(frame: Bytes, out: NDArray[np.float32]) -> None:
    """Fill the C-contiguous ``out`` from a frame of ``encode_bfloat16`` or ``stored``, no other."""
    flat = out.reshape(-1).view(np.uint32)
    size = flat.size
    if frame[2] & _STORED:
        flat[:] = frame[16:].view("<u4")
        return
    end = frame.size
    for start, stop in reversed(_float_blocks(size)):
        half, block = stop - start, flat[start:stop]
        np.copyto(block, frame[end - half : end])
        np.left_shift(block, 8, out=block)
        np.bitwise_or(block, frame[end - 2 * half : end - half], out=block)
        np.left_shift(block, 16, out=block)
        end -= len(_before_floats(half)) + 2 * half


def stored(flat: NDArray[Any], bits: bool = False) -> Bytes:
    """A frame that holds the items of a flat array as they are; ``decode_...`` takes these, too.

    It says that bits would be shuffled, or bytes, as other frames of its array are.
    """
    size = flat.nbytes
    flags = _STORED | (_BITSHUFFLE if bits else _SHUFFLE)
    header = _header(flags, flat.itemsize, size, max(1, size), 16 + size)
    return np.concatenate([header, flat.view(np.uint8)])


def _float_blocks(size: int) -> list[tuple[int, int]]:
    """Where blocks begin and end, in elements: all of one size but for the last, a little less."""
    step = -(-size // -(-4 * size // _BLOCK))
    return [(start, min(start + step, size)) for start in range(0, size, step)]


def _header(shuffle: int, itemsize: int, size: int, block: int, total: int) -> Bytes:
    flags = shuffle | _LZ4_WHOLE_BLOCKS
    return _bytes(struct.pack("<4B3I", _VERSION, _LZ4_VERSION, flags, itemsize, size, block, total))


@functools.lru_cache(maxsize=64)
def _around(block: int) -> tuple[Bytes, Bytes]:
    """The bytes before and after the bits of a block of ``block`` elements, with its length.

    Two sequences of LZ4: the bits and one zero, then a copy of that zero; and the five last
    bytes, which LZ4 wants spelled out.
    """
    literals = block // 8 + 1
    copied = block - literals - 5 - 4  # the shortest copy is of 4 bytes, and counts as 0
    token = min(literals, 15) << 4 | min(copied, 15)
    before = bytes([token]) + _more(literals)
    after = bytes([0]) + struct.pack("<H", 1) + _more(copied) + bytes([5 << 4]) + bytes(5)
    length = len(before) + block // 8 + len(after)
    return _bytes(struct.pack("<I", length) + before), _bytes(after)


@functools.lru_cache(maxsize=64)
def _before_floats(size: int) -> Bytes:
    """The bytes before the upper bytes of a block of ``size`` elements, with its length.

    A zero, a copy of it for all the lower bytes, and the head of the literals that follow.
    """
    copied, literals = 2 * size - 1 - 4, 2 * size
    zeros = bytes([1 << 4 | min(copied, 15), 0]) + struct.pack("<H", 1) + _more(copied)
    before = zeros + bytes([min(literals, 15) << 4]) + _more(literals)
    return _bytes(struct.pack("<I", len(before) + literals) + before)


def _more(length: int) -> bytes:
    """The bytes by which LZ4 continues a length of 15 and more."""
    if length < 15:
        return b""
    full, rest = divmod(length - 15, 255)
    return b"\xff" * full + bytes([rest])


def _rest(flat: NDArray[Any]) -> Bytes:
    """The last block, stored: Blosc shuffles whole bytes of bits only."""
    if not flat.size:
        return np.empty(0, np.uint8)
    planes: Bytes = np.zeros(flat.size, np.uint8)
    if flat.size % 8:
        planes[:] = flat.view(np.uint8)
    else:
        planes[: flat.size // 8] = np.packbits(flat, bitorder="little")
    return np.concatenate([_bytes(struct.pack("<I", flat.size)), planes])


def _bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)
