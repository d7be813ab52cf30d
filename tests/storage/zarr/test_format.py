"""Shards written by hand, as the readers of Zarr see them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numcodecs
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from offgrad_storage.testing import assert_same, sample
from offgrad_storage.zarr import format as zarr_format

Array = NDArray[Any]

NATIVE = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "q", "Q", "f2", "f4", "f8", "c8"]
NATIVE += ["c16", ">i2", ">u8", ">f2", ">f4", ">f8"]
DATES = ["M8[ns]", "M8[25s]", "m8[D]", ">M8[us]"]
VIEWED = [
    (">c8", ">f4", (2,)),
    (">c16", ">f8", (2,)),
    (ml_dtypes.bfloat16, "u2", ()),
    (ml_dtypes.float8_e4m3fn, "u1", ()),
    ("S1", "u1", ()),
    ("S5", "u1", (5,)),
    ("U2", "u8", ()),
    (">U3", "u1", (12,)),
    ("V3", "u1", (3,)),
    ("M8", "u8", ()),
    ("g", "u1", (np.dtype("g").itemsize,)),
    ("G", "u1", (np.dtype("G").itemsize,)),
    ([("a", "i4"), ("b", ">f8")], "u1", (12,)),
    ([("a", "f4"), ("b", "i4")], "u8", ()),
]


def of(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> Array:
    """An array of any bits that ``dtype`` allows and that compare equal to themselves."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return sample("?", shape, seed)
    bits = np.random.default_rng(seed).integers(0, 60, (*shape, dtype.itemsize), np.uint8)
    result: Array = np.ascontiguousarray(bits).view(dtype).reshape(shape)
    return result


def blosc(name: str, shuffle: int) -> Any:
    return numcodecs.Blosc(name, 1, shuffle).encode


CODECS = {
    "none": lambda stored: stored.tobytes(),
    "zstd": numcodecs.Zstd(1).encode,
    "blosc-lz4": blosc("lz4", numcodecs.Blosc.SHUFFLE),
    "blosc-zstd-bitshuffle": blosc("zstd", numcodecs.Blosc.BITSHUFFLE),
    "blosc-lz4hc-noshuffle": blosc("lz4hc", numcodecs.Blosc.NOSHUFFLE),
    "blosc-zlib": blosc("zlib", numcodecs.Blosc.SHUFFLE),
    "blosc-blosclz": blosc("blosclz", numcodecs.Blosc.SHUFFLE),
    "packed": blosc("lz4", numcodecs.Blosc.BITSHUFFLE),
}


def write(
    folder: Path, arrays: list[Array | None], codec: str = "none", name: str = "kind"
) -> zarr.Array:
    """Write the arrays as the slots of one shard, backwards and with gaps; None for no array."""
    group = zarr.open_group(folder, mode="a", zarr_format=3)
    first = next(array for array in arrays if array is not None)
    path = zarr_format.create(
        group, name, first.shape, first.dtype, len(arrays), codec, {"op": "relu"}
    )
    stored, extra = zarr_format.storable(first.dtype)
    file = bytearray(b"\xab" * 5)
    entries: list[tuple[int, int] | None] = []
    for array in reversed(arrays):
        if array is None:
            entries.insert(0, None)
            continue
        data = bytes(CODECS[codec](array.view(stored).reshape((*array.shape, *extra))))
        entries.insert(0, (len(file), len(data)))
        file += data + b"\xcd" * 13
    file += zarr_format.shard_index(entries)
    (folder / path).parent.mkdir(parents=True)
    (folder / path).write_bytes(file)
    return open_array(folder, name)


def open_array(folder: Path, name: str = "kind") -> zarr.Array:
    array = zarr.open_group(folder, mode="r", zarr_format=3)[name]
    assert isinstance(array, zarr.Array)
    return array


@pytest.fixture(params=["zarr", "zarrs"])
def reader(request: pytest.FixtureRequest) -> Iterator[str]:
    """zarr-python by itself, and with zarrs reading the chunks."""
    if request.param == "zarr":
        yield request.param
        return
    pytest.importorskip("zarrs")
    path = "zarrs.ZarrsCodecPipeline"
    with zarr.config.set({"codec_pipeline.path": path, "codec_pipeline.strict": True}):
        yield request.param


@pytest.mark.parametrize("dtype", NATIVE)
def test_numbers_are_read_as_numbers(tmp_path: Path, dtype: str, reader: str) -> None:
    arrays = [of(dtype, (3, 5), seed) for seed in range(4)]
    array = write(tmp_path, [*arrays, None])
    read = np.asarray(array[...])
    assert read.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(read[:4], np.stack(arrays))
    assert not read[4].any()
    np.testing.assert_array_equal(array[2], arrays[2])
    assert array.attrs.get("offgrad_dtype", dtype) == dtype
    assert ("offgrad_dtype" in array.attrs) == dtype.startswith(">")


@pytest.mark.parametrize("dtype", DATES)
def test_dates_are_read_as_dates(tmp_path: Path, dtype: str) -> None:
    array = of(dtype, (3, 5))
    read = np.asarray(write(tmp_path, [array, None])[...])
    assert read.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(read[0], array)
    assert np.isnat(read[1]).all()


@pytest.mark.parametrize(("dtype", "stored", "extra"), VIEWED)
def test_dtypes_unknown_to_zarr_are_read_as_their_bits(
    tmp_path: Path, dtype: Any, stored: str, extra: tuple[int, ...], reader: str
) -> None:
    assert zarr_format.storable(np.dtype(dtype)) == (np.dtype(stored), extra)
    arrays = [of(dtype, (3, 5), seed) for seed in range(2)]
    array = write(tmp_path, list(arrays), "blosc-lz4")
    assert array.shape == (2, 3, 5, *extra)
    assert array.attrs["offgrad_dtype"] == str(np.dtype(dtype))
    read = np.asarray(array[...]).astype(stored)
    assert read.tobytes() == b"".join(array.tobytes() for array in arrays)


@pytest.mark.parametrize("dtype", [">f4", "f4", "i8", "u1", "?"])
@pytest.mark.parametrize("codec", CODECS)
def test_codecs_are_those_of_numcodecs(tmp_path: Path, codec: str, dtype: str, reader: str) -> None:
    if codec == "packed" and dtype != "?":
        pytest.skip("only booleans are packed")
    arrays = [np.repeat(of(dtype, (50,), seed), 40) for seed in range(3)]
    array = write(tmp_path, [arrays[0], None, *arrays[1:]], codec)
    np.testing.assert_array_equal(array[2:], np.stack(arrays[1:]))
    np.testing.assert_array_equal(array[0], arrays[0])


@pytest.mark.parametrize("codec", CODECS)
def test_zarr_itself_would_write_the_same_bytes(tmp_path: Path, codec: str) -> None:
    array = np.repeat(of("?" if codec == "packed" else "f4", (50,)), 40)
    write(tmp_path, [array], codec)
    ours = tmp_path / "kind" / "c" / "0" / "0"
    data = CODECS[codec](array)
    stored = zarr.open_group(tmp_path, mode="a", zarr_format=3)["kind"]
    assert isinstance(stored, zarr.Array)
    stored[0] = array
    assert ours.read_bytes() == bytes(data) + zarr_format.shard_index([(0, len(data))])


def test_packing_leaves_a_boolean_one_bit(tmp_path: Path) -> None:
    mask = np.random.default_rng(0).random(1 << 16) < 0.5
    write(tmp_path, [mask], "packed")
    assert (tmp_path / "kind" / "c" / "0" / "0").stat().st_size < mask.nbytes / 7
    group = zarr.open_group(tmp_path, mode="a", zarr_format=3)
    for codec, dtype in (("packed", "u1"), ("bfloat16", ">f4"), ("bfloat16", "f8")):
        with pytest.raises(ValueError, match=f"{codec!r} is for .* not for {np.dtype(dtype)}"):
            zarr_format.create(group, "other", (3,), np.dtype(dtype), 1, codec, {})
    assert list(group) == ["kind"]


@pytest.mark.parametrize("codec", ["lz4", "blosc", "blosc-", "blosc-foo", "blosc-lz4-", "none-1"])
def test_unknown_codecs(codec: str) -> None:
    with pytest.raises(ValueError, match="unknown codec"):
        zarr_format.compressor(codec)


def test_without_dimensions(tmp_path: Path, reader: str) -> None:
    array = write(tmp_path, [np.array(2.5), None, np.array(-1.0)])
    assert (tmp_path / "kind" / "c" / "0").exists()
    np.testing.assert_array_equal(array[...], [2.5, 0.0, -1.0])
    assert array[2] == -1.0


@pytest.mark.parametrize("shape", [(0,), (3, 0, 5), (0, 0)])
@pytest.mark.parametrize("dtype", ["f4", "V3"])
def test_without_elements(tmp_path: Path, shape: tuple[int, ...], dtype: str, reader: str) -> None:
    group = zarr.open_group(tmp_path, mode="a", zarr_format=3)
    path = zarr_format.create(group, "kind", shape, np.dtype(dtype), 2, "none", {})
    assert not (tmp_path / path).exists()
    read = np.asarray(open_array(tmp_path)[...])
    assert read.shape[: len(shape) + 1] == (2, *shape)


def test_a_tensor_in_several_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    monkeypatch.setattr(zarr_format, "CHUNK_NBYTES", 64)
    arrays = [of("f4", (7, 2, 3), seed) for seed in range(3)]
    dtype = arrays[0].dtype
    group = zarr.open_group(tmp_path, mode="a", zarr_format=3)
    path = zarr_format.create(group, "kind", (7, 2, 3), dtype, 3, "none", {})
    how = zarr_format.layout((7, 2, 3), dtype)
    assert (how.chunk, how.grid, how.chunk_nbytes) == ((2, 2, 3), (4, 1, 1), 48)
    file = bytearray()
    entries = []
    for array in arrays:
        for rows in (array[:2], array[2:4], array[4:6], array[6:]):
            entries.append((len(file), how.chunk_nbytes))
            file += rows.tobytes().ljust(how.chunk_nbytes, b"\xab")
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(file + zarr_format.shard_index(entries))
    array = open_array(tmp_path)
    assert array.shape == (3, 7, 2, 3)
    np.testing.assert_array_equal(array[...], np.stack(arrays))
    np.testing.assert_array_equal(array[1, 3:6], arrays[1][3:6])


def test_chunks_are_of_like_size_and_within_the_limit() -> None:
    f4 = np.dtype("f4")
    assert zarr_format.layout((1000, 1000), f4).grid == (1, 1)
    how = zarr_format.layout((1001, 1000), f4, 2_000_000)
    assert (how.chunk, how.grid) == ((334, 1000), (3, 1))
    # Rows larger than a chunk: flat.
    how = zarr_format.layout((3, 1 << 28), f4, 1 << 29)
    assert (how.shape, how.chunk, how.grid) == ((3 << 28,), (1 << 27,), (6,))
    how = zarr_format.layout((), np.dtype("f8"))
    assert (how.shape, how.chunk, how.grid) == ((), (), ())
    how = zarr_format.layout((4,), np.dtype("V3"), 3)
    assert (how.shape, how.chunk, how.grid) == ((4, 3), (1, 3), (4, 1))
    how = zarr_format.layout((0, 5), f4)
    assert (how.shape, how.chunk, how.grid) == ((0, 5), (1, 5), (1, 1))


def test_chunks_may_lie_at_any_offset_of_a_sparse_file(tmp_path: Path, reader: str) -> None:
    group = zarr.open_group(tmp_path, mode="a", zarr_format=3)
    path = zarr_format.create(group, "kind", (4,), np.dtype("f4"), 2, "none", {})
    (tmp_path / path).parent.mkdir(parents=True)
    array = sample("f4", (4,))
    with open(tmp_path / path, "wb") as file:
        file.seek(5 << 30)
        file.write(array.tobytes())
        file.seek(6 << 30)
        file.write(zarr_format.shard_index([None, (5 << 30, 16)]))
    assert_same(np.asarray(open_array(tmp_path)[1]), array)


def test_an_array_grows_within_its_shard(tmp_path: Path, reader: str) -> None:
    group = zarr.open_group(tmp_path, mode="a", zarr_format=3)
    path = zarr_format.create(
        group, "kind", (4,), np.dtype("f4"), 0, "none", {}, capacity=8, index_location="start"
    )
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(zarr_format.shard_index([None] * 8))
    assert (tmp_path / path).stat().st_size == zarr_format.index_nbytes(8)
    entries: list[tuple[int, int] | None] = [None] * 8
    for count in range(1, 9):
        entries[count - 1] = (count * 4096, 16)
        with open(tmp_path / path, "r+b") as file:
            file.write(zarr_format.shard_index(entries))
            file.seek(count * 4096)
            file.write(np.full(4, count, np.float32).tobytes() + b"\xab" * 100)
        grown = group["kind"]
        assert isinstance(grown, zarr.Array)
        grown.resize((count, 4))
        read = np.asarray(open_array(tmp_path)[...])
        np.testing.assert_array_equal(read[:, 2], np.arange(1, count + 1))
    with pytest.raises(ValueError, match="9 slots are more than the capacity of 8"):
        zarr_format.create(group, "other", (4,), np.dtype("f4"), 9, "none", {}, capacity=8)


def test_a_damaged_index_is_noticed(tmp_path: Path, reader: str) -> None:
    array = write(tmp_path, [sample("f4", (4,))])
    path = tmp_path / "kind" / "c" / "0" / "0"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises((ValueError, RuntimeError), match="checksum"):
        array[...]


def test_the_metadata(tmp_path: Path) -> None:
    array = write(tmp_path, [sample("f4", (4, 5)), None])
    assert dict(array.attrs) == {"op": "relu", "offgrad_codec": "none"}
    assert array.shards == (2, 4, 5)
    assert array.chunks == (1, 4, 5)
    metadata = array.metadata
    assert isinstance(metadata, zarr.core.metadata.ArrayV3Metadata)
    assert metadata.dimension_names == ("kind.slot", "kind.0", "kind.1")


def test_xarray_opens_a_group_of_kinds(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    square, dates = sample("f4", (4, 4)), of("M8[ns]", (2,))
    write(tmp_path, [square, square, None], name="square")
    write(tmp_path, [dates], name="dates")
    write(tmp_path, [np.array(True)], "packed", name="flag")
    opened = xarray.open_zarr(tmp_path, consolidated=False, chunks=None)
    assert_same(opened["square"].values[1], square)
    assert_same(opened["dates"].values[0], dates)
    assert opened["flag"].values.tolist() == [True]
    assert opened["square"].attrs["op"] == "relu"


def test_tensorstore_opens_a_kind(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tensorstore = pytest.importorskip("tensorstore")
    mask = sample("?", (40, 40))
    write(tmp_path, [None, mask], "packed")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "kind")}}
    assert_same(tensorstore.open(spec).result()[1].read().result(), mask)
