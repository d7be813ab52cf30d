"""ZarrStore against the contract, against zarr as a reader, and against real faults."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import (
    CorruptionError,
    MissingDataError,
    QuotaExceededError,
    StoreError,
    ZarrStore,
    zarr_store,
)
from offgrad_storage.testing import MakeStore, StoreContract, assert_same, eventually, sample


class TestZarrStore(StoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda **options: ZarrStore(tmp_path, **options)


@pytest.mark.parametrize(
    "codec", ["none", "zstd", "blosc-lz4-noshuffle", "blosc-zstd-bitshuffle", "blosc-lz4hc"]
)
def test_codecs(tmp_path: Path, codec: str) -> None:
    array = np.repeat(np.arange(1000.0), 100)
    with ZarrStore(tmp_path, codec=codec) as store:
        handle = store.put(array)
        handle.wait_captured()
        assert_same(handle.get(), array)
        assert (handle.stored_nbytes < array.nbytes / 4) == (codec != "none")


def test_unknown_options(tmp_path: Path) -> None:
    for codec in ("lz4", "blosc", "blosc-foo", "blosc-lz4-foo"):
        with pytest.raises(ValueError, match="unknown codec"):
            ZarrStore(tmp_path, codec=codec)
    with pytest.raises(ValueError, match="at least one I/O thread"):
        ZarrStore(tmp_path, threads=0)
    assert not list(tmp_path.iterdir())


def test_zarr_reads_the_living_store(tmp_path: Path) -> None:
    import zarr

    array = sample("i4", (20, 30))
    with ZarrStore(tmp_path) as store:
        first = store.put(array, attributes={"op": "relu", "shape": (20, np.int64(30))})
        second = store.put(np.float32(2.5), attributes={"step": 3})
        for handle in (first, second):
            handle.wait_captured()
        group = zarr.open_group(store.path, mode="r")
        assert sorted(group.array_keys()) == ["00000000", "00000001"]
        stored = group["00000000"]
        assert isinstance(stored, zarr.Array)
        assert_same(np.asarray(stored[...]), array)
        assert stored.attrs["op"] == "relu"
        assert stored.attrs["shape"] == [20, 30]
        assert stored.chunks == array.shape
        del first, handle
        eventually(lambda: not (store.path / "00000000").exists())
        assert list(zarr.open_group(store.path, mode="r").array_keys()) == ["00000001"]


def test_what_zarr_has_no_dtype_for_is_said(tmp_path: Path) -> None:
    import zarr

    array = sample(">f4", (5,))
    with ZarrStore(tmp_path) as store:
        handle = store.put(array)
        handle.wait_captured()
        stored = zarr.open_array(store.path / "00000000", mode="r")
        assert stored.attrs["offgrad_dtype"] == ">f4"
        assert np.asarray(stored[...]).tobytes() == array.tobytes()


def test_large_arrays_are_cut_along_the_first_axes() -> None:
    assert zarr_store._chunks((1000, 1000), 4) == (1000, 1000)
    assert zarr_store._chunks((64, 1 << 20), 4) == (16, 1 << 20)
    assert zarr_store._chunks((3, 1 << 28), 4) == (1, 1 << 24)
    assert zarr_store._chunks((), 8) == ()
    assert zarr_store._chunks((0, 5), 8) == (1, 5)


def test_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_store, "_CHUNK_LIMIT", 1000)
    array = sample("f4", (13, 600))
    with ZarrStore(tmp_path) as store:
        handle = store.put(array)
        handle.wait_captured()
        assert_same(handle.get(), array)


def test_keep(tmp_path: Path) -> None:
    import zarr

    arrays = [sample("f4", (100,), number) for number in range(5)]
    with ZarrStore(tmp_path, keep=True) as store:
        for number, array in enumerate(arrays):
            store.put(array, attributes={"step": number})  # and the handle dies
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700
    with ZarrStore(tmp_path, keep=True) as other:
        assert other.path != store.path
    group = zarr.open_group(store.path, mode="r")
    for number, array in enumerate(arrays):
        stored = group[f"{number:08d}"]
        assert isinstance(stored, zarr.Array)
        assert_same(np.asarray(stored[...]), array)
        assert stored.attrs["step"] == number


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


def test_quota(tmp_path: Path) -> None:
    with ZarrStore(tmp_path, quota=50_000) as store:
        handles = [store.put(np.zeros(30_000, np.uint8)) for _ in range(8)]  # they compress well
        with pytest.raises(QuotaExceededError, match="ZarrStore"):
            store.put(np.zeros(60_000, np.uint8))
        assert all(handle.get().sum() == 0 for handle in handles)


def chunk_of(store: ZarrStore, name: str) -> Path:
    return store.path / name / "c" / "0"


@pytest.mark.parametrize("codec", ["none", "blosc-lz4"])
def test_damage(tmp_path: Path, codec: str) -> None:
    arrays = [sample("f4", (3000,), number) for number in range(4)]
    with ZarrStore(tmp_path, codec=codec) as store:
        handles = [store.put(array) for array in arrays]
        for handle in handles:
            handle.wait_captured()
        path = chunk_of(store, "00000000")
        data = bytearray(path.read_bytes())
        data[5000] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptionError, match=r"ZarrStore in .*array 0 "):
            handles[0].get()
        chunk_of(store, "00000001").unlink()
        with pytest.raises(MissingDataError, match=r"array 1 .*gone"):
            handles[1].get()
        path = chunk_of(store, "00000002")
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(CorruptionError, match="array 2 "):
            handles[2].get()
        assert_same(handles[3].get(), arrays[3])
        shutil.rmtree(store.path)
        handles[3].prefetch()
        with pytest.raises(MissingDataError, match="array 3 "):
            handles[3].get()
        del handle, handles


def test_a_folder_that_is_gone_fails_writes(tmp_path: Path) -> None:
    with ZarrStore(tmp_path) as store:
        (folder,) = tmp_path.iterdir()
        shutil.rmtree(folder)
        folder.touch()
        handle = store.put(np.ones(100))
        handle.wait_captured()
        with pytest.raises(StoreError, match=r"array 0 .*writing failed"):
            handle.get()
        folder.unlink()


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="making the folder"):
        ZarrStore(tmp_path / "file")


def test_importing_the_package_does_not_import_zarr(run_python: Any) -> None:
    ran = run_python("import offgrad_storage, sys; assert 'zarr' not in sys.modules")
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


def test_exit_without_close(tmp_path: Path, run_python: Any) -> None:
    ran = run_python(
        """
        import sys
        import numpy as np
        from offgrad_storage import ZarrStore
        store = ZarrStore(sys.argv[1])
        handles = [store.put(np.ones(1 << 18)) for _ in range(10)]
        sys.kept = handles[5]
        """,
        tmp_path,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not list(tmp_path.iterdir())


def test_exit_without_close_writes_what_is_to_be_kept(tmp_path: Path, run_python: Any) -> None:
    import zarr

    ran = run_python(
        """
        import sys
        import numpy as np
        from offgrad_storage import ZarrStore
        store = ZarrStore(sys.argv[1], keep=True)
        handles = [store.put(np.full(1 << 18, number)) for number in range(10)]
        """,
        tmp_path,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    (path,) = tmp_path.iterdir()
    group = zarr.open_group(path, mode="r")
    for number in range(10):
        stored = group[f"{number:08d}"]
        assert isinstance(stored, zarr.Array)
        assert (np.asarray(stored[...]) == number).all()
