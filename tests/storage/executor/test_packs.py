"""Packs of small arrays: when they are written and read."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    Backend,
    BackendStore,
    CorruptionError,
    DiskStore,
    Entry,
    Handle,
    Pack,
    QuotaExceededError,
    StoreError,
    StoreFullError,
)
from offgrad_storage.executor import open_packs
from offgrad_storage.testing import assert_same, eventually, sample

Array = NDArray[Any]
KIB = 1024


class Counting(Backend):
    """Keeps bytes in a dict, and logs reads."""

    packs_below = 100 * KIB

    def __init__(self, quota: int | None = None, keeps: bool = False) -> None:
        super().__init__("CountingStore", quota)
        self.persistent = keeps
        self.kept: dict[Entry, bytes] = {}
        self.read_nbytes: list[int] = []
        self.failure: Exception | None = None
        self.may_read = threading.Event()
        self.may_read.set()

    def prepare(self, entry: Entry) -> None:
        entry.kind = entry.dtype.str

    def write(self, entry: Entry, array: Array) -> int:
        if self.failure is not None:
            raise self.failure
        self.kept[entry] = array.tobytes()
        return array.nbytes

    def read(self, entry: Entry, out: Array) -> None:
        self.may_read.wait()
        self.read_nbytes.append(out.nbytes)
        out[...] = np.frombuffer(self.kept[entry], out.dtype).reshape(out.shape)

    def free(self, entry: Entry) -> None:
        self.kept.pop(entry, None)

    def close(self) -> None:
        pass


@pytest.fixture
def backend() -> Counting:
    return Counting()


@pytest.fixture
def store(backend: Counting) -> Iterator[BackendStore]:
    with BackendStore(backend, inflight_nbytes=8 << 20) as store:
        yield store


def arrays(count: int, nbytes: int = 8 * KIB) -> list[Array]:
    return [sample(np.uint8, (nbytes,), number) for number in range(count)]


def written(store: BackendStore, backend: Counting, packs: int) -> None:
    eventually(lambda: len(backend.kept) == packs and not store.stats().inflight_nbytes)


def test_small_arrays_are_written_together(store: BackendStore, backend: Counting) -> None:
    expected = arrays(225)
    handles = [store.put(each) for each in expected]
    assert all(handle.captured for handle in handles)
    # The next pack is twice as large; a pack that is not full is not written yet.
    written(store, backend, 3)
    assert [len(data) // KIB for data in backend.kept.values()] == [256, 512, 1024]
    for handle, array in zip(reversed(handles), reversed(expected), strict=True):
        assert_same(handle.get(), array)
    assert backend.read_nbytes == [1024 * KIB, 512 * KIB, 256 * KIB]


def test_sources_may_change_at_once(store: BackendStore) -> None:
    array = sample(np.float32, (1000,))
    expected = array.copy()
    handle = store.put(array)
    array[:] = 0
    assert_same(handle.get(), expected)


def test_large_arrays_go_alone(store: BackendStore, backend: Counting) -> None:
    handle = store.put(sample(np.uint8, (100 * KIB,)))
    handle.wait_captured()
    assert [len(data) for data in backend.kept.values()] == [100 * KIB]


def test_each_kind_has_its_packs(store: BackendStore, backend: Counting) -> None:
    handles = [store.put(np.full(20_000, n % 2, "f4" if n % 2 else "i4")) for n in range(8)]
    written(store, backend, 2)
    for data in backend.kept.values():
        values = np.frombuffer(data, "i4")
        assert len({*values[:20_000].tolist()}) == 1
        assert values[0] == values[20_000]
    del handles


def test_a_pack_is_freed_when_its_last_array_dies(store: BackendStore, backend: Counting) -> None:
    handles = [store.put(each) for each in arrays(33)]
    written(store, backend, 1)
    last = handles[3]
    del handles
    assert store.stats().live_handles == 1
    assert len(backend.kept) == 1
    assert_same(last.get(), arrays(4)[3])
    del last
    eventually(lambda: not backend.kept)
    assert store.stats().stored_nbytes == 0


def test_a_pack_whose_arrays_are_all_dead_is_not_written(
    store: BackendStore, backend: Counting
) -> None:
    for _ in range(100):
        store.put(arrays(1)[0])
    assert store.stats().puts == 100
    assert not backend.kept
    assert store.stats().inflight_nbytes == 0


def test_prefetch_reads_a_pack_once(store: BackendStore, backend: Counting) -> None:
    expected = arrays(33)
    handles = [store.put(each) for each in expected]
    written(store, backend, 1)
    for handle in handles[:32]:
        handle.prefetch(np.empty(8 * KIB, np.uint8))
    eventually(lambda: backend.read_nbytes)
    for handle, array in zip(handles, expected, strict=True):
        assert_same(handle.get(), array)
    assert len(backend.read_nbytes) == 1


def test_a_prefetched_pack_stays_until_its_gets(store: BackendStore, backend: Counting) -> None:
    expected = arrays(3600)
    handles = [store.put(each) for each in expected]
    written(store, backend, 10)
    for handle in handles:
        handle.prefetch()
    eventually(lambda: len(backend.read_nbytes) == 10)
    for handle, array in zip(handles, expected, strict=True):
        assert_same(handle.get(), array)
    assert len(backend.read_nbytes) == 10
    # Packs without prefetches are cached after reading, up to a bound: these are 27 MiB.
    for _ in range(2):
        for handle in handles[::50]:
            handle.get()
    assert len(backend.read_nbytes) > 20
    handles[0].prefetch()
    store.cancel_prefetch(handles[0])
    assert_same(handles[0].get(), expected[0])


def test_two_threads_that_get_from_a_pack_read_it_once(
    store: BackendStore, backend: Counting
) -> None:
    expected = arrays(33)
    handles = [store.put(each) for each in expected]
    written(store, backend, 1)
    backend.may_read.clear()
    found: list[Array] = []
    threads = [threading.Thread(target=lambda h=h: found.append(h.get())) for h in handles[:5]]
    for thread in threads:
        thread.start()
    backend.may_read.set()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    assert len(backend.read_nbytes) == 1


def test_a_pack_that_cannot_be_written_stays_and_the_next_put_raises(backend: Counting) -> None:
    store = BackendStore(backend)
    backend.failure = OSError(28, "No space left on device")
    handles = [store.put(each) for each in arrays(33)]
    eventually(lambda: not store.stats().inflight_nbytes)
    with pytest.raises(StoreFullError, match=r"CountingStore, array 33 .*No space"):
        store.put(np.zeros(3))
    handles.append(store.put(np.zeros(3)))
    for handle, array in zip(handles, [*arrays(33), np.zeros(3)], strict=True):
        handle.check()
        handle.prefetch()
        assert_same(handle.get(), array)
    assert backend.read_nbytes == []
    store.close()
    del handle, handles


def test_a_failed_pack_is_freed_with_its_arrays(backend: Counting) -> None:
    """Its memory and its error: nothing was lost."""
    store = BackendStore(backend)
    backend.failure = OSError(28, "No space left on device")
    handles = [store.put(each) for each in arrays(33)]
    eventually(lambda: not store.stats().inflight_nbytes)
    (pack,) = store._executor._table.errors.failed_writes
    assert pack.source is not None
    handles.clear()
    eventually(lambda: pack.source is None)
    assert store.put(np.ones(3)).get().sum() == 3
    assert not store._executor._table.errors.failed_writes
    store.close()


def test_failed_packs_let_go_at_close(backend: Counting) -> None:
    store = BackendStore(backend)
    backend.failure = OSError(28, "No space left on device")
    handles = [store.put(each) for each in arrays(33)]
    eventually(lambda: not store.stats().inflight_nbytes)
    (pack,) = store._executor._table.errors.failed_writes
    assert isinstance(pack, Pack)
    with pytest.raises(StoreFullError, match="pack 0 of small arrays"):
        store.close()
    assert pack.source is None
    assert pack.loaded is None
    del handles


def test_an_unreported_error_of_a_write_comes_from_close(backend: Counting) -> None:
    store = BackendStore(backend)
    backend.failure = OSError(28, "No space left on device")
    handles = [store.put(each) for each in arrays(33)]
    eventually(lambda: not store.stats().inflight_nbytes)
    with pytest.raises(StoreFullError, match="pack 0 of small arrays"):
        store.close()
    del handles


def test_a_damaged_array_leaves_its_neighbours(store: BackendStore, backend: Counting) -> None:
    expected = arrays(33)
    handles = [store.put(each) for each in expected]
    written(store, backend, 1)
    ((entry, data),) = backend.kept.items()
    damaged = bytearray(data)
    damaged[3 * 8 * KIB + 5] ^= 1
    backend.kept[entry] = bytes(damaged)
    for number, handle in enumerate(handles):
        if number == 3:
            with pytest.raises(CorruptionError, match="array 3 "):
                handle.get()
        else:
            assert_same(handle.get(), expected[number])


def test_a_quota_counts_used_bytes() -> None:
    with BackendStore(Counting(quota=300 * KIB)) as store:
        handles = [store.put(each) for each in arrays(37)]
        with pytest.raises(QuotaExceededError, match=r"array 37 .*quota of 307200 bytes"):
            store.put(arrays(1)[0])
        large = sample(np.uint8, (150 * KIB,))
        with pytest.raises(QuotaExceededError, match="array 38 "):
            store.put(large)
        for handle, array in zip(handles, arrays(37), strict=True):
            assert_same(handle.get(), array)
        del handle, handles
        assert_same(store.put(large).get(), large)


@pytest.mark.parametrize("ending", ["close", "death"])
def test_a_persistent_store_writes_everything_at_the_end(ending: str) -> None:
    backend = Counting(keeps=True)
    store = BackendStore(backend)
    for each in arrays(40):
        store.put(each)
    if ending == "close":
        store.close()
    del store
    eventually(lambda: len(backend.kept) == 2)
    assert sum(map(len, backend.kept.values())) == 320 * KIB


def test_encoded_arrays_are_packed_too(backend: Counting) -> None:
    # A mask of 128 KiB is large, but its bits are not.
    masks = [sample(bool, (128 * KIB,), number) for number in range(20)]
    with BackendStore(backend, codec="packbits") as store:
        handles = [store.put(each) for each in masks]
        for handle in handles:
            handle.wait_captured()
        stats = store.stats()
        assert stats.stored_nbytes < stats.logical_nbytes / 7
        assert sum(handle.stored_nbytes for handle in handles) == stats.stored_nbytes
        for handle, mask in zip(handles, masks, strict=True):
            handle.prefetch()
            assert_same(handle.get(), mask)
        del handle, handles
        eventually(lambda: store.stats().stored_nbytes == 0)
        eventually(lambda: not backend.kept)


def test_arrays_that_a_codec_does_not_encode_are_packed_too(backend: Counting) -> None:
    expected = arrays(50)  # random bytes: lz4 makes nothing of them
    with BackendStore(backend, codec="lz4") as store:
        handles = [store.put(each) for each in expected]
        store.flush()
        assert [len(data) // KIB for data in backend.kept.values()] == [256, 144]
        for handle, array in zip(handles, expected, strict=True):
            assert_same(handle.get(), array)


def test_flush_lets_packs_fill(backend: Counting) -> None:
    masks = [sample(bool, (64 * KIB,), number) for number in range(64)]
    with BackendStore(backend, codec="packbits", threads=1) as store:
        handles = [store.put(mask) for mask in masks]
        store.flush()
        assert [len(data) // KIB for data in backend.kept.values()] == [256, 256]
        del handles


def test_a_lossy_codec_gives_the_same_before_and_after_the_write() -> None:
    class Slow(Counting):
        packs_below = 0

        def write(self, entry: Entry, array: Array) -> int:
            gate.wait()
            return super().write(entry, array)

    gate = threading.Event()
    array = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    with BackendStore(Slow(), codec="int8") as store:
        handle: Handle = store.put(array)
        before = handle.get()
        gate.set()
        handle.wait_captured()
        assert_same(handle.get(), before)
        assert 0 < np.abs(before - array).max() < np.abs(array).max() / 100


def test_a_disk_store_finds_its_small_arrays_again(tmp_path: Any) -> None:
    expected = [sample(np.uint8, (size,), size) for size in range(0, 60_000, 1777)]
    with DiskStore(tmp_path) as store:
        handles = [store.put(each) for _ in range(3) for each in expected]
        del handles[: len(expected)]
        handles += [store.put(each) for each in expected]
        for handle, array in zip(handles, expected * 3, strict=True):
            assert_same(handle.get(), array)
        del handle, handles
        eventually(lambda: store.stats().stored_nbytes == 0)
    assert not os.listdir(tmp_path)


def test_a_prefetch_from_before_the_packing_dies_with_its_handle() -> None:
    masks = [sample(bool, (64 * KIB,), number) for number in range(300)]
    with BackendStore(Counting(), codec="packbits", threads=1) as store:
        for mask in masks:
            handle = store.put(mask)
            handle.prefetch()  # the write is pending, as a rule
            del handle
        store.flush()
        kept = [store.put(mask) for mask in masks[:20]]
        for handle, mask in zip(kept, masks, strict=False):
            assert_same(handle.get(), mask)
        del handle, kept
        eventually(lambda: store.stats().live_handles == 0)


def test_flush_leaves_nothing_in_an_open_pack(backend: Counting) -> None:
    masks = [sample(bool, (64 * KIB,), number) for number in range(30)]
    with BackendStore(backend, codec="packbits") as store:
        handles = [store.put(mask) for mask in masks]
        store.flush()
        assert sum(map(len, backend.kept.values())) >= 30 * 8 * KIB
        del handles


def test_an_empty_pack_holds_no_room(backend: Counting) -> None:
    with BackendStore(backend) as store:
        for dtype in ("i4", "f4", "u1", "i8"):
            handle = store.put(np.zeros(1000, dtype))
        assert store.stats().live_handles == 1
        assert backend.used_nbytes == 256 * KIB
        del handle
        eventually(lambda: not backend.used_nbytes)


def test_open_packs_are_within_the_bytes_in_flight() -> None:
    backend = Counting()
    with BackendStore(backend, inflight_nbytes=KIB * KIB) as store:
        handles = [store.put(np.zeros(5000, f"V{size}")) for size in range(1, 13)]
        filling = store._executor._packs.open.by_kind.values()
        assert sum(pack.nbytes for pack in filling) <= KIB * KIB
        eventually(lambda: len(backend.kept) >= 8)
        for handle in handles:
            assert not handle.get().tobytes().strip(b"\0")
        del handle, handles


def test_a_prefetch_does_not_swallow_the_error_of_a_write(backend: Counting) -> None:
    store = BackendStore(backend)
    backend.failure = OSError(5, "Input/output error")
    handles = [store.put(each) for each in arrays(33)]
    store.flush()
    handles[0].prefetch()
    handles[1].prefetch()
    store.cancel_prefetch(handles[1])
    with pytest.raises(StoreError, match="Input/output"):
        store.close()
    del handles


def test_a_pack_that_cannot_be_read_is_read_in_parts(backend: Counting) -> None:
    class Patchy(Counting):
        def read(self, entry: Entry, out: Array) -> None:
            raise OSError(5, "Input/output error")

        def read_part(self, pack: Entry, out: Array, offset: int, nbytes: int) -> None:
            if offset == 8 * KIB:
                raise OSError(5, "Input/output error")
            Counting.read(self, pack, out)

    expected = arrays(33)
    with BackendStore(Patchy()) as store:
        handles = [store.put(each) for each in expected]
        store.flush()
        for number, handle in enumerate(handles):
            if number == 1:
                with pytest.raises(StoreError, match=r"array 1 .*Input/output"):
                    handle.get()
            else:
                assert_same(handle.get(), expected[number])
        del handle, handles


def test_an_array_being_copied_when_a_store_closes_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Counting(keeps=True)
    store = BackendStore(backend)
    handles = [store.put(each) for each in arrays(3)]
    copying, go_on = threading.Event(), threading.Event()

    copy_in = open_packs._copy_in

    def copy_slowly(*arguments: Any) -> None:
        copying.set()
        go_on.wait()
        copy_in(*arguments)

    monkeypatch.setattr(open_packs, "_copy_in", copy_slowly)
    last: list[Handle] = []
    thread = threading.Thread(target=lambda: last.append(store.put(arrays(4)[3])))
    thread.start()
    copying.wait()
    closing = threading.Thread(target=store.close)
    closing.start()
    go_on.set()
    thread.join()
    closing.join()
    (data,) = backend.kept.values()
    assert data[: 32 * KIB] == b"".join(each.tobytes() for each in arrays(4))
    del handles
