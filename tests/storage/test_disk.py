"""DiskStore against the contract, and against real faults."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import (
    BufferPool,
    CorruptionError,
    DiskStore,
    MissingDataError,
    QuotaExceededError,
    StoreError,
    StoreFullError,
)
from offgrad_storage.files.array_file import ArrayFile
from offgrad_storage.files.direct_file import DirectFile
from offgrad_storage.testing import (
    MakeStore,
    StoreContract,
    assert_same,
    eventually,
    sample,
)

posix_only = pytest.mark.skipif(os.name == "nt", reason="needs POSIX")


@pytest.fixture(params=["direct", "buffered"])
def direct(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "direct")


KINDS: dict[str, dict[str, Any]] = {
    "direct": {},
    "buffered": {"direct": False},
    "one by one": {"pack_below_nbytes": 0},
    "encoded": {"codec": "zstd"},
}


class TestDiskStore(StoreContract):
    @pytest.fixture(params=KINDS)
    def make_store(self, tmp_path: Path, request: pytest.FixtureRequest) -> MakeStore:
        return lambda **options: DiskStore(tmp_path, **KINDS[request.param], **options)


def file_of(store: DiskStore) -> DirectFile:
    file: Any = store._executor.backend
    return next(iter(file.files)).file  # type: ignore[no-any-return]


def files_of(store: DiskStore) -> list[ArrayFile]:
    backend: Any = store._executor.backend
    return list(backend.files)


def reopened(store: DiskStore) -> int:
    """A descriptor of the unnamed spill file without O_DIRECT."""
    return os.open(f"/proc/self/fd/{file_of(store).fileno()}", os.O_RDWR)


@posix_only
def test_nothing_is_to_be_seen_and_nothing_left(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        handle = store.put(np.ones(10_000))
        handle.wait_captured()
        assert not list(tmp_path.iterdir())
        status = os.fstat(file_of(store).fileno())
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert status.st_nlink == 0
        descriptor = file_of(store).fileno()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


@posix_only
def test_without_unnamed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    with DiskStore(tmp_path) as store:
        assert not list(tmp_path.iterdir())
        array = sample("f4", (5000,))
        handle = store.put(array)
        handle.wait_captured()
        assert_same(handle.get(), array)
        assert stat.S_IMODE(os.fstat(file_of(store).fileno()).st_mode) == 0o600


def test_where_an_open_file_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)

    def refuse(path: Path) -> None:
        raise PermissionError("in use")

    monkeypatch.setattr(Path, "unlink", refuse)
    with DiskStore(tmp_path) as store:
        array = sample("f4", (5000,))
        handle = store.put(array)
        handle.wait_captured()
        assert_same(handle.get(), array)
        assert len(list(tmp_path.glob("offgrad-spill-*/arrays"))) == 1
        with DiskStore(tmp_path):
            assert len(list(tmp_path.iterdir())) == 2
    assert not list(tmp_path.iterdir())


def test_without_positional_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pwritev", raising=False)
    monkeypatch.delattr(os, "preadv", raising=False)
    with DiskStore(tmp_path, direct=False) as store:
        arrays = [sample("f4", (5000 + number,), number) for number in range(10)]
        handles = [store.put(array) for array in arrays]
        for handle, array in zip(handles, arrays, strict=True):
            handle.wait_captured()
            handle.prefetch()
            assert_same(handle.get(), array)


def test_pooled_arrays_take_one_call_and_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = BufferPool()
    with DiskStore(tmp_path, allocate=pool.empty) as store:
        calls: list[int] = []
        real = DirectFile._write_some

        def count(file: DirectFile, data: Any, offset: int) -> int:
            calls.append(data.nbytes)
            return real(file, data, offset)

        monkeypatch.setattr(DirectFile, "_write_some", count)
        array = pool.empty((2 << 20) + 1)
        array[:] = 3
        handle = store.put(array)
        handle.wait_captured()
        assert calls == [(8 << 20) + 4096]
        backend: Any = store._executor.backend
        assert_same(handle.get(), array)
        assert next(iter(backend.files))._buffers.cached_nbytes == 0  # no bounce buffer


def test_short_writes_and_reads(
    tmp_path: Path, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [sample("u1", (50_000,)), sample("f4", (1000, 11)).T]
    with DiskStore(tmp_path, direct=direct, pack_below_nbytes=0) as store:
        write, read = DirectFile._write_some, DirectFile._read_some
        monkeypatch.setattr(DirectFile, "_write_some", lambda f, d, o: write(f, d[:8192], o))
        monkeypatch.setattr(DirectFile, "_read_some", lambda f, d, o: read(f, d[:12288], o))
        for array in arrays:
            handle = store.put(array)
            handle.wait_captured()
            assert_same(handle.get(), array)


def test_freed_space_is_used_again(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        for number in range(50):
            handle = store.put(np.full(10_000, number))
            handle.wait_captured()
            assert (handle.get() == number).all()
            del handle
        assert os.fstat(file_of(store).fileno()).st_size <= 2 * 81920


def test_quota_bounds_the_file(tmp_path: Path) -> None:
    with DiskStore(tmp_path, quota=10 * 4096) as store:
        handles = [store.put(np.full(4096, number, np.uint8)) for number in range(9)]
        with pytest.raises(QuotaExceededError, match=r"DiskStore in .*, array 9 .*8192 bytes more"):
            store.put(np.zeros(4097, np.uint8))
        handles.append(store.put(np.full(4096, 9, np.uint8)))
        assert [handle.get()[0] for handle in handles] == list(range(10))
        del handles[3]
        assert store.put(np.full(5, 7, np.uint8)).get().sum() == 35


@posix_only
def test_disk_full(tmp_path: Path, direct: bool) -> None:
    import resource

    with DiskStore(tmp_path, direct=direct, pack_below_nbytes=0) as store:
        first = store.put(sample("u1", (8192,)))
        first.wait_captured()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 * 4096 + 100, limits[1]))
        try:
            second = store.put(sample("u1", (50_000,)))
            second.wait_captured()
            with pytest.raises(StoreFullError, match=r"array 1 .*File too large.*ulimit -f"):
                second.check()
            assert_same(second.get(), sample("u1", (50_000,)))
            assert_same(first.get(), sample("u1", (8192,)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        third = store.put(sample("u1", (50_000,)))
        third.wait_captured()
        assert_same(third.get(), sample("u1", (50_000,)))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_a_flipped_byte(tmp_path: Path, direct: bool) -> None:
    with DiskStore(tmp_path, direct=direct, pack_below_nbytes=0) as store:
        handles = [store.put(sample("f4", (3000,), number)) for number in range(3)]
        for handle in handles:
            handle.wait_captured()
        descriptor = reopened(store)
        _, start, _ = handles[1]._entry.place
        byte = os.pread(descriptor, 1, start + 5000)[0]
        os.pwrite(descriptor, bytes([byte ^ 1]), start + 5000)
        os.close(descriptor)
        for _ in range(2):
            with pytest.raises(
                CorruptionError, match=r"DiskStore in .*array 1 .*not those written"
            ):
                handles[1].get()
            with pytest.raises(CorruptionError):
                handles[1].get(np.empty((6000,), "f4")[::2])
        handles[1].prefetch()
        with pytest.raises(CorruptionError):
            handles[1].get()
        for number in (0, 2):
            assert_same(handles[number].get(), sample("f4", (3000,), number))


def test_a_truncated_file(tmp_path: Path, direct: bool) -> None:
    with DiskStore(tmp_path, direct=direct, pack_below_nbytes=0) as store:
        handles = [store.put(sample("f4", (3000,), number)) for number in range(2)]
        for handle in handles:
            handle.wait_captured()
        os.ftruncate(file_of(store).fileno(), 12288 + 4096)
        for out in (None, BufferPool().empty(3000)):
            with pytest.raises(MissingDataError, match=r"array 1 .*cut short"):
                handles[1].get(out)
        assert_same(handles[0].get(), sample("f4", (3000,), 0))


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"opening the spill file.*file.*Choose a place"):
            DiskStore(wrong)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize("directory", ["/proc", "/proc/x"])
def test_a_directory_that_cannot_be_made(directory: str) -> None:
    with pytest.raises(StoreError, match=r"opening .*/proc.*Choose a place") as caught:
        DiskStore(directory)
    assert not isinstance(caught.value, MissingDataError)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@posix_only
def test_the_directory_may_be_removed(tmp_path: Path) -> None:
    folder = tmp_path / "spills"
    with DiskStore(folder) as store:
        folder.rmdir()
        array = sample("f4", (3000,))
        handle = store.put(array)
        handle.wait_captured()
        assert_same(handle.get(), array)


@posix_only
def test_out_of_file_descriptors(tmp_path: Path) -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"Too many open files.*ulimit -n"):
            DiskStore(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_no_descriptor_is_leaked(tmp_path: Path) -> None:
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        store = DiskStore(tmp_path)
        store.put(np.ones(100)).get()
        if number % 2:
            store.close()
        del store
    eventually(lambda: len(os.listdir("/proc/self/fd")) == before)


@posix_only
def test_kill_leaves_nothing(tmp_path: Path, run_python: Any) -> None:
    ran = run_python(
        """
        import os, signal, sys
        import numpy as np
        from offgrad_storage import DiskStore
        store = DiskStore(sys.argv[1])
        handles = [store.put(np.ones(1 << 20)) for _ in range(10)]
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert not list(tmp_path.iterdir())


def test_several_directories_share_the_arrays(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    arrays = [sample("f4", (300_000 + number,), number) for number in range(12)]
    with DiskStore(folders) as store:
        assert store.directories == folders
        handles = [store.put(each) for each in arrays]
        for handle in handles:
            handle.wait_captured()
        places: list[Any] = [handle._entry.place for handle in handles]
        assert [sum(place[0] is file for place in places) for file in files_of(store)] == [4] * 3
        for handle, array in zip(handles, arrays, strict=True):
            assert_same(handle.get(), array)
        # A file gets back as much as was freed in it.
        lost = places[0][0]
        handles[:] = [each for each in handles if each._entry.place[0] is not lost]
        del handle
        eventually(lambda: store.stats().live_handles == 8)
        more = [store.put(each) for each in arrays[:3]]
        assert all(handle._entry.place[0] is lost for handle in more)
    assert all(not list(folder.iterdir()) for folder in folders)


def test_a_quota_is_for_all_directories_together(tmp_path: Path) -> None:
    with DiskStore([tmp_path / "a", tmp_path / "b"], quota=10 << 20, pack_below_nbytes=0) as store:
        handles = [store.put(sample("u1", (1 << 20,))) for _ in range(10)]
        with pytest.raises(QuotaExceededError, match="quota of 10485760"):
            store.put(sample("u1", (4096,)))
        del handles


def test_directories_must_exist_and_be_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="directory must not be empty"):
        DiskStore([])
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="opening the spill file"):
        DiskStore([tmp_path, tmp_path / "file"])
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@posix_only
def test_a_lack_of_space_shows_before_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstatvfs

    class Full:
        f_bavail, f_frsize = 300, 4096

    folders = [tmp_path / "full", tmp_path / "empty"]
    array = sample("u1", (2 << 20,))
    with DiskStore(folders) as store:
        full, _ = files_of(store)

        def fstatvfs(descriptor: int) -> Any:
            return Full() if descriptor == full.file.fileno() else real(descriptor)

        monkeypatch.setattr(os, "fstatvfs", fstatvfs)
        handles = [store.put(array) for _ in range(3)]  # into the other one
        for handle in handles:
            assert_same(handle.get(), array)
    with DiskStore(tmp_path) as store:
        monkeypatch.setattr(os, "fstatvfs", lambda descriptor: Full())
        with pytest.raises(StoreFullError, match=r"array 0 .*\d+ bytes too few.*Free space"):
            store.put(array)
        small = store.put(array[:1000])
        assert_same(small.get(), array[:1000])
        monkeypatch.undo()
        assert_same(store.put(array).get(), array)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="nothing to drop the cache with")
def test_pages_in_the_page_cache_are_dropped(tmp_path: Path) -> None:
    with DiskStore(tmp_path, direct=False) as store:
        handles = [store.put(sample("u1", (16 << 20,), number)) for number in range(8)]
        for handle in handles:
            handle.wait_captured()
            handle.get()
        assert cached_nbytes(file_of(store)) < 80 << 20  # of 128 MiB, written and read
        del handle, handles
    with DiskStore(tmp_path) as store:
        if not file_of(store).direct:
            pytest.skip("no O_DIRECT here")
        handle = store.put(sample("u1", (16 << 20,)))
        handle.wait_captured()
        handle.get()
        assert cached_nbytes(file_of(store)) < 1 << 20


def cached_nbytes(file: DirectFile) -> int:
    """Bytes of the file that are in the page cache."""
    size = os.fstat(file.fileno()).st_size
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR)
    try:
        with mmap.mmap(descriptor, size) as mapping:
            begin = ctypes.c_char.from_buffer(mapping)
            pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            address = ctypes.c_void_p(ctypes.addressof(begin))
            assert libc.mincore(address, ctypes.c_size_t(size), pages) == 0
            del begin
            return sum(page & 1 for page in pages) * mmap.PAGESIZE
    finally:
        os.close(descriptor)
