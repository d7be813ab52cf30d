"""ZarrStore without a local folder: in zarr stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from offgrad_storage import (
    CorruptionError,
    MissingDataError,
    QuotaExceededError,
    StoreError,
    ZarrStore,
)
from offgrad_storage.testing import (
    MakeStore,
    StoreContract,
    assert_same,
    eventually,
    sample,
)
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ZipStore


class TestInMemory(StoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda **options: ZarrStore(MemoryStore(), **options)


@pytest.mark.parametrize("codec", ["auto", "zstd", "blosc-lz4"])
def test_zarr_reads_the_stored_arrays(codec: str) -> None:
    where = MemoryStore()
    arrays = [sample("f4", (20, 30)), sample("?", (5000,)), np.array(2.5), sample(">i4", (7,))]
    with ZarrStore(where, codec=codec) as store:
        handles = [store.put(each, attributes={"step": 3}) for each in arrays]
        for handle, array in zip(handles, arrays, strict=True):
            handle.wait_captured()
            assert_same(handle.get(), array)
        group = store.path
        assert sorted(group.array_keys()) == [f"{number:08d}" for number in range(4)]
        for (_, stored), array in zip(sorted(group.arrays()), arrays, strict=True):
            np.testing.assert_array_equal(np.asarray(stored[...]).view(array.dtype), array)
            assert stored.attrs["step"] == 3
        del handle, handles[0]
        eventually(lambda: not any("00000000" in key for key in where._store_dict))
        assert len(list(group.array_keys())) == 3
    assert not where._store_dict


def test_a_url(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    array = sample("f4", (20, 30))
    with ZarrStore("memory://offgrad-test", keep=True) as store:
        assert_same(store.put(array).get(), array)
    group: Any = store.path
    assert_same(np.asarray(group["00000000"][...]), array)


def test_a_zip_file(tmp_path: Path) -> None:
    where = ZipStore(tmp_path / "arrays.zip", mode="w")
    with pytest.raises(ValueError, match="keep=True"):
        ZarrStore(where)
    where = ZipStore(tmp_path / "kept.zip", mode="w")
    with ZarrStore(where, keep=True) as store:
        for number in range(3):
            store.put(np.full(100, number))
    where.close()
    with ZipStore(tmp_path / "kept.zip", mode="r") as opened:
        ((_, group),) = zarr.open_group(opened, mode="r").groups()
        for number in range(3):
            stored: Any = group[f"{number:08d}"]
            assert (np.asarray(stored[...]) == number).all()


def test_object_stores(tmp_path: Path) -> None:
    obstore: Any = pytest.importorskip("obstore.store")
    from zarr.storage import ObjectStore

    array = sample("f4", (200, 30))
    with ZarrStore(ObjectStore(obstore.LocalStore(str(tmp_path)))) as store:
        handle = store.put(array)
        handle.wait_captured()
        assert_same(handle.get(), array)


def test_damage(tmp_path: Path) -> None:
    where = LocalStore(tmp_path)
    with ZarrStore(where) as store:
        handles = [store.put(sample("f4", (3000,), number)) for number in range(3)]
        for handle in handles:
            handle.wait_captured()
        chunks = sorted(tmp_path.rglob("c/0"))
        data = bytearray(chunks[0].read_bytes())
        data[100] ^= 1
        chunks[0].write_bytes(data)
        del store.path["00000001"]
        with pytest.raises(CorruptionError, match="array 0 "):
            handles[0].get()
        with pytest.raises(MissingDataError, match=r"array 1 .*missing"):
            handles[1].get()
        assert_same(handles[2].get(), sample("f4", (3000,), 2))
        del handle, handles


def test_bad_options() -> None:
    for codec in ("bfloat16", "int8", "int4"):
        with pytest.raises(ValueError, match="local folder"):
            ZarrStore(MemoryStore(), codec=codec)
    with ZarrStore(MemoryStore(), quota=10_000) as store:
        handle = store.put(np.zeros(100))
        with pytest.raises(QuotaExceededError, match="quota"):
            store.put(np.zeros(1000))
        del handle


def test_nothing_is_left_of_a_root_that_was_made_for_the_store() -> None:
    where = MemoryStore()
    first = ZarrStore(where)
    second = ZarrStore(where)
    first.put(np.zeros(100)).wait_captured()
    first.close()
    zarr.open_group(where, mode="r")  # the second is in it
    second.close()
    assert set(where._store_dict) == {"zarr.json"}

    where = MemoryStore()
    with ZarrStore(where) as store:
        store.put(np.zeros(100)).wait_captured()
    assert not where._store_dict


def test_a_root_with_anything_else_in_it_stays() -> None:
    where = MemoryStore()
    zarr.create_group(where, attributes={"mine": 1})
    with ZarrStore(where):
        pass
    assert zarr.open_group(where, mode="r").attrs["mine"] == 1

    where = MemoryStore()
    with ZarrStore(where):
        zarr.open_group(where, mode="a").create_group("of someone else")
    assert list(zarr.open_group(where, mode="r").group_keys()) == ["of someone else"]


def test_a_url_is_left_as_it_was() -> None:
    fsspec: Any = pytest.importorskip("fsspec")
    with ZarrStore("memory://offgrad-empty") as store:
        store.put(np.zeros(100)).wait_captured()
        assert fsspec.filesystem("memory").find("/offgrad-empty")
    assert not fsspec.filesystem("memory").find("/offgrad-empty")


def test_a_failed_opening_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    where = FsspecStore.from_url(tmp_path.as_uri())  # makes no folders
    with pytest.raises(StoreError, match=r"making the folder.*No such file.*Choose a place"):
        ZarrStore(where)
    assert not list(tmp_path.iterdir())
    zipped = ZipStore(tmp_path / "arrays.zip", mode="w")
    with pytest.raises(ValueError, match="keep=True"):
        ZarrStore(zipped)
    assert not list(tmp_path.iterdir())
