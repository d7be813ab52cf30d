"""ZarrStore against the contract, against zarr and zarrs as readers, and against real faults."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    CorruptionError,
    Handle,
    MissingDataError,
    QuotaExceededError,
    StoreError,
    StoreFullError,
    ZarrStore,
)
from offgrad_storage.testing import (
    DTYPES,
    MakeStore,
    StoreContract,
    assert_same,
    eventually,
    sample,
)
from offgrad_storage.zarr import format as zarr_format
from offgrad_storage.zarr import shards

from tests.storage.gate import in_thread

Array = NDArray[Any]

LOSSLESS = ["auto", "none", "zstd", "blosc-lz4", "blosc-lz4-noshuffle", "blosc-zstd-bitshuffle"]
KINDS: dict[str, dict[str, Any]] = {
    "auto": {},
    "buffered": {"direct": False},
    "zstd": {"codec": "zstd"},
    "kept": {"keep": True},
}


class TestZarrStore(StoreContract):
    @pytest.fixture(params=KINDS)
    def make_store(self, tmp_path: Path, request: pytest.FixtureRequest) -> MakeStore:
        if request.param == "kept" and any(each in request.node.name for each in ("free", "die")):
            pytest.skip("a persistent store frees nothing")
        return lambda **options: ZarrStore(tmp_path, **KINDS[request.param], **options)


@pytest.fixture(params=["zarr", "zarrs"])
def reader(request: pytest.FixtureRequest) -> Iterator[str]:
    """Who reads: zarr-python by itself, or by the codecs of zarrs, which are written in Rust."""
    import zarr

    if request.param == "zarr":
        yield request.param
        return
    pytest.importorskip("zarrs")
    # By itself it would fall back to Python without a word.
    pipeline = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
    with zarr.config.set(pipeline):
        yield request.param


def arrays_in(store: ZarrStore) -> dict[str, Any]:
    import zarr

    return dict(zarr.open_group(store.path, mode="r", zarr_format=3).arrays())


# The format


@pytest.mark.parametrize("codec", LOSSLESS)
def test_others_read_every_array(tmp_path: Path, reader: str, codec: str) -> None:
    put: dict[str, list[Array]] = {}
    with ZarrStore(tmp_path, codec=codec, keep=True) as store:
        for number in range(7):
            for dtype in ("f4", "f8", "i8", "u1", "?", "c16", ">f4"):
                for shape in ((), (3, 5), (400, 300), (0, 2), (5000,)):
                    array = sample(dtype, shape, number)
                    if number % 2 and array.ndim > 1:
                        array = np.asfortranarray(array)
                    store.put(array)
                    sizes = "x".join(map(str, shape)) or "scalar"
                    name = f"{array.dtype.name}_{sizes}{'_1' * (dtype == '>f4')}"
                    put.setdefault(name, []).append(array)
    found = arrays_in(store)
    assert found.keys() == put.keys()
    for name, expected in put.items():
        stored = found[name]
        assert stored.shape[0] == len(expected)
        for slot, array in enumerate(expected):
            assert np.asarray(stored[slot]).tobytes() == array.astype(stored.dtype).tobytes()
        if expected[0].size:
            assert np.asarray(stored[...]).shape == (len(expected), *expected[0].shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_of_every_dtype_are_there(tmp_path: Path, dtype: Any) -> None:
    expected = [sample(dtype, (4, 6), number) for number in range(3)]
    with ZarrStore(tmp_path, keep=True) as store:
        for array in expected:
            store.put(array)
    (stored,) = arrays_in(store).values()
    for slot, array in enumerate(expected):
        assert np.asarray(stored[slot]).astype(stored.dtype).tobytes() in (
            array.tobytes(),
            array.astype(array.dtype.newbyteorder("=")).tobytes(),
        )
    if not np.dtype(dtype).isnative or np.dtype(dtype).kind in "SUV":
        assert stored.attrs["offgrad_dtype"] == str(np.dtype(dtype))


def test_attributes_are_there_for_each_slot(tmp_path: Path) -> None:
    odd = object()
    with ZarrStore(tmp_path, keep=True) as store:
        store.put(np.ones(3), attributes={"op": "relu", "step": 0, "shape": (1, np.int64(3))})
        store.put(np.zeros(3), attributes={"op": "gelu", "step": np.int32(1), "odd": odd})
        store.put(np.ones(3), attributes={"scale": np.float32("nan")})
    (stored,) = arrays_in(store).values()
    slots = stored.attrs["slots"]
    assert slots["op"] == ["relu", "gelu", None]
    assert slots["step"] == [0, 1, None]
    assert slots["shape"] == [[1, 3], None, None]
    assert slots["odd"] == [None, str(odd), None]
    assert slots["scale"] == [None, None, "nan"]
    assert [len(each) for each in slots["offgrad_xxh3_64"]] == [16, 16, 16]


def test_xarray_opens_it(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    with ZarrStore(tmp_path, keep=True) as store:
        for shape in ((3,), (3, 4), (), (4,)):
            store.put(np.full(shape, 2.5))
            store.put(np.full(shape, 3.5))
    opened = xarray.open_zarr(store.path, consolidated=False)
    assert len(opened) == 4
    for each in opened.values():
        assert each.values[0].sum() == 2.5 * each.values[0].size
        assert each.values[1].sum() == 3.5 * each.values[0].size


def test_masks_take_a_bit_and_read_as_bool(tmp_path: Path, reader: str) -> None:
    masks = [sample("?", (1000, 1000), number) for number in range(3)]
    with ZarrStore(tmp_path, keep=True) as store:
        handles = [store.put(each) for each in masks]
        for handle, mask in zip(handles, masks, strict=True):
            assert_same(handle.get(), mask)
            handle.wait_captured()
            assert_same(handle.get(), mask)
            assert handle.stored_nbytes < mask.nbytes / 7
        # Neither true nor false, but these bytes come back.
        strange = np.arange(1000, dtype=np.uint8).view(bool)
        handle = store.put(strange)
        handle.wait_captured()
        assert_same(handle.get(), strange)
    stored = arrays_in(store)["bool_1000x1000"]
    assert stored.dtype == bool
    assert_same(np.asarray(stored[...]), np.stack(masks))


def test_bfloat16_reads_as_float32(tmp_path: Path, reader: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).standard_normal((300, 500)).astype("f4")
    rounded = values.astype(ml_dtypes.bfloat16).astype("f4")
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 3.4e38] * 100, "f4")
    with ZarrStore(tmp_path, keep=True, codec="bfloat16") as store:
        handle = store.put(values)
        assert_same(handle.get(), rounded)
        handle.wait_captured()
        assert_same(handle.get(), rounded)
        assert handle.stored_nbytes < 0.52 * values.nbytes
        assert_same(store.put(special).get(), special)  # 3.4e38 would become infinite
        store.put(values.astype("f8"))
    found = arrays_in(store)
    assert_same(np.asarray(found["float32_300x500"][0]), rounded)
    np.testing.assert_array_equal(np.asarray(found["float32_500"][0]), special)
    assert_same(np.asarray(found["float64_300x500"][0]), values.astype("f8"))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_arrays_have_several_chunks(
    tmp_path: Path, reader: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zarr_format, "CHUNK_NBYTES", 1 << 20)
    by_rows = [sample("f4", (13, 100_000), number) for number in range(3)]
    flat = [sample("f4", (2, 300_001), number) for number in range(3)]
    with ZarrStore(tmp_path, keep=True, codec=codec) as store:
        for array in [*by_rows, *flat]:
            handle = store.put(array)
            handle.wait_captured()
            assert_same(handle.get(), array)
    found = arrays_in(store)
    assert found["float32_13x100000"].chunks == (1, 2, 100_000)
    assert_same(np.asarray(found["float32_13x100000"][...]), np.stack(by_rows))
    stored = found["float32_2x300001"]
    assert stored.attrs["offgrad_shape"] == [2, 300_001]
    assert_same(np.asarray(stored[...]), np.stack(flat).reshape(3, -1))


# Living stores


def test_puts_of_other_threads_survive_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of a shard is written behind its arrays, where the next array goes, too."""
    handles: list[Handle] = []
    index = zarr_format.shard_index

    def index_slowly(chunks: Any) -> bytes:
        in_thread(lambda: handles.append(store.put(sample("f4", (600, 600), 1))))
        with contextlib.suppress(AssertionError):  # the write waits
            eventually(lambda: handles and handles[0].captured, seconds=0.2)
        return index(chunks)

    with ZarrStore(tmp_path) as store:
        first = store.put(sample("f4", (600, 600)))
        monkeypatch.setattr(shards, "shard_index", index_slowly)
        store.publish()
        eventually(lambda: handles)
        assert_same(handles[0].get(), sample("f4", (600, 600), 1))
        assert_same(first.get(), sample("f4", (600, 600)))
        store._check()
        del first
        handles.clear()


def test_several_threads_may_publish(tmp_path: Path) -> None:
    with ZarrStore(tmp_path) as store:
        handles = [store.put(sample("f4", (100 + each,))) for each in range(20)]
        publishing = [in_thread(store.publish) for _ in range(4)]
        for thread, _ in publishing:
            thread.join()
        assert [results for _, results in publishing] == [[None]] * 4
        assert len(list(arrays_in(store))) == 20
        del handles


def test_publishing_makes_a_living_store_readable(tmp_path: Path, reader: str) -> None:
    with ZarrStore(tmp_path) as store:
        first = [store.put(sample("f4", (600, 600), number)) for number in range(3)]
        small = [store.put(sample("f4", (50,), number)) for number in range(4)]
        store.publish()
        found = arrays_in(store)
        assert_same(np.asarray(found["float32_600x600"][2]), sample("f4", (600, 600), 2))
        assert_same(np.asarray(found["float32_50"][3]), sample("f4", (50,), 3))
        # The next publish leaves dead arrays out, and new ones use their places.
        del first[0], small[1]
        first.append(store.put(sample("f4", (600, 600), 9), attributes={"step": 9}))
        small.append(store.put(sample("f4", (50,), 9)))
        eventually(lambda: store.stats().live_handles == 7)
        store.publish()
        found = arrays_in(store)
        assert_same(
            np.asarray(found["float32_600x600"][...]),
            np.stack([sample("f4", (600, 600), number) for number in (1, 2, 9)]),
        )
        assert found["float32_600x600"].attrs["slots"]["step"] == [None, None, 9]
        assert_same(
            np.asarray(found["float32_50"][...]),
            np.stack([sample("f4", (50,), number) for number in (0, 2, 3, 9)]),
        )
        for handle in (*first, *small):
            handle.get()
    assert not list(tmp_path.iterdir())


def test_keep(tmp_path: Path) -> None:
    arrays = [sample("f4", (100,), number) for number in range(5)]
    with ZarrStore(tmp_path, keep=True) as store:
        for number, array in enumerate(arrays):
            store.put(array, attributes={"step": number})  # and the handle dies
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((store.path / "float32_100/c/0/0").stat().st_mode) == 0o600
    with ZarrStore(tmp_path, keep=True) as other:
        assert other.path != store.path
    assert not arrays_in(other)
    (stored,) = arrays_in(store).values()
    assert_same(np.asarray(stored[...]), np.stack(arrays))
    assert stored.attrs["slots"]["step"] == [0, 1, 2, 3, 4]


def test_a_failed_write_is_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from offgrad_storage.files.direct_file import DirectFile

    write = DirectFile.write_at

    def fail(self: DirectFile, data: Any, offset: int) -> None:
        if data.size == 2 << 20:
            raise OSError(5, "Input/output error")
        write(self, data, offset)

    monkeypatch.setattr(DirectFile, "write_at", fail)
    store = ZarrStore(tmp_path, keep=True)
    good, bad = store.put(np.ones(200_000)), store.put(np.ones((2, 131_072)))
    small = store.put(np.ones(10))
    bad.wait_captured()
    with pytest.raises(StoreError, match=r"array 1 .*drive reports"):
        bad.check()
    store.close()
    found = arrays_in(store)
    assert found["float64_200000"].shape == (1, 200_000)
    assert found["float64_2x131072"].shape == (0, 2, 131_072)
    del good, bad, small


def test_nothing_is_left(tmp_path: Path) -> None:
    store = ZarrStore(tmp_path)
    handles = [store.put(np.ones(10_000)) for _ in range(3)]
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder in store.path.parents
    store.close()
    assert not list(tmp_path.iterdir())
    del handles, store
    store = ZarrStore(tmp_path)
    store.put(np.ones(10))
    del store
    eventually(lambda: not list(tmp_path.iterdir()))


def test_freed_space_is_used_again(tmp_path: Path) -> None:
    with ZarrStore(tmp_path) as store:
        for _ in range(50):
            handle = store.put(sample("u1", (2 << 20,)))
            handle.wait_captured()
        (path,) = (each for each in store.path.rglob("0") if each.is_file())
        assert path.stat().st_size <= 3 * (2 << 20)


def test_quota(tmp_path: Path) -> None:
    with ZarrStore(tmp_path, quota=9 << 20, codec="zstd") as store:
        handles = [store.put(np.zeros(4 << 20, np.uint8)) for _ in range(8)]  # they compress well
        with pytest.raises(QuotaExceededError, match="ZarrStore"):
            store.put(np.zeros(20 << 20, np.uint8))
        assert all(handle.get().sum() == 0 for handle in handles)


def test_unknown_options(tmp_path: Path) -> None:
    for codec in ("lz4", "blosc", "blosc-foo", "blosc-lz4-foo", "int2"):
        with pytest.raises(ValueError, match="unknown codec"):
            ZarrStore(tmp_path, codec=codec)
    with pytest.raises(ValueError, match="threads must be at least 1"):
        ZarrStore(tmp_path, threads=0)
    assert not list(tmp_path.iterdir())


# Faults


@pytest.mark.parametrize("codec", ["none", "blosc-lz4"])
def test_damage(tmp_path: Path, codec: str) -> None:
    arrays = [sample("i4", (500_000,), number) for number in range(4)]
    with ZarrStore(tmp_path, codec=codec, direct=False) as store:
        handles = [store.put(array) for array in arrays]
        for handle in handles:
            handle.wait_captured()
        places: list[Any] = [handle._entry.place for handle in handles]
        (path,) = (each for each in store.path.rglob("0") if each.is_file())
        with open(path, "r+b") as file:
            file.seek(places[0][1] + 5000)
            file.write(bytes([255 - file.read(1)[0]]))
            file.seek(places[0][1] + 5000)
            file.write(b"\x99\x98")
        with pytest.raises(CorruptionError, match=r"ZarrStore in .*array 0 "):
            handles[0].get()
        last = max(range(4), key=lambda number: places[number][1])
        os.truncate(path, places[last][1] + 100)
        with pytest.raises(MissingDataError, match=rf"array {last} .*cut short"):
            handles[last].get()
        for number in {1, 2, 3} - {last}:
            assert_same(handles[number].get(), arrays[number])
        # An open file outlives its name.
        shutil.rmtree(store.path)
        assert_same(handles[1].get(), arrays[1])
        with pytest.raises(StoreError, match=r"array 4 .*No such file"):
            store.put(np.ones(7))
        del handle, handles


def test_a_removed_folder_cannot_be_kept(tmp_path: Path) -> None:
    store = ZarrStore(tmp_path, keep=True)
    store.put(np.ones(100))
    shutil.rmtree(store.path)
    store.path.touch()
    with pytest.raises(StoreError, match="writing metadata failed"):
        store.close()
    store.close()


@pytest.mark.parametrize("nbytes", [1000, 2 << 20])
def test_a_kind_that_cannot_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    with ZarrStore(tmp_path) as store:
        backend: Any = store._executor.backend
        prepare = backend.prepare

        def prepare_too_early(entry: Any) -> None:
            prepare(entry)
            backend._last_kind = None
            backend.release_free()  # as another thread may, between the two
            for folder in tmp_path.glob("offgrad-spill-*"):
                shutil.rmtree(folder)

        monkeypatch.setattr(backend, "prepare", prepare_too_early)
        with pytest.raises(MissingDataError, match=r"array 0 .*making room failed") as caught:
            store.put(np.zeros(nbytes, np.uint8))
        assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize("form", ["file://{}", "file://localhost{}", "FILE://{}", "local://{}"])
def test_a_file_url_is_a_local_folder(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "a folder, 100%#ä?"
    with ZarrStore(form.format(quote(str(folder))), codec="bfloat16", keep=True) as store:
        store.put(np.ones((3, 4), np.float32))
    assert store.path.parent == folder
    assert (store.path / "float32_3x4" / "c" / "0" / "0" / "0").exists()
    assert not list(tmp_path.rglob("*.zarr"))[1:]


@pytest.mark.parametrize("url", ["file://host/folder", "file://folder", "file://"])
def test_a_file_url_of_another_host_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="file:///path"):
        ZarrStore(url)


def test_a_failed_opening_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="inflight_nbytes"):
        ZarrStore(tmp_path, keep=True, inflight_nbytes=-1)
    mkdir = Path.mkdir

    def fail_late(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name == "arrays.zarr":
            raise OSError(errno.ENOSPC, "No space left on device")
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", fail_late)
    with pytest.raises(StoreFullError, match="Free space"):
        ZarrStore(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"making the folder.*exists.*Choose a place") as caught:
        ZarrStore(tmp_path / "file")
    assert isinstance(caught.value.__cause__, FileExistsError)


def test_neither_the_package_nor_a_store_imports_zarr(tmp_path: Path, run_python: Any) -> None:
    ran = run_python(
        """
        import sys
        import numpy as np
        from offgrad_storage import ZarrStore
        with ZarrStore(sys.argv[1]) as store:
            store.put(np.ones(100)).get()
        assert not {"zarr", "google_crc32c"} & set(sys.modules)
        """,
        tmp_path,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
def test_the_next_start_sweeps_after_a_kill(tmp_path: Path, run_python: Any) -> None:
    with ZarrStore(tmp_path) as living:
        handle = living.put(np.arange(10))
        handle.wait_captured()
        ran = run_python(
            """
            import os, signal, sys
            import numpy as np
            from offgrad_storage import ZarrStore
            store = ZarrStore(sys.argv[1])
            handles = [store.put(np.ones(1 << 18)) for _ in range(10)]
            handles[1].wait_captured()
            os.kill(os.getpid(), signal.SIGKILL)
            """,
            tmp_path,
        )
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        assert len(list(tmp_path.iterdir())) == 2
        with ZarrStore(tmp_path):
            assert len(list(tmp_path.iterdir())) == 2
        assert_same(handle.get(), np.arange(10))
    assert not list(tmp_path.iterdir())


def test_exit_without_close_completes_a_kept_folder(tmp_path: Path, run_python: Any) -> None:
    import zarr

    ran = run_python(
        """
        import sys
        import numpy as np
        from offgrad_storage import ZarrStore
        store = ZarrStore(sys.argv[1], keep=True)
        handles = [store.put(np.full(1 << 18, number)) for number in range(10)]
        small = [store.put(np.full(10, number)) for number in range(10)]
        """,
        tmp_path,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    (path,) = tmp_path.iterdir()
    group = zarr.open_group(path, mode="r")
    for name in ("int64_262144", "int64_10"):
        stored = group[name]
        assert isinstance(stored, zarr.Array)
        assert (np.asarray(stored[...])[:, 0] == range(10)).all()
