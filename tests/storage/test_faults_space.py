"""Disk, file size, memory or quota spent: said helpfully, harmless to the rest, and over soon."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from offgrad_storage import (
    BufferPool,
    Handle,
    QuotaExceededError,
    StoreError,
    StoreFullError,
)
from offgrad_storage.testing import assert_same, eventually

from tests.storage.faults import (
    ON_DISK,
    Array,
    Stored,
    address_space,
    assert_helpful,
    assert_readable,
    assert_works_again,
    disk_nbytes,
    isolated,
    limit,
    linux_only,
    make,
    many,
    mount_ext4,
    mount_tmpfs,
    noise,
    outcome,
    put_each,
    take_all,
)

pytestmark = linux_only

MIB = 1 << 20


# ---- the disk is full


def fill_disks(kind: str, file_system: str, where: str) -> None:
    for sizes, room in (("small", 3 * MIB), ("large", 8 * MIB)):
        directory = Path(where, sizes)
        directory.mkdir(parents=True)
        if file_system == "tmpfs":
            mount_tmpfs(directory, room)
        else:
            mount_ext4(directory, room + MIB)
        fill_a_disk(kind, directory, sizes, room)


def fill_a_disk(kind: str, directory: Path, sizes: str, room: int) -> None:
    with make(kind, directory) as store:
        stored, refused = put_each(kind, store, many(sizes, room + 6 * MIB))
        results = [outcome(kind, *pair) for pair in stored]
        assert set(results) - {None} <= {StoreFullError}
        assert refused or StoreFullError in results, "more was stored than there was room for"
        stored = [pair for pair, result in zip(stored, results, strict=True) if result is None]
        assert stored, "nothing was stored"
        assert_readable(stored)

        del stored[::2]
        assert_works_again(kind, store, 16 << 10)
        assert_readable(stored)
        stored.clear()
        assert_works_again(kind, store, room // 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "file_system"),
    [
        *[(kind, "tmpfs") for kind in ON_DISK],
        ("disk", "ext4"),
        ("disk-buffered", "ext4"),
        ("zarr", "ext4"),
    ],
)
def test_a_full_disk_fails_puts_until_handles_die(
    kind: str, file_system: str, tmp_path: Path
) -> None:
    isolated(fill_disks, kind, file_system, tmp_path / "disk", mounts=True)


def use_dead_space(kind: str, where: str) -> None:
    directory = Path(where)
    directory.mkdir()
    mount_tmpfs(directory, 8 * MIB)
    with make(kind, directory) as store:
        stored, _ = put_each(kind, store, [noise(MIB, seed) for seed in range(6)])
        assert_readable(stored)
        fill(directory / "of-someone-else")
        del stored[::2]
        assert_works_again(kind, store, 2 * MIB)
        assert_readable(stored)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "disk",
        "disk-buffered",
        "zarr",
    ],
)
def test_on_a_full_disk_scattered_dead_arrays_make_room_for_a_larger_one(
    kind: str, tmp_path: Path
) -> None:
    isolated(use_dead_space, kind, tmp_path / "disk", mounts=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        take_all(lambda: file.write(bytes(4096)), [])


def fill_a_disk_from_outside(kind: str, where: str) -> None:
    directory = Path(where)
    directory.mkdir()
    mount_tmpfs(directory, 8 * MIB)
    with make(kind, directory) as store:
        before, _ = put_each(kind, store, many("small", MIB))
        assert_readable(before)
        other = directory / "of-someone-else"
        fill(other)
        during, refused = put_each(kind, store, many("large", 6 * MIB) + many("small", 6 * MIB))
        results = [outcome(kind, *pair) for pair in during]
        assert refused or StoreFullError in results
        assert_readable(before)
        other.unlink()
        assert_works_again(kind, store, MIB)
        assert_readable(before)
        during = [pair for pair, result in zip(during, results, strict=True) if result is None]
        assert_readable(during)


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_disk_that_others_fill_and_clear_again(kind: str, tmp_path: Path) -> None:
    isolated(fill_a_disk_from_outside, kind, tmp_path / "disk", mounts=True)


def make_on_a_full_disk(kind: str, where: str) -> None:
    directory = Path(where)
    directory.mkdir()
    mount_tmpfs(directory, 64 << 10)
    other = directory / "of-someone-else"
    fill(other)
    try:
        store = make(kind, directory)
    except StoreFullError as error:
        assert_helpful(error, kind)
    else:
        with store:
            stored, refused = put_each(kind, store, [noise(100 << 10)])
            assert refused or [outcome(kind, *pair) for pair in stored] == [StoreFullError]
    assert list(directory.iterdir()) == [other], "something was left"
    other.unlink()
    with make(kind, directory) as store:
        assert_works_again(kind, store, 4 << 10)


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_store_made_on_a_full_disk(kind: str, tmp_path: Path) -> None:
    isolated(make_on_a_full_disk, kind, tmp_path / "disk", mounts=True)


def spend_the_file_size(kind: str, where: str) -> None:
    import resource

    with make(kind, Path(where)) as store:
        before, _ = put_each(kind, store, many("small", MIB // 4))
        assert_readable(before)
        with limit(resource.RLIMIT_FSIZE, MIB + 100):
            during, refused = put_each(kind, store, many("small", 3 * MIB) + many("large", 6 * MIB))
            results = [outcome(kind, *pair) for pair in during]
            assert set(results) - {None} <= {StoreFullError}
            assert refused or StoreFullError in results
            assert_readable(before)
        good = [pair for pair, result in zip(during, results, strict=True) if result is None]
        assert_works_again(kind, store, 2 * MIB)
        assert_works_again(kind, store, 16 << 10)
        assert_readable(before)
        assert_readable(good)


@pytest.mark.parametrize("kind", ON_DISK)
def test_the_largest_file_size_is_spent(kind: str, tmp_path: Path) -> None:
    isolated(spend_the_file_size, kind, tmp_path)
    assert not list(tmp_path.iterdir())


# ---- memory is full


def spend_the_memory_twice(kind: str, where: str) -> None:
    for when in ("at the first put", "in use"):
        spend_the_memory(kind, when, where)


def spend_the_memory(kind: str, when: str, where: str) -> None:
    import resource

    store = make(kind, Path(where))
    arrays = many("small", MIB) + many("large", 12 * MIB)
    more = many("small", MIB // 4) + many("large", 12 * MIB)
    stored: Stored = []
    if when == "in use":
        stored, _ = put_each(kind, store, arrays)
        assert_readable(stored)
    ballast: list[mmap.mmap] = []
    found: list[Array] = []
    failed = 0
    with limit(resource.RLIMIT_AS, address_space() + 256 * MIB):
        with pytest.raises(OSError, match="Cannot allocate"):
            take_all(lambda: mmap.mmap(-1, 256 << 10), ballast)
        for piece in ballast[-8:]:  # Python itself needs some
            piece.close()
        during, refused = put_each(kind, store, more)
        for pair in stored + during:
            try:
                found.append(pair[0].get())
            except (StoreError, MemoryError) as error:
                assert_helpful(error, kind, pair[0])
                failed += 1
    for piece in ballast:
        piece.close()
    assert refused or failed, "memory was not spent"
    found.clear()
    assert_readable(stored)
    stored.clear()
    assert_readable([pair for pair in during if outcome(kind, *pair) is None])
    assert_works_again(kind, store, 4 * MIB)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*ON_DISK, "zarr-blosc", "pool"])
def test_memory_is_spent(kind: str, tmp_path: Path) -> None:
    isolated(spend_the_memory_twice, kind, tmp_path)
    assert not list(tmp_path.iterdir())


def prefetch_and_get(handle: Handle) -> None:
    handle.prefetch()  # this or the get says it
    handle.get()


@pytest.mark.parametrize("kind", [*ON_DISK, "pool"])
def test_reading_into_memory_that_there_is_not(kind: str, tmp_path: Path) -> None:
    pool = BufferPool(capacity=4 * MIB)
    with make(kind, tmp_path, allocate=pool.empty) as store:
        stored, _ = put_each(kind, store, many("small", MIB) + [noise(3 * MIB), noise(6 * MIB)])
        held = pool.empty(2 * MIB, "u1")
        for handle, array in stored[-2:]:
            with pytest.raises(MemoryError, match="capacity"):
                handle.get()
            with pytest.raises(MemoryError, match="capacity"):
                prefetch_and_get(handle)
            assert_same(handle.get(noise(array.nbytes).copy()), array)
        assert_readable(stored[:-2])
        del held
        assert_readable(stored[:-1])
        assert pool.in_use_nbytes == 0


# ---- the quota is spent


@pytest.mark.parametrize("sizes", ["small", "large"])
@pytest.mark.parametrize("kind", [*ON_DISK, "zarr-blosc", "pool"])
def test_a_spent_quota_refuses_puts_and_harms_nothing(
    kind: str, sizes: str, tmp_path: Path
) -> None:
    quota = {"small": 2 * MIB, "large": 8 * MIB}[sizes]
    with make(kind, tmp_path, quota=quota) as store:
        stored: Stored = []
        refusals = []
        for array in many(sizes, quota + 3 * MIB):
            try:
                stored.append((store.put(array), array))  # not waited for: many are pending
            except QuotaExceededError as error:
                refusals.append(error)
        assert refusals
        for refusal in refusals:
            assert_helpful(refusal, kind)
            assert refusal.handle
        assert sum(array.nbytes for _, array in stored) <= quota
        assert store.stats().stored_nbytes <= quota
        assert_readable(stored)
        for handle, _ in stored:
            handle.wait_captured()
        assert_readable(stored)

        # Small arrays give their space back once their neighbours are dead as well.
        del handle, stored[: len(stored) // 2]
        assert_works_again(kind, store, 64 << 10)
        assert_readable(stored)
        stored.clear()
        assert_works_again(kind, store, quota // 2)
        eventually(lambda: store.stats().stored_nbytes == 0)
        with pytest.raises(QuotaExceededError) as caught:
            store.put(noise(quota + 1))
        assert_helpful(caught.value, kind)
        assert_works_again(kind, store, quota // 2)


@pytest.mark.parametrize("kind", [*ON_DISK, "pool"])
def test_an_error_of_a_tiny_quota_states_the_quota(kind: str, tmp_path: Path) -> None:
    with make(kind, tmp_path, quota=10) as store:
        for nbytes in (11, 5000, 2 * MIB):
            with pytest.raises(QuotaExceededError) as caught:
                store.put(noise(nbytes))
            assert_helpful(caught.value, kind)
        assert store.stats().live_handles == 0


@pytest.mark.parametrize(
    "kind",
    [
        "disk",
        "disk-buffered",
        "zarr",
    ],
)
def test_a_quota_bounds_the_bytes_on_the_disk_under_constant_use(kind: str, tmp_path: Path) -> None:
    quota = 4 * MIB
    with make(kind, tmp_path, quota=quota) as store:

        def use(seed: int) -> None:
            array = noise(128 << 10, seed)
            for _ in range(100):
                handle = store.put(array)
                handle.wait_captured()
                assert_same(handle.get(), array)

        with ThreadPoolExecutor(4) as threads:
            for result in [threads.submit(use, seed) for seed in range(4)]:
                result.result()
            most = disk_nbytes(tmp_path)
        assert most <= 4 * quota
