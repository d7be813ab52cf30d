"""Directories and files that are removed, protected, cut short or changed under a store."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from offgrad_storage import (
    AbstractArrayStore,
    CorruptionError,
    MissingDataError,
    StoreError,
)

from tests.storage.faults import (
    ON_DISK,
    Stored,
    Unsupported,
    assert_helpful,
    assert_readable,
    assert_works_again,
    files_under,
    flip,
    isolated,
    linux_only,
    make,
    many,
    mount_ext4,
    mount_read_only,
    noise,
    outcome,
    overwrite,
    place_of,
    put_each,
    stop_drive,
    turn_read_only,
    written_places,
)

pytestmark = linux_only

MIB = 1 << 20
SOME = [noise(5000 + 3000 * seed, seed) for seed in range(20)] + [
    noise(MIB + 1234, 20),
    noise(5 * MIB + 1, 21),
]
"""Twenty small arrays and two large ones."""


def put_some(kind: str, store: AbstractArrayStore) -> Stored:
    stored, refused = put_each(kind, store, SOME)
    assert not refused
    return stored


# ---- bytes that change


@pytest.mark.parametrize("kind", [*ON_DISK, "zarr-blosc"])
def test_a_flipped_byte_is_found_wherever_it_is(kind: str, tmp_path: Path) -> None:
    with make(kind, tmp_path) as store:
        stored = put_some(kind, store)
        places = written_places(store, stored, tmp_path)
        damaged = {2: 0, 5: 7777, 11: SOME[11].nbytes - 1, 20: MIB, 21: 5 * MIB}
        for number, offset in damaged.items():
            path, start = places[number]
            flip(path, start + offset)
        for _ in range(2):
            for number, (handle, array) in enumerate(stored):
                expected = CorruptionError if number in damaged else None
                assert outcome(kind, handle, array) is expected
        for number in damaged:
            handle, array = stored[number]
            with pytest.raises(CorruptionError) as caught:
                handle.get(array.copy())
            assert_helpful(caught.value, kind, handle)
            with pytest.raises(CorruptionError) as caught:
                handle.get(noise(2 * array.nbytes).copy()[::2])
            assert_helpful(caught.value, kind, handle)
            handle.prefetch()
            assert outcome(kind, handle, array) is CorruptionError
        for number, offset in damaged.items():
            path, start = places[number]
            flip(path, start + offset)
        assert_readable(stored)


@pytest.mark.parametrize("kind", ON_DISK)
def test_the_bytes_of_another_array_are_not_taken_for_its_own(kind: str, tmp_path: Path) -> None:
    arrays = [noise(40_000, seed) for seed in range(4)]
    with make(kind, tmp_path) as store:
        stored, _ = put_each(kind, store, arrays)
        places = written_places(store, stored, tmp_path)
        overwrite(*places[1], arrays[2].tobytes())
        overwrite(*places[2], bytes(40_000))
        expected = [None, CorruptionError, CorruptionError, None]
        assert [outcome(kind, *pair) for pair in stored] == expected


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_truncated_file_loses_only_the_arrays_behind_its_end(kind: str, tmp_path: Path) -> None:
    with make(kind, tmp_path) as store:
        stored = put_some(kind, store)
        places = written_places(store, stored, tmp_path)
        path, cut = places[10]
        cut += 100
        os.truncate(path, cut)
        lost = []
        for (handle, array), (where, start) in zip(stored, places, strict=True):
            result = outcome(kind, handle, array)
            if where.samefile(path) and start + array.nbytes > cut:
                assert result in (MissingDataError, CorruptionError)
                lost.append(handle)
            else:
                assert result is None
        assert lost
        with pytest.raises((MissingDataError, CorruptionError)) as caught:
            stored[10][0].get(stored[10][1].copy())
        assert_helpful(caught.value, kind, stored[10][0])
        del lost, handle
        assert_works_again(kind, store, 20_000)
        assert_works_again(kind, store, 3 * MIB)


@pytest.mark.parametrize("kind", ON_DISK)
def test_files_cut_to_nothing_lose_everything_but_the_store(kind: str, tmp_path: Path) -> None:
    with make(kind, tmp_path) as store:
        stored = put_some(kind, store)
        for path, _ in written_places(store, stored, tmp_path):
            os.truncate(path, 0)
        for handle, array in stored:
            assert outcome(kind, handle, array) in (MissingDataError, CorruptionError)
        assert_works_again(kind, store, 20_000)
        assert_works_again(kind, store, 3 * MIB)


@pytest.mark.parametrize("name", ["zarr.json", "*"])
def test_a_zarr_folder_whose_files_are_removed(name: str, tmp_path: Path) -> None:
    kind = "zarr"
    with make(kind, tmp_path) as store:
        stored = put_some(kind, store)
        written_places(store, stored, tmp_path)
        for path in files_under(tmp_path):
            if path.match(name) and path.name != "lock" and path.is_relative_to(tmp_path):
                path.unlink()
        for handle, array in stored:
            result = outcome(kind, handle, array)
            assert result in (None, MissingDataError, CorruptionError)
            assert result or place_of(array, tmp_path), "got from nowhere"


# ---- removed directories


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_directory_that_is_not_there_is_made(kind: str, tmp_path: Path) -> None:
    with make(kind, tmp_path / "not" / "yet") as store:
        assert_readable(put_some(kind, store))
    assert not list((tmp_path / "not" / "yet").iterdir())


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_directory_that_cannot_be_made_is_said(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError) as caught:
            make(kind, directory)
        assert_helpful(caught.value, kind)
        assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_directory_deleted_under_a_store(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "spills"
    with make(kind, directory) as store:
        before = put_some(kind, store)
        shutil.rmtree(directory)
        results = {outcome(kind, *pair) for pair in before}
        assert results <= {None, MissingDataError}
        during, _ = put_each(kind, store, SOME)
        for handle, array in during:
            outcome(kind, handle, array)
        before.clear()
        during.clear()
        del handle
        directory.mkdir(exist_ok=True)
        during, _ = put_each(kind, store, SOME)
        for handle, array in during:
            outcome(kind, handle, array)
    left = list(directory.iterdir()) if directory.exists() else []
    assert not left


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_directory_deleted_while_writes_are_pending(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "spills"
    with make(kind, directory, inflight_nbytes=64 << 20) as store:
        stored = [(store.put(array), array) for array in [*SOME, *SOME]]
        shutil.rmtree(directory, ignore_errors=True)
        for handle, array in stored:
            assert outcome(kind, handle, array) in (None, MissingDataError, StoreError)


# ---- directories that may not be written to


def make_in_a_read_only_directory(kind: str, where: str) -> None:
    mount_read_only(Path(where))
    for directory in (Path(where), Path(where) / "below"):
        with pytest.raises(StoreError, match="Read-only") as caught:
            make(kind, directory)
        assert_helpful(caught.value, kind)
        assert where in str(caught.value)
        assert "read-only" in caught.value.fix


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_store_made_in_a_read_only_directory(kind: str, tmp_path: Path) -> None:
    isolated(make_in_a_read_only_directory, kind, tmp_path, mounts=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_store_made_in_a_directory_that_others_own(kind: str, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("modes do not bind root")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="Permission denied") as caught:
            make(kind, tmp_path)
        assert_helpful(caught.value, kind)
    finally:
        tmp_path.chmod(0o700)


def make_read_only_under_it(kind: str, where: str) -> None:
    directory = Path(where)
    directory.mkdir()
    mount_ext4(directory, 24 * MIB)
    store = make(kind, directory)
    before = put_some(kind, store)
    assert_readable(before)
    turn_read_only(directory)
    with contextlib.suppress(OSError):
        (directory / "try").touch()
        raise Unsupported("this kernel lets one write after an error of ext4")
    after, refused = put_each(kind, store, [*many("small", MIB), *many("large", 6 * MIB)])
    results = [outcome(kind, *pair) for pair in after]
    assert refused or any(results), "writing to a read-only file system worked"
    assert_readable(before)
    with contextlib.suppress(StoreError):  # of small arrays without a get
        store.close()


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_file_system_that_turns_read_only_under_a_store(kind: str, tmp_path: Path) -> None:
    isolated(make_read_only_under_it, kind, tmp_path / "disk", mounts=True)


# ---- the drive dies


def stop_the_drive(kind: str, when: str, where: str) -> None:
    directory = Path(where)
    directory.mkdir()
    mount_ext4(directory, 24 * MIB)
    store = make(kind, directory)
    stored = put_some(kind, store)
    assert_readable(stored)
    if when == "reported":
        stop_drive(directory)
        failed = [pair for pair in stored if outcome(kind, *pair) is not None]
        assert failed, "reading from a drive that is dead worked"
        after, refused = put_each(kind, store, SOME)
        results = [outcome(kind, *pair) for pair in after]
        assert refused or any(results)
        with contextlib.suppress(StoreError):  # of small arrays, which can still be got
            store.close()
        return
    pending = [store.put(array) for array in many("small", MIB)]
    stop_drive(directory)
    after, refused = put_each(kind, store, SOME)
    stored.clear()
    after.clear()
    pending.clear()
    try:
        store.close()
    except StoreError as error:
        assert_helpful(error, kind)
    else:
        assert refused, "neither a put nor close told of the failed writes"
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["reported", "unreported"])
@pytest.mark.parametrize("kind", ON_DISK)
def test_a_drive_that_fails_under_a_store(kind: str, when: str, tmp_path: Path) -> None:
    isolated(stop_the_drive, kind, when, tmp_path / "disk", mounts=True)
