"""System calls that do less than asked, are interrupted, fail, or have no descriptors left."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from offgrad_storage import AbstractArrayStore, StoreError
from offgrad_storage.testing import eventually

from tests.storage.faults import (
    ON_DISK,
    Stored,
    assert_helpful,
    assert_readable,
    assert_works_again,
    isolated,
    limit,
    linux_only,
    make,
    many,
    noise,
    open_files,
    outcome,
    put_each,
    take_all,
    written_places,
)

pytestmark = linux_only

MIB = 1 << 20
SOME = [noise(5000 + 3000 * seed, seed) for seed in range(20)] + [noise(3 * MIB + 1, 21)]


class Calls:
    """Stands between a store and the calls that read and write its files.

    ``fault`` is called at each call: it may raise an OSError, or return the number of bytes for the
    real call (more or fewer than there are; None for all).
    """

    def __init__(self, patch: pytest.MonkeyPatch, directory: Path) -> None:
        self.directory = f"{directory}{os.sep}"
        self.fault: Callable[[str, int], int | None] = lambda kind, nbytes: None
        self.seen = self.hits = 0
        for name in ("write", "pwrite", "writev", "pwritev", "read", "pread", "readv", "preadv"):
            patch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        kind = "write" if "write" in name else "read"

        def call(descriptor: int, data: Any, *rest: Any) -> Any:
            if not self._is_ours(descriptor):
                return real(descriptor, data, *rest)
            self.seen += 1
            if name in ("read", "pread"):  # ``data`` is how many bytes to read
                wanted = self.fault(kind, data)
                return real(descriptor, data if wanted is None else wanted, *rest)
            views = [data] if name in ("write", "pwrite") else list(data)
            views = [memoryview(view).cast("B") for view in views if memoryview(view).nbytes]
            wanted = self.fault(kind, sum(view.nbytes for view in views))
            if wanted is not None:
                self.hits += 1
                wanted = self._whole_pages(descriptor, wanted) if wanted else 0
                if wanted == 0:
                    return 0
                views = [views[0][:wanted]]
            return real(descriptor, views if name.endswith("v") else views[0], *rest)

        return call

    def _is_ours(self, descriptor: int) -> bool:
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}").startswith(self.directory)
        except OSError:
            return False

    @staticmethod
    def _whole_pages(descriptor: int, nbytes: int) -> int:
        """O_DIRECT moves whole pages: so do the kernel's own short reads and writes there."""
        direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        return max(nbytes - nbytes % 4096, 4096) if direct else nbytes

    def fail_once(self, kind: str, number: int, code: int = errno.EIO) -> None:
        """From now on the call ``number`` (from 0) of this kind fails, and no other."""
        seen = 0
        lock = threading.Lock()

        def fault(called: str, nbytes: int) -> int | None:
            nonlocal seen
            if called == kind:
                with lock:
                    seen += 1
                    now = seen - 1 == number
                if now:
                    self.hits += 1
                    raise OSError(code, os.strerror(code))
            return None

        self.fault = fault

    def fail_all(self, kind: str, code: int = errno.EIO) -> None:
        """From now on all calls of this kind fail."""

        def fault(called: str, nbytes: int) -> int | None:
            if called == kind:
                self.hits += 1
                raise OSError(code, os.strerror(code))
            return None

        self.fault = fault

    def need_to_see(self, kind: str) -> None:
        """Skip if the store did not use this call."""
        if not self.seen:
            assert not kind.startswith("disk"), "no call was seen"
            pytest.skip("this store moves its bytes by calls that Python does not see")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch, tmp_path)


def put_some(kind: str, store: AbstractArrayStore) -> Stored:
    stored, refused = put_each(kind, store, SOME)
    assert not refused
    return stored


# ---- less than asked


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("part", ["half", "a few bytes less", "at most 10000"])
def test_short_writes_and_reads(kind: str, part: str, tmp_path: Path, calls: Calls) -> None:
    shorten: dict[str, Callable[[str, int], int]] = {
        "half": lambda _, nbytes: max(nbytes // 2, 1),
        "a few bytes less": lambda _, nbytes: max(nbytes - 7, 1),
        "at most 10000": lambda _, nbytes: min(nbytes, 10_000),
    }
    calls.fault = shorten[part]
    with make(kind, tmp_path) as store:
        stored = put_some(kind, store)
        written_places(store, stored, tmp_path)
        assert_readable(stored)
        for handle, _ in stored:
            handle.prefetch()
        assert_readable(stored)
        calls.need_to_see(kind)
        assert calls.hits


def write_nothing(kind: str, where: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch, Path(where))
        store = make(kind, Path(where))
        before = put_some(kind, store)
        written_places(store, before, Path(where))
        calls.fault = lambda called, _: 0 if called == "write" else None
        during, refused = put_each(kind, store, [*SOME, *many("large", 6 * MIB)])
        results = [outcome(kind, *pair) for pair in during]
        assert calls.hits
        assert refused or any(results), "writes that wrote nothing were taken for done"
        calls.fault = lambda called, nbytes: None
        assert_readable(before)
        assert_works_again(kind, store, MIB)
        store.close()


@pytest.mark.parametrize("kind", ["disk", "disk-buffered"])
def test_a_file_that_takes_no_bytes_is_an_error_and_no_endless_loop(
    kind: str, tmp_path: Path
) -> None:
    isolated(write_nothing, kind, tmp_path, timeout=30)


# ---- input/output errors


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("kind", ON_DISK)
def test_a_write_that_fails_once_fails_its_arrays_and_no_others(
    kind: str, number: int, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        before = put_some(kind, store)
        written_places(store, before, tmp_path)
        calls.need_to_see(kind)
        calls.fail_once("write", number)
        during, refused = put_each(kind, store, [*many("large", 6 * MIB), *many("small", 12 * MIB)])
        assert calls.hits
        assert refused <= 1
        for handle, _ in during:
            handle.check()  # a flush has written it
        assert_readable(before)
        assert_readable(during)
        assert_works_again(kind, store, MIB)


@pytest.mark.parametrize("dropped", [True, False])
@pytest.mark.parametrize("kind", ON_DISK)
def test_an_unreported_error_of_a_failed_write_is_raised_by_close_once(
    kind: str, dropped: bool, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        before = put_some(kind, store)
        written_places(store, before, tmp_path)
        calls.need_to_see(kind)
        calls.fail_all("write")
        during = [(store.put(array), array) for array in many("large", 6 * MIB)[:1]]
        store.flush()
        assert calls.hits
        if dropped:
            before.clear()
            during.clear()
        with pytest.raises(StoreError, match="Input/output error") as caught:
            store.close()
        assert_helpful(caught.value, kind)
        assert caught.value.handle, "names no handle"
        store.close()
        assert not open_files(tmp_path)


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_read_that_fails_once_raises_once(kind: str, tmp_path: Path, calls: Calls) -> None:
    with make(kind, tmp_path) as store:
        stored = put_some(kind, store)
        written_places(store, stored, tmp_path)
        assert_readable(stored)
        calls.need_to_see(kind)
        handle, array = stored[-1]
        for ahead in (False, True):
            calls.fail_once("read", 0)
            if ahead:
                handle.prefetch()
            assert outcome(kind, handle, array) is StoreError
            assert_readable(stored)


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_prefetch_that_failed_and_was_never_got_is_raised_by_close_once(
    kind: str, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        stored = put_some(kind, store)
        written_places(store, stored, tmp_path)
        calls.need_to_see(kind)
        calls.fail_once("read", 0)
        handle, _ = stored[-1]
        handle.prefetch()
        eventually(lambda: calls.hits)
        with pytest.raises(StoreError, match="Input/output error") as caught:
            store.close()
        assert_helpful(caught.value, kind, handle)
        store.close()


# ---- signals


def interrupt_everything(kind: str, where: str) -> None:
    caught = 0

    def count(number: int, frame: object) -> None:
        nonlocal caught
        caught += 1

    signal.signal(signal.SIGUSR1, count)  # system calls are interrupted, not restarted
    stop = threading.Event()
    main = threading.get_ident()

    def pester() -> None:
        while not stop.wait(0.0005):
            for thread in threading.enumerate():
                if thread.ident is not None and thread.ident != threading.get_ident():
                    try:
                        signal.pthread_kill(thread.ident, signal.SIGUSR1)
                    except ProcessLookupError:
                        assert thread.ident != main

    with make(kind, Path(where)) as store:
        pest = threading.Thread(target=pester)
        pest.start()
        try:
            for seed in range(3):
                stored = put_some(kind, store)
                large, _ = put_each(kind, store, [noise(8 * MIB, seed)])
                assert_readable(stored)
                for handle, _ in stored + large:
                    handle.prefetch()
                assert_readable(stored + large)
        finally:
            stop.set()
            pest.join()
    assert caught


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disk", "zarr-blosc"])
def test_signals_interrupt_nothing(kind: str, tmp_path: Path) -> None:
    isolated(interrupt_everything, kind, tmp_path)
    assert not list(tmp_path.iterdir())


# ---- descriptors


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def make_with_few_descriptors(kind: str, where: str) -> None:
    import resource

    with make(kind, Path(where)) as store:  # loads and opens what a process needs once
        assert_works_again(kind, store, 5000)
    used = descriptors()
    made, refusals = 0, []
    handle = array = None
    for spare in range(7):
        with limit(resource.RLIMIT_NOFILE, used - 1 + spare):
            try:
                store = make(kind, Path(where))
            except StoreError as error:
                refusals.append(error)
                continue
            with store:
                during, _ = put_each(kind, store, SOME)
                for handle, array in during:
                    outcome(kind, handle, array)
                made += 1
        del during, handle, store
        assert descriptors() == used, f"{kind} left a descriptor open with {spare} to spare"
    assert made
    assert refusals
    for refusal in refusals:
        assert_helpful(refusal, kind)
        assert "Too many open files" in str(refusal)
        assert "ulimit -n" in refusal.fix
    assert not list(Path(where).iterdir()), "a store that could not be made left something"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "disk",
        "disk-buffered",
        "zarr",
    ],
)
def test_a_store_made_with_few_file_descriptors_left(kind: str, tmp_path: Path) -> None:
    isolated(make_with_few_descriptors, kind, tmp_path)


def run_out_of_descriptors_twice(kind: str, where: str) -> None:
    for when in ("at the first put", "in use"):
        run_out_of_descriptors(kind, when, where)


def run_out_of_descriptors(kind: str, when: str, where: str) -> None:
    import resource

    with make(kind, Path(where)) as store:
        before = put_some(kind, store) if when == "in use" else []
        taken: list[int] = []
        with limit(resource.RLIMIT_NOFILE, descriptors() + 20):
            with pytest.raises(OSError, match="Too many open files"):
                take_all(lambda: os.open("/dev/null", os.O_RDONLY), taken)
            again = [outcome(kind, *pair) for pair in before]
            during, _ = put_each(kind, store, SOME)
            results = [outcome(kind, *pair) for pair in during]
            for descriptor in taken:
                os.close(descriptor)
        assert set(again) | set(results) <= {None, StoreError}
        assert_readable(before)
        assert_readable([pair for pair, bad in zip(during, results, strict=True) if not bad])
        assert_works_again(kind, store, 5000)
        assert_works_again(kind, store, 3 * MIB)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*ON_DISK, "pool"])
def test_out_of_file_descriptors(kind: str, tmp_path: Path) -> None:
    isolated(run_out_of_descriptors_twice, kind, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture(autouse=True)
def _no_descriptor_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert not [os.readlink(path) for path in open_files(tmp_path)], "a file is still open"
