"""int8 and int4 in a ZarrStore: other readers, and their errors."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from offgrad_storage import (
    DiskStore,
    MissingDataError,
    StoreError,
    ZarrStore,
    codec,
    dequantize,
)
from offgrad_storage.testing import assert_same, eventually, sample
from offgrad_storage.zarr import groups as zarr_groups

Array = NDArray[Any]
Opener = Callable[[Path], Any]

SHAPES = [(300,), (3, 5), (7, 11, 13), (4, 64), (600, 700), (2,)]


@pytest.fixture(params=["zarr", "zarrs", "xarray"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """The reader of a folder: zarr-python, zarr-python with the codecs of zarrs, or xarray."""
    import zarr

    if request.param == "xarray":
        xarray = pytest.importorskip("xarray")
        yield lambda path: xarray.open_zarr(path, consolidated=False)
        return
    if request.param == "zarr":
        yield lambda path: zarr.open_group(path, mode="r", zarr_format=3)
        return
    pytest.importorskip("zarrs")
    pipeline = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
    with zarr.config.set(pipeline):
        yield lambda path: zarr.open_group(path, mode="r", zarr_format=3)


def normal(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    values: Array = np.random.default_rng(seed).standard_normal(shape)
    return (values * 10.0 ** (seed % 5 - 2)).astype(dtype)


def strange(dtype: str, seed: int) -> Array:
    """300 numbers with a NaN in some of their three groups, the last of which is a short one."""
    array = normal(dtype, (300,), seed)
    for group in range(3):
        if seed >> group & 1:
            array[128 * group + 40] = (np.nan, np.inf, -np.inf)[group]
    return array


def name_of(array: Array) -> str:
    return f"{array.dtype.name}_{'x'.join(map(str, array.shape))}"


def by_formula(group: Any, name: str, slot: int) -> Array:
    """The formula in the attributes of an array, in plain NumPy; without exact groups."""
    attributes = group[name].attrs
    values = np.asarray(group[name][slot])
    if attributes["offgrad_codec"] == "int4":
        low, high = (values << 4).view(np.int8) >> 4, values.view(np.int8) >> 4
        values = np.concatenate([low, high], axis=1)
    scales = np.asarray(group[f"{name}.scales"][slot])
    flat = values.reshape(-1).astype(scales.dtype)
    flat *= np.repeat(scales, attributes["offgrad_group"])[: flat.size]
    shape = attributes["offgrad_shape"]
    found: Array = flat[: int(np.prod(shape))].astype(attributes["offgrad_dtype"]).reshape(shape)
    return found


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_others_read_integers_and_scales(
    tmp_path: Path, name: str, dtype: str, opened: Opener
) -> None:
    arrays = [normal(dtype, shape, seed) for shape in SHAPES for seed in range(3)]
    with ZarrStore(tmp_path, codec=name, keep=True) as store:
        handles = [store.put(array, attributes={"step": 7}) for array in arrays]
        found = [handle.get() for handle in handles]
    group = opened(store.path)
    for number, array in enumerate(arrays):
        slot = number % 3
        stored = group[name_of(array)]
        assert stored.attrs["slots"]["step"] == [7, 7, 7]
        if codec(name).encode(array) is None:  # it would not be smaller
            assert stored.attrs["offgrad_codec"] == "none"
            assert_same(np.asarray(stored[slot]), array)
            continue
        assert stored.attrs["offgrad_codec"] == name
        if name == "int8":
            assert (stored.dtype, stored.shape) == (np.int8, (3, *array.shape))
        assert_same(by_formula(group, name_of(array), slot), found[number])
        assert_same(dequantize(group, name_of(array), slot), found[number])
        assert_same(dequantize(group, name_of(array), slot - 3), found[number])


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_exact_groups_are_read_as_well(
    tmp_path: Path, name: str, dtype: str, opened: Opener
) -> None:
    arrays = [strange(dtype, seed) for seed in range(8)]
    arrays.insert(3, np.full(300, np.nan, dtype))  # stored as it is
    with ZarrStore(tmp_path, codec=name, keep=True) as store:
        handles = [store.put(array) for array in arrays]
        found = [handle.get() for handle in handles]
    group = opened(store.path)
    kept = f"{name_of(arrays[0])}.exact"
    rows = group[kept].shape[0]
    assert rows == sum(int(np.isnan(each).sum()) for each in group[kept[:-5] + "scales"])
    first = group[kept[:-6]].attrs["slots"]["offgrad_exact"]
    assert first[:3] == [0, 0, 1]
    for slot, array in enumerate(arrays):
        assert_same(dequantize(group, kept[:-6], slot), found[slot])
        np.testing.assert_array_equal(np.isfinite(found[slot]), np.isfinite(array))
    # A group of three with an infinity, by hand.
    assert_same(np.asarray(group[kept][0]), arrays[1][:128])


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_disk_store_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    arrays = [normal("f4", shape, seed) for seed in range(3) for shape in [*SHAPES, (700, 800)]]
    arrays += [strange("f4", seed) for seed in range(8)]
    with DiskStore(tmp_path, codec=name) as disk, ZarrStore(tmp_path, codec=name) as store:
        both = [(disk.put(array), store.put(array)) for array in arrays]
        for expected, found in both:
            assert_same(found.get(), expected.get())  # perhaps before it is written
        for expected, found in both:
            found.wait_captured()
            assert_same(found.get(), expected.get())
        del both, expected, found


numbers = st.one_of(
    st.floats(width=32), st.floats(-1, 1, width=32), st.just(0.0), st.floats(-1e-30, 1e-30)
)


@st.composite
def floats(draw: st.DrawFn) -> Array:
    """Up to four groups of different magnitude, with some numbers of any kind."""
    scale = np.repeat(draw(st.lists(st.integers(-20, 20), min_size=1, max_size=4)), 128)
    size = draw(st.integers(1, scale.size))
    values = np.random.default_rng(draw(st.integers(0, 99))).uniform(-1, 1, size)
    values = np.ldexp(values, scale[:size])
    for place, value in draw(st.dictionaries(st.integers(0, size - 1), numbers)).items():
        values[place] = value
    with np.errstate(over="ignore"):
        array: Array = values.astype(draw(st.sampled_from(["f2", "f4", "f8"])))
    return array


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(["int8", "int4"]), arrays=st.lists(floats(), min_size=1, max_size=6))
def test_every_number_is_within_the_bound(tmp_path: Path, name: str, arrays: list[Array]) -> None:
    import zarr

    coder = codec(name)
    levels = {"int8": 127, "int4": 7}[name]
    seen: dict[str, int] = {}
    with ZarrStore(tmp_path, codec=name) as store:
        handles = [store.put(array) for array in arrays]
        store.publish()
        group = zarr.open_group(store.path, mode="r", zarr_format=3)
        for array, handle in zip(arrays, handles, strict=True):
            found = handle.get()
            slot = seen[name_of(array)] = seen.get(name_of(array), -1) + 1
            if group[name_of(array)].attrs["offgrad_codec"] == name:
                assert_same(dequantize(group, name_of(array), slot), found)
            finite = np.isfinite(array)
            np.testing.assert_array_equal(found[~finite], array[~finite])
            error = np.abs(found[finite].astype("f8") - array[finite])
            assert (error <= np.broadcast_to(coder.max_error(array), array.shape)[finite]).all()
            # The bound that the store states, by hand.
            sizes = np.where(finite, np.abs(array.astype("f8")), 0)
            padded = np.pad(sizes, (0, -array.size % 128))
            most = np.repeat(padded.reshape(-1, 128).max(axis=1), 128)[: array.size][finite]
            bound = most / levels * (1 + 2**-12)
            if array.dtype == np.float16:
                bound += most / 2**11 + 2**-25
            assert (error <= bound).all()
        del handle, handles


def test_the_stated_bound_holds_for_rounded_arrays(tmp_path: Path) -> None:
    from offgrad_storage.zarr.codec import ZarrCodec

    coder = ZarrCodec("int8")
    assert not coder.lossless
    assert coder.error_bound == codec("int8").error_bound
    array = normal("f4", (1000,))
    np.testing.assert_array_equal(coder.max_error(array), codec("int8").max_error(array))
    assert coder.max_error(array.astype(">f4")) == 0
    assert ZarrCodec("auto").max_error(array) == 0
    assert not ZarrCodec("auto").error_bound


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "c8", "i4", "?", "g", "S3", "V7"])
def test_a_codec_of_groups_announces_its_dtypes(name: str, dtype: str) -> None:
    coder = codec(name)
    for size in (0, 1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 1000):
        array = np.ones(size, dtype)
        assert coder.applies(array) == (coder.encode(array) is not None)


def test_other_arrays_are_stored_as_by_auto(tmp_path: Path, opened: Opener) -> None:
    mask, whole = sample("?", (100, 100)), sample("i8", (1000,))
    big, parts = sample(">f4", (1000,)), sample("c8", (50, 20))
    with ZarrStore(tmp_path, codec="int8", keep=True) as store:
        handles = [store.put(each) for each in (mask, whole, big, parts)]
        for handle, array in zip(handles, (mask, whole, big, parts), strict=True):
            handle.wait_captured()
            assert_same(handle.get(), array)
    group = opened(store.path)
    assert group["bool_100x100"].attrs["offgrad_codec"] == "packed"
    assert_same(np.asarray(group["bool_100x100"][0]), mask)
    assert_same(np.asarray(group["int64_1000"][0]), whole)
    assert "int64_1000.scales" not in group
    assert "float32_1000.scales" not in group


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
@pytest.mark.parametrize(("name", "least", "most"), [("int8", 3.8, 4), ("int4", 7.5, 8)])
def test_it_takes_a_fraction_of_the_bytes(
    tmp_path: Path, name: str, least: float, most: float
) -> None:
    array = normal("f4", (2000, 2000))
    with ZarrStore(tmp_path, codec=name, keep=True) as store:
        handle = store.put(array)
        handle.wait_captured()
        assert least < array.nbytes / handle.stored_nbytes < most
    # Room was reserved for the array as it is: the rest of that is a hole in the file.
    total = sum(each.stat().st_blocks * 512 for each in store.path.rglob("*") if each.is_file())
    assert total < array.nbytes / (least - 0.5)
    for each in store.path.rglob("*"):
        assert stat.S_IMODE(each.stat().st_mode) == (0o700 if each.is_dir() else 0o600)


def test_the_arrays_beside_are_cut_into_chunks(
    tmp_path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zarr_groups, "_BLOCK_NBYTES", 1200)
    arrays = [strange("f8", seed % 8) for seed in range(101)]
    with ZarrStore(tmp_path, codec="int8", keep=True) as store:
        handles = [store.put(array) for array in arrays]
        found = [handle.get() for handle in handles]
    group = opened(store.path)
    assert group["float64_300.scales"].shape == (101, 3)
    for slot, expected in enumerate(found):
        assert_same(dequantize(group, "float64_300", slot), expected)


def test_publishing_again_shows_the_arrays_stored_by_then(tmp_path: Path) -> None:
    import zarr

    with ZarrStore(tmp_path, codec="int8") as store:
        handles = [store.put(strange("f4", seed)) for seed in range(4)]
        large = [store.put(normal("f4", (700, 800), seed)) for seed in range(2)]
        store.publish()
        group = zarr.open_group(store.path, mode="r", zarr_format=3)
        assert "float32_300.exact" in group
        assert_same(dequantize(group, "float32_300", 3), handles[3].get())
        del handles[1:], large[0]
        handles.append(store.put(normal("f4", (300,), 9)))
        eventually(lambda: store.stats().live_handles == 3)
        store.publish()
        group = zarr.open_group(store.path, mode="r", zarr_format=3)
        assert "float32_300.exact" not in group
        for slot, handle in enumerate(handles):
            assert_same(dequantize(group, "float32_300", slot), handle.get())
        assert_same(dequantize(group, "float32_700x800", 0), large[0].get())
        del handle, handles, large
    assert not list(tmp_path.iterdir())


def test_a_removed_kind_removes_its_companion_arrays(tmp_path: Path) -> None:
    with ZarrStore(tmp_path, codec="int8", quota=8 << 20) as store:
        handle = store.put(normal("f4", (1000, 1000)))
        store.publish()
        assert (store.path / "float32_1000x1000.scales").exists()
        del handle
        eventually(lambda: not store.stats().live_handles)
        store.put(np.zeros(1_500_000, np.int32)).wait_captured()  # it needs the room
        assert [each.name for each in store.path.iterdir() if each.is_dir()] == ["int32_1500000"]


def test_missing_scales_are_an_error_of_publish(tmp_path: Path) -> None:
    with ZarrStore(tmp_path, codec="int8", direct=False) as store:
        handle = store.put(normal("f4", (2000, 1000)))
        handle.wait_captured()
        (path,) = (each for each in store.path.rglob("0") if each.is_file())
        os.truncate(path, 100)
        with pytest.raises(MissingDataError, match=r"ZarrStore .*array 0 .*cut short"):
            store.publish()
        del handle


def test_something_in_the_way_is_said(tmp_path: Path) -> None:
    with ZarrStore(tmp_path, codec="int8") as store:
        handle = store.put(normal("f4", (300,)))
        store.flush()
        (store.path / "float32_300.scales").touch()
        with pytest.raises(StoreError, match=r"writing metadata failed.*float32_300\.scales"):
            store.publish()
        (store.path / "float32_300.scales").unlink()
        store.publish()
        del handle


def test_floats_of_other_arrays_are_refused(tmp_path: Path) -> None:
    import zarr

    with ZarrStore(tmp_path, codec="int8", keep=True) as store:
        store.put(strange("f4", 1))
        store.put(np.arange(10))
    group = zarr.open_group(store.path, mode="r+", zarr_format=3)
    with pytest.raises(ValueError, match="must be int8 or int4, got 'none'"):
        dequantize(group, "int64_10", 0)
    for slot in (1, -2):
        with pytest.raises(IndexError):
            dequantize(group, "float32_300", slot)
    with pytest.raises(KeyError):
        dequantize(group, "float32_301", 0)
    array: Any = group["float32_300"]
    good = dict(array.attrs)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"offgrad_dtype": "object"}, "offgrad_dtype"),
        ({"offgrad_dtype": "float64"}, "are not those of float64"),
        ({"offgrad_shape": [1 << 60]}, "are not those of float32"),
        ({"slots": {"offgrad_exact": [1]}}, "damaged"),
    ]
    for change, message in changes:
        array.attrs.put({**good, **change})
        with pytest.raises(ValueError, match=message):
            dequantize(group, "float32_300", 0)
    array.attrs.put(good)
    assert np.isnan(dequantize(group, "float32_300", 0)[40])


def test_tensorstore_reads_integers_and_scales(tmp_path: Path) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tensorstore = pytest.importorskip("tensorstore")
    with ZarrStore(tmp_path, codec="int8", keep=True) as store:
        found = store.put(normal("f4", (3, 100))).get()

    def read(name: str) -> Array:
        kvstore = {"driver": "file", "path": str(store.path / name)}
        values: Array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()[0].read()
        return np.asarray(values.result())  # type: ignore[attr-defined]

    scales = np.repeat(read("float32_3x100.scales"), 128)[:300].reshape(3, 100)
    assert_same(read("float32_3x100").astype("f4") * scales, found)
