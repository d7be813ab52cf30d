"""Codecs: lossless ones give the array bit for bit, lossy ones keep within the bound they state."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from offgrad_storage import (
    BackendStore,
    DiskStore,
    PoolStore,
    ZarrStore,
)
from offgrad_storage.codecs import Codec, codec
from offgrad_storage.testing import DTYPES, assert_same, sample

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

BLOSC = [
    f"blosc-{name}{shuffle}"
    for name in ("lz4", "lz4hc", "zstd", "zlib", "blosclz")
    for shuffle in ("", "-bitshuffle", "-noshuffle")
]
GENERAL = ["lz4", "zstd", *BLOSC]
LOSSLESS = ["none", "auto", "packbits", "sparse", "downcast", *GENERAL]
LOSSY = ["float16", "bfloat16", "int8", "int4"]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FINFO: Any = ml_dtypes.finfo
ALL_DTYPES = [*(np.dtype(each) for each in DTYPES), BFLOAT16]


def decoded(coder: Codec, data: Bytes, like: Array) -> Array:
    """Decoded from an odd address, into an array full of rubbish with guards around it."""
    shifted = np.concatenate([np.zeros(1, np.uint8), data])[1:]
    room = np.full(like.nbytes + 128, 0xA5, np.uint8)
    out = room[64:-64].view(like.dtype).reshape(like.shape)
    try:
        coder.decode(shifted, out)
    finally:
        assert (room[:64] == 0xA5).all()
        assert (room[-64:] == 0xA5).all()
    return out


def encoded(coder: Codec, array: Array, seed: int = 0) -> Bytes:
    """Encoded, where that is expected to work."""
    before = array.tobytes()
    data = coder.encode(array, seed)
    assert data is not None
    assert data.dtype == np.uint8
    assert data.ndim == 1
    assert data.nbytes < array.nbytes
    assert array.tobytes() == before
    return data


def easy(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """An array that every codec for its dtype makes smaller: mostly zeros, the same few numbers."""
    few = sample(dtype, (4,))
    if dtype.kind in "iu":
        few = np.arange(1, 5).astype(dtype)
    array = np.zeros(shape, dtype)
    flat = array.reshape(-1)
    flat[::16] = np.resize(few, flat[::16].shape)
    return array


def assert_within_bound(coder: Codec, array: Array, found: Array) -> None:
    """Each item as near as the codec says; NaN and infinity as they were."""
    wide: Any = np.clongdouble if array.dtype.kind == "c" else np.longdouble
    for one, other in ((found.real, array.real), (found.imag, array.imag)):
        odd = ~np.isfinite(other)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            assert ((np.isnan(one) & np.isnan(other)) | (one == other))[odd].all()
    finite = np.isfinite(array)
    error = np.abs(found[finite].astype(wide) - array[finite].astype(wide))
    bound = np.broadcast_to(coder.max_error(array), array.shape)[finite]
    assert np.isfinite(bound).all()
    worst = np.flatnonzero(~(error <= bound))
    assert not worst.size, (array[finite][worst], found[finite][worst], bound[worst])


# ---- lossless


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_codecs_give_every_dtype_bit_for_bit(name: str, dtype: np.dtype[Any]) -> None:
    coder = codec(name)
    assert coder.lossless
    assert not coder.error_bound
    for shape in [(), (1,), (0,), (3, 0, 2), (7,), (1001,), (40, 50), (3, 70_001)]:
        for array in (easy(dtype, shape), sample(dtype, shape)):
            data = coder.encode(array)
            if data is not None:
                assert data.nbytes < array.nbytes
                assert_same(decoded(coder, data, array), array)
    applies = {
        "none": False,
        "auto": dtype == np.bool_,
        "packbits": dtype == np.bool_,
        "downcast": dtype.kind in "iu" and dtype.itemsize > 1,
    }
    assert (coder.encode(easy(dtype, (40, 50))) is not None) == applies.get(name, True)


@pytest.mark.parametrize("name", LOSSLESS[1:])
def test_any_memory_order(name: str) -> None:
    coder = codec(name)
    kind = {"auto": np.bool_, "packbits": np.bool_, "downcast": np.int64}.get(name, np.float64)
    base = easy(np.dtype(kind), (120, 11, 13))
    read_only = base.copy()
    read_only.flags.writeable = False
    arrays = [
        np.asfortranarray(base),
        base.T,
        base[::-1, ::2, 1:],
        base[:, 3],
        base[..., ::-3],
        np.broadcast_to(base[0], (40, 11, 13)),
        np.frombuffer(b"x" + base.tobytes(), np.uint8)[1:].view(kind),
        read_only,
    ]
    for array in arrays:
        assert_same(decoded(coder, encoded(coder, array), array), array)


@pytest.mark.parametrize("name", [*GENERAL, "sparse"])
def test_random_bytes_are_stored_plain(name: str) -> None:
    array = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8)
    assert codec(name).encode(array) is None


@pytest.mark.parametrize("name", [*LOSSLESS, *LOSSY])
def test_an_incompressible_array_is_stored_plain(name: str) -> None:
    for dtype in ("f2", "i1", "?"):
        assert codec(name).encode(np.ones((), dtype)) is None
    for dtype in ("f4", "i8", "?"):
        for shape in [(0,), (2, 0)]:
            assert codec(name).encode(np.ones(shape, dtype)) is None


# ---- general compression


@pytest.mark.parametrize("shuffle", ["shuffle", "bitshuffle", "noshuffle"])
@pytest.mark.parametrize("compressor", ["lz4", "lz4hc", "zstd", "zlib", "blosclz"])
@pytest.mark.parametrize("dtype", ["f4", ">f8", "i2", "c16", "M8[s]", "V7", "U100"])
def test_blosc_bytes_are_those_of_numcodecs(compressor: str, shuffle: str, dtype: str) -> None:
    array = easy(np.dtype(dtype), (300, 40)).T
    size = array.itemsize if array.itemsize < 256 else 1
    number = ["noshuffle", "shuffle", "bitshuffle"].index(shuffle)
    theirs = numcodecs.Blosc(compressor, 1, number, typesize=size)
    data = encoded(codec(f"blosc-{compressor}-{shuffle}"), array)
    assert data.tobytes() == theirs.encode(array.tobytes())
    assert data[3] == size


@pytest.mark.parametrize(
    ("name", "theirs"), [("lz4", numcodecs.LZ4()), ("zstd", numcodecs.Zstd(1))]
)
def test_lz4_and_zstd_bytes_are_those_of_numcodecs(name: str, theirs: Any) -> None:
    array = easy(np.dtype("f4"), (300, 40)).T
    assert encoded(codec(name), array).tobytes() == theirs.encode(array.tobytes())


@pytest.mark.parametrize("name", ["zstd", "blosc-lz4", "blosc-zstd-bitshuffle"])
def test_the_bytes_are_a_chunk_of_zarr(name: str, tmp_path: Path) -> None:
    import zarr
    from zarr.codecs import BloscCodec, ZstdCodec

    array = easy(np.dtype("f4"), (300, 40))
    _, compressor, shuffle = (name + "-shuffle").split("-")[:3] if name != "zstd" else (name,) * 3
    compressors: Any = (
        ZstdCodec(level=1)
        if name == "zstd"
        else BloscCodec(cname=compressor, clevel=1, shuffle=shuffle, typesize=4)
    )
    stored = zarr.create_array(
        tmp_path / "a.zarr",
        shape=array.shape,
        chunks=array.shape,
        dtype="f4",
        compressors=compressors,
    )
    stored[...] = array
    chunk = tmp_path / "a.zarr" / "c" / "0" / "0"
    data = encoded(codec(name), array)
    assert chunk.read_bytes() == data.tobytes()


def test_blosc_bytes_do_not_depend_on_the_thread() -> None:
    array = np.random.default_rng(0).integers(0, 1000, 1 << 20)
    coder = codec("blosc-lz4")
    results = [encoded(coder, array) for _ in range(3)]
    thread = threading.Thread(target=lambda: results.append(encoded(coder, array)))
    thread.start()
    thread.join()
    assert len({each.tobytes() for each in results}) == 1


@pytest.mark.parametrize("count", [64, 200, 255, 256, 300, 65_791, 65_792, 70_000, 1 << 20])
def test_zstd_headers_of_every_size(count: int) -> None:
    array = np.zeros(count, np.uint8)
    assert_same(decoded(codec("zstd"), encoded(codec("zstd"), array), array), array)


# ---- codecs that look at values


@pytest.mark.parametrize("count", [2, 7, 8, 9, 4096, (256 << 10) - 1, (256 << 10) + 1])
@pytest.mark.parametrize("name", ["packbits", "auto"])
def test_packed_bits_take_an_eighth(name: str, count: int) -> None:
    array = sample(np.bool_, (count,))
    data = encoded(codec(name), array)
    assert data.nbytes == -(-count // 8)
    assert_same(decoded(codec(name), data, array), array)


def test_bools_of_odd_bytes_are_not_packed() -> None:
    array = np.ones(600_000, np.uint8)
    array[-1] = 2
    assert codec("packbits").encode(array.view(np.bool_)) is None


def test_sparse_keeps_negative_zero_and_nan() -> None:
    array = np.zeros(300_000, np.float32)
    array[[0, 7, 8, 299_999]] = [-0.0, np.nan, -np.inf, 1e-45]
    array[100:50_000] = sample(np.float32, (49_900,))
    data = encoded(codec("sparse"), array)
    assert data.nbytes == 300_000 // 8 + np.count_nonzero(array.view(np.uint32)) * 4
    assert_same(decoded(codec("sparse"), data, array), array)


@pytest.mark.parametrize("dtype", ["i2", "u2", ">i4", "<u4", ">i8", "u8"])
def test_integers_take_the_smallest_dtype(dtype: str) -> None:
    info = np.iinfo(dtype)
    coder = codec("downcast")
    for low, high, size in [
        (0, 0, 1),
        (0, 255, 1),
        (0, 256, 2),
        (-1, 127, 1),
        (-128, 0, 1),
        (-1, 128, 2),
        (-32769, 0, 4),
        (0, 65535, 2),
        (0, 65536, 4),
        (-1, 2**31 - 1, 4),
        (0, 2**32 - 1, 4),
        (-1, 2**31, 8),
        (info.min, info.max, info.bits // 8),
    ]:
        if low < info.min or high > info.max:
            continue
        array = np.full(100_000, low, dtype)
        array[-1] = high
        if size >= array.itemsize:
            assert coder.encode(array) is None
        else:
            data = encoded(coder, array)
            assert data.nbytes == 1 + 100_000 * size
            assert_same(decoded(coder, data, array), array)


# ---- lossy


@st.composite
def wild_floats(draw: st.DrawFn, dtypes: list[Any]) -> Array:
    """Groups of wildly different magnitude, subnormal to huge, with zeros and odd values."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    real = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    info: Any = FINFO(real)
    exponents = st.integers(int(info.minexp) - int(info.nmant) - 2, int(info.maxexp))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    groups = [
        np.ldexp(random.uniform(-1, 1, 128) * (random.random(128) < density), exponent)
        for exponent, density in draw(
            st.lists(st.tuples(exponents, st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=5)
        )
    ]
    values = np.concatenate(groups)
    odd = st.floats() if draw(st.booleans()) else st.floats(-1, 1)
    for place, value in draw(st.dictionaries(st.integers(0, values.size - 1), odd)).items():
        values[place] = value
    with np.errstate(all="ignore"):
        numbers = values.astype(real)
    array: Array = numbers[draw(st.integers(0, 126)) // 2 * 2 :].view(dtype)
    return array[::-1] if draw(st.booleans()) else array


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@given(array=wild_floats(["f4", "f8", ">f4", ">f8", "c8", "c16", ">c8"]))
def test_halves_are_within_their_bound(name: str, array: Array) -> None:
    coder = codec(name)
    data = coder.encode(array)
    if data is None:
        limit = 65504 if name == "float16" else float(FINFO(BFLOAT16).max)
        parts = np.concatenate([array.real, array.imag])
        assert (np.abs(parts[np.isfinite(parts)]) > limit).any()
    else:
        assert data.nbytes == (4 if array.dtype.kind == "c" else 2) * array.size
        assert_within_bound(coder, array, decoded(coder, data, array))


@pytest.mark.parametrize("name", ["int8", "int4"])
@given(
    array=wild_floats(["f2", BFLOAT16, "f4", "f8", ">f2", ">f4", ">f8", "c8", "c16", ">c8"]),
    seed=st.integers(0, 1 << 40),
)
def test_groups_are_within_their_bound(name: str, array: Array, seed: int) -> None:
    coder = codec(name)
    data = coder.encode(array, seed)
    if data is not None:
        assert data.nbytes < array.nbytes
        found = decoded(coder, data, array)
        assert_within_bound(coder, array, found)
        with np.errstate(invalid="ignore"):
            assert (found[array == 0] == 0).all()


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_lossy_codecs_apply_to_floats_alone(name: str, dtype: np.dtype[Any]) -> None:
    coder = codec(name)
    assert not coder.lossless
    assert coder.error_bound
    kinds = ["f4", "f8", ">f8", "c8", "c16"] + (["f2", BFLOAT16] if name.startswith("int") else [])
    data = coder.encode(np.ones((40, 50), dtype) if dtype.kind in "fc" else easy(dtype, (40, 50)))
    assert (data is not None) == (dtype in [np.dtype(each) for each in kinds])


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_codecs_take_any_shape_and_order(name: str) -> None:
    coder = codec(name)
    base = np.random.default_rng(0).standard_normal((70, 50, 60)).astype(np.float32)
    for array in (base, base.T, base[::-1, ::2, 1:], base[:1, :1, :33], base[0, 0, ::-1]):
        assert_within_bound(coder, array, decoded(coder, encoded(coder, array), array))


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8"])
def test_nan_and_infinity_survive(name: str, dtype: str) -> None:
    coder = codec(name)
    array = np.random.default_rng(0).standard_normal(20_000).astype(dtype)
    array[[3, 4, 5]] = [np.nan, np.inf, -np.inf]
    found = decoded(coder, encoded(coder, array), array)
    assert_within_bound(coder, array, found)
    signalling = np.full(2000, 0x7F800001, np.uint32).view(np.float32)
    signalling[5:] = 0
    assert np.isnan(decoded(coder, encoded(coder, signalling), signalling)[:5]).all()


# ---- halves


def tricky_floats() -> NDArray[np.float32]:
    """All float16, the middles between them, their neighbours, and random bits: float32."""
    with np.errstate(all="ignore"):
        exact = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        middle = ((exact[:-1].astype(np.float64) + exact[1:]) / 2).astype(np.float32)
        up, down = (np.nextafter(middle, np.float32(to)) for to in (np.inf, -np.inf))
    some = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18).astype(np.uint32).view(np.float32)
    return np.concatenate([exact, middle, up, down, some])


def test_float16_rounds_as_numpy_does() -> None:
    values = tricky_floats()
    values = values[np.abs(values) < 65520]
    assert np.unique(values.astype(np.float16)).size == 2 * 0x7C00 - 1
    found = decoded(codec("float16"), encoded(codec("float16"), values), values)
    assert_same(found, values.astype(np.float16).astype(np.float32))


def test_bfloat16_rounds_as_ml_dtypes_does() -> None:
    values = tricky_floats()
    values = values[np.abs(values) < 3.3961775e38]
    found = decoded(codec("bfloat16"), encoded(codec("bfloat16"), values), values)
    assert_same(found, values.astype(BFLOAT16).astype(np.float32))


@pytest.mark.parametrize(("name", "limit"), [("float16", 65520.0), ("bfloat16", 3.3961775e38)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_an_array_that_would_overflow_is_stored_plain(name: str, limit: float, dtype: str) -> None:
    array = np.zeros(100_000, dtype)
    array[77] = np.inf
    encoded(codec(name), array)
    for value in (limit, -limit, np.finfo(dtype).max):
        array[99_999] = value
        assert codec(name).encode(array) is None
    array[99_999] = limit * (1 - 1e-6)
    assert np.isfinite(decoded(codec(name), encoded(codec(name), array), array)[99_999])


def test_the_bound_of_the_largest_complex_numbers_is_finite() -> None:
    array = np.full(1000, 3e38 + 3e38j, np.complex64)
    assert_within_bound(
        codec("bfloat16"),
        array,
        decoded(codec("bfloat16"), encoded(codec("bfloat16"), array), array),
    )


# ---- groups


@pytest.mark.parametrize(("name", "levels"), [("int8", 127), ("int4", 7)])
def test_stochastic_rounding_is_unbiased(name: str, levels: int) -> None:
    coder = codec(name)
    array = np.random.default_rng(0).uniform(-1, 1, 512).astype(np.float32)
    array[::128] = [1, -1, 1, -1]
    seeds = 400
    sums = np.zeros(array.shape)
    for seed in range(seeds):
        sums += decoded(coder, encoded(coder, array, seed), array)
    bias = (sums / seeds - array) * levels
    # A rounding spreads by half a level at most, so the mean of n by 0.5 / sqrt(n): six times that.
    assert np.abs(bias).max() < 6 * 0.5 / seeds**0.5
    assert abs(bias.mean()) < 6 * 0.5 / (seeds * array.size) ** 0.5
    assert np.abs(bias).max() > 0.1 * 0.5 / seeds**0.5


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_seed_gives_the_same_bytes_and_another_gives_others(name: str) -> None:
    array = np.random.default_rng(0).standard_normal((300, 500)).astype(np.float32)
    coder = codec(name)
    first, again, other = (encoded(coder, array, seed).tobytes() for seed in (5, 5, 6))
    assert first == again != other
    assert encoded(codec(name), np.asfortranarray(array), 5).tobytes() == first


SEEDED: dict[str, Callable[..., BackendStore]] = {
    "pool": lambda path, **options: PoolStore(**options),
    "disk": lambda path, **options: DiskStore(path, **options),
    "zarr": lambda path, **options: ZarrStore(path, **options),
}


@pytest.mark.parametrize("kind", SEEDED)
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_random_rounding_depends_on_array_and_seed_alone(
    kind: str, name: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(size).astype(np.float32) for size in (3000, 700_000)]

    def rounded(order: list[int], seed: int) -> dict[int, bytes]:
        with SEEDED[kind](tmp_path, codec=name, seed=seed) as store:
            handles = {index: store.put(arrays[index]) for index in order}
            pending = {index: handle.get().tobytes() for index, handle in handles.items()}
            store.flush()
            assert {index: handle.get().tobytes() for index, handle in handles.items()} == pending
            return pending

    found = rounded([0, 1], 0)
    assert rounded([1, 0], 0) == found
    assert rounded([1], 0)[1] == found[1]
    other = rounded([0, 1], 1)
    assert other[0] != found[0]
    assert other[1] != found[1]


def test_a_seed_is_an_integer(tmp_path: Path) -> None:
    for make in SEEDED.values():
        with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
            make(tmp_path, seed=-1)
        with pytest.raises(TypeError, match="seed is an int, got bool"):
            make(tmp_path, seed=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "levels"), [("int8", 127), ("int4", 7)])
def test_levels_themselves_come_back(name: str, levels: int) -> None:
    coder = codec(name)
    array = np.resize(np.arange(-levels, levels + 1), 128).astype(np.float32)
    array[0] = levels
    expected = array[np.newaxis]
    rows = np.stack([decoded(coder, encoded(coder, array, seed), array) for seed in range(200)])
    near = np.abs(rows - expected) < 1e-3
    assert near.mean() > 0.99
    assert np.abs(rows).max() <= levels * (1 + 1e-6)


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("dtype", ["f2", BFLOAT16, "f4", "f8", "c8"], ids=str)
def test_groups_that_cannot_be_scaled_are_kept_bit_for_bit(name: str, dtype: Any) -> None:
    coder = codec(name)
    dtype = np.dtype(dtype)
    numbers = 128 // (2 if dtype.kind == "c" else 1)
    array = np.random.default_rng(0).standard_normal(40 * numbers + 9).astype(dtype)
    array[2 * numbers + 5] = np.nan
    array[6 * numbers] = -np.inf
    odd = [slice(2 * numbers, 3 * numbers), slice(6 * numbers, 7 * numbers)]
    if dtype in (np.float32, np.float64):
        array[9 * numbers : 10 * numbers] = 0
        array[9 * numbers + 1] = np.finfo(dtype).smallest_subnormal
        array[11 * numbers] = np.finfo(dtype).max
        odd += [slice(9 * numbers, 10 * numbers), slice(11 * numbers, 12 * numbers)]
    array[-1] = np.nan
    odd.append(slice(40 * numbers, None))
    found = decoded(coder, encoded(coder, array), array)
    for group in odd:
        assert_same(found[group], array[group])
        assert not np.broadcast_to(coder.max_error(array), array.shape)[group].any()
    assert_within_bound(coder, array, found)
    assert found[:numbers].tobytes() != array[:numbers].tobytes()


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_an_array_of_groups_kept_exactly_is_stored_plain(name: str) -> None:
    assert codec(name).encode(np.full(100_000, np.nan, np.float32)) is None
    assert codec(name).encode(np.full(100_000, 1e-40, np.float32)) is None


@pytest.mark.parametrize(("name", "nbytes"), [("int8", 1000 + 8 * 4), ("int4", 8 * 64 + 8 * 4)])
def test_groups_take_a_scale_each(name: str, nbytes: int) -> None:
    assert encoded(codec(name), np.ones((10, 100), np.float32)).nbytes == nbytes


# ---- damage


def damageable(name: str) -> Array:
    if name in ("packbits", "auto"):
        return sample(np.bool_, (1000,))
    if name == "downcast":
        return np.arange(300)
    array = np.random.default_rng(0).standard_normal(700).astype(np.float32)
    array[::2] = 0
    array[300] = np.nan
    return np.repeat(array, 4) if name in GENERAL else array


@pytest.mark.parametrize("name", [*LOSSLESS[1:], *LOSSY])
def test_bytes_cut_short_or_too_many_raise(name: str) -> None:
    coder = codec(name)
    array = damageable(name)
    data = encoded(coder, array)
    for end in [*range(min(40, data.size)), *range(40, data.size, 37), data.size - 1]:
        with pytest.raises(ValueError, match=f"{coder.name}: .* damaged"):
            decoded(coder, data[:end], array)
    if name not in ("lz4", "zstd"):  # of these, other lengths are for the library to find out
        with pytest.raises(ValueError, match="damaged"):
            decoded(coder, np.append(data, data[-1:]), array)


@pytest.mark.parametrize("name", [*LOSSLESS[1:], *LOSSY])
def test_an_array_of_another_size_is_not_decoded(name: str) -> None:
    coder = codec(name)
    array = damageable(name)
    data = encoded(coder, array)
    for other in (array[:-200], np.concatenate([array, array])):
        with pytest.raises(ValueError, match="damaged"):
            decoded(coder, data, other)


@pytest.mark.parametrize("name", LOSSY)
def test_an_array_of_another_dtype_is_not_decoded(name: str) -> None:
    with pytest.raises(ValueError, match="dtype int32"):
        codec(name).decode(np.zeros(64, np.uint8), np.empty(32, np.int32))


@pytest.mark.parametrize("name", [*LOSSLESS[1:], *LOSSY])
def test_flipped_bits_raise_a_value_error_or_nothing(name: str) -> None:
    coder = codec(name)
    array = damageable(name)
    data = encoded(coder, array)
    random = np.random.default_rng(0)
    for count in range(400):
        damaged = data.copy()
        places = random.integers(0, data.size if count % 2 else min(32, data.size), 1 + count % 3)
        damaged[places] ^= random.integers(1, 256, places.size).astype(np.uint8)
        try:
            decoded(coder, damaged, array)
        except ValueError:
            continue


def test_nothing_is_decoded_by_none() -> None:
    with pytest.raises(ValueError, match="encodes nothing"):
        codec("none").decode(np.zeros(4, np.uint8), np.empty(1, np.float32))


# ---- names


@pytest.mark.parametrize("name", [*LOSSLESS, *LOSSY])
def test_codecs_are_known_by_their_name(name: str) -> None:
    one = codec(name)
    assert one.name == name
    assert repr(one) == f"codec({name!r})"
    assert one == codec(name) == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(codec(name))
    assert one != codec("zstd" if name != "zstd" else "lz4")
    assert one != name
    assert codec(one) is one


def test_shuffle_is_bloscs_default() -> None:
    assert codec("blosc-lz4-shuffle") == codec("blosc-lz4")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("bfloat", "bfloat16"), ("blosc-lz4-shufle", "blosc-lz4-shuffle"), ("ZSTD", "zstd")],
)
def test_an_unknown_name_lists_the_codecs(wrong: str, meant: str) -> None:
    with pytest.raises(
        ValueError, match=f"unknown codec '{wrong}'; did you mean .*{meant}"
    ) as caught:
        codec(wrong)
    for name in ("none", "sparse", "int4", "blosc-NAME", "bitshuffle"):
        assert name in str(caught.value)
    for other in ("", "blosc", "blosc-snappy", "int16"):
        with pytest.raises(ValueError, match="the names are none, auto"):
            codec(other)
