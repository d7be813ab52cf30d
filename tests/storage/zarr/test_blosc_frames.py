"""Frames made without a compressor, as Blosc and the readers of Zarr see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st
from offgrad_storage.testing import assert_same
from offgrad_storage.zarr import format as zarr_format
from offgrad_storage.zarr.blosc_frames import (
    decode_bfloat16,
    decode_mask,
    encode_bfloat16,
    encode_mask,
)

BLOCK = 1 << 18


def mask(size: int, share: float = 0.5) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.random.default_rng(size).random(size) < share


@given(st.integers(1, 3000) | st.integers(BLOCK - 20, BLOCK + 20), st.sampled_from([0.0, 0.3, 1.0]))
@example(5 * BLOCK, 0.5)
@example(3 * BLOCK + 24, 0.5)
@example(7 * BLOCK - 1, 0.5)
def test_blosc_decodes_packed_masks(size: int, share: float) -> None:
    array = mask(size, share)
    frame = encode_mask(array)
    assert np.frombuffer(numcodecs.Blosc().decode(frame), np.bool_).tolist() == array.tolist()
    out = np.empty_like(array)
    decode_mask(frame, out)
    assert_same(out, array)


def test_nothing_is_packed_and_comes_back() -> None:
    array = np.empty((3, 0), np.bool_)
    decode_mask(encode_mask(array), array)


def test_any_shape_is_packed_in_c_order() -> None:
    array = mask(6000).reshape(20, 1, 300)
    out = np.empty_like(array)
    decode_mask(encode_mask(array), out)
    assert_same(out, array)


@pytest.mark.parametrize("size", [4096, 60_001, 3 * BLOCK + 101])
def test_an_element_takes_little_more_than_a_bit(size: int) -> None:
    assert encode_mask(mask(size)).nbytes < size * 0.131 + 60


@given(st.integers(1, 3000) | st.integers(BLOCK // 4 - 20, BLOCK // 4 + 20))
@example(5 * BLOCK)
@example(3 * BLOCK + 24)
@example(7 * BLOCK - 1)
def test_blosc_decodes_bfloat16_to_float32(size: int) -> None:
    bits = np.random.default_rng(size).integers(0, 1 << 16, size, np.uint16)
    frame = encode_bfloat16(bits)
    expected = bits.astype(np.uint32) << 16
    np.testing.assert_array_equal(np.frombuffer(numcodecs.Blosc().decode(frame), "<u4"), expected)
    out = np.empty(size, np.float32)
    decode_bfloat16(frame, out)
    np.testing.assert_array_equal(out.view(np.uint32), expected)
    assert frame.nbytes < 4 * size * 0.505 + 60 or size < 256


def test_no_numbers_are_encoded_and_come_back() -> None:
    decode_bfloat16(encode_bfloat16(np.empty((0, 3), np.uint16)), np.empty((0, 3), np.float32))


@pytest.mark.parametrize("reader", ["zarr", "zarrs", "tensorstore"])
@pytest.mark.parametrize("size", [100, 1000, 1001, 2 * BLOCK + 77])
@pytest.mark.parametrize("codec", ["packed", "bfloat16"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_readers_of_zarr_read_them(tmp_path: Path, reader: str, size: int, codec: str) -> None:
    frames: list[np.ndarray[Any, np.dtype[np.uint8]]]
    if codec == "packed":
        values: np.ndarray[Any, Any] = np.stack([mask(size), ~mask(size)])
        frames = [encode_mask(row) for row in values]
    else:
        numbers = np.random.default_rng(0).standard_normal((2, size))
        numbers[0, :3] = np.inf, np.nan, -0.0
        rounded = numbers.astype(ml_dtypes.bfloat16)
        values = rounded.astype(np.float32)
        frames = [encode_bfloat16(row) for row in rounded.view(np.uint16)]
    group = zarr.open_group(tmp_path, mode="a", zarr_format=3)
    path = zarr_format.create(group, "kind", (size,), values.dtype, 2, codec, {})
    first, second = (frame.tobytes() for frame in frames)
    entries = [(0, len(first)), (len(first), len(second))]
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(first + second + zarr_format.shard_index(entries))
    if reader == "tensorstore":
        store = pytest.importorskip("tensorstore")
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "kind")}}
        assert_same(store.open(spec).result().read().result(), values)
        return
    config: dict[str, bool | str] = {"codec_pipeline.strict": True}
    if reader == "zarrs":
        pytest.importorskip("zarrs")
        config["codec_pipeline.path"] = "zarrs.ZarrsCodecPipeline"
    with zarr.config.set(config):
        stored = zarr.open_group(tmp_path, mode="r", zarr_format=3)["kind"]
        assert isinstance(stored, zarr.Array)
        assert_same(np.asarray(stored[...]), values)
