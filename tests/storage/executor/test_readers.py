"""Several readers of one stored array: each array that a reader gets is its own."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import Codec, DiskStore, Handle
from offgrad_storage.testing import assert_same

from tests.storage.gate import Setup, in_thread

Bytes = NDArray[np.uint8]


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Clearing(Codec):
    """Decodes in two steps, as sparse codecs do: first zeros, then the values."""

    name = "clearing"
    on_zeros: Callable[[], object] = staticmethod(lambda: None)

    def encode(self, array: NDArray[np.generic], seed: int = 0) -> Bytes:
        return np.frombuffer(array.tobytes(), np.uint8)

    def decode(self, data: Bytes, out: NDArray[np.generic]) -> None:
        out.fill(0)
        self.on_zeros()
        out[...] = data.view(out.dtype).reshape(out.shape)


def test_a_get_does_not_copy_from_an_array_that_another_get_fills(tmp_path: Path) -> None:
    """One thread gets into the array of the prefetch, another one into its own array."""
    array = np.arange(1 << 16, dtype=np.float32) + 1
    codec = Clearing()
    with DiskStore(tmp_path, codec=codec, pack_below_nbytes=0) as store:
        handle = store.put(array)
        store.flush()
        for order in range(20):
            first, second = np.empty_like(array), np.empty_like(array)
            handle.prefetch(first)
            outs = [first, second] if order % 2 else [second, first]
            together = threading.Barrier(2)

            def get(out: NDArray[np.float32], together: threading.Barrier = together) -> bool:
                together.wait()
                handle.get(out)
                return bool((out == array).all())

            readers = [in_thread(lambda out=out: get(out)) for out in outs]  # type: ignore[misc]
            for thread, _ in readers:
                thread.join()
            assert [results for _, results in readers] == [[True], [True]]


def test_a_get_into_another_array_leaves_that_of_a_finished_prefetch_alone(
    tmp_path: Path,
) -> None:
    """Whoever passed it to prefetch may be using it again."""
    array = np.arange(1 << 16, dtype=np.float32)
    with DiskStore(tmp_path, pack_below_nbytes=0) as store:
        handle = store.put(array)
        store.flush()
        mine, other = np.empty_like(array), np.empty_like(array)
        handle.prefetch(mine)
        fetch = handle._fetch
        while fetch is not None and not fetch.done:
            pass
        mine[:] = 7
        assert_same(handle.get(other), array)
        assert (mine == 7).all()


def test_gets_of_a_prefetch_under_way_wait_for_it(setup: Setup) -> None:
    handle = setup.put(1)
    setup.backend.permits.release()
    handle.wait_captured()
    first, second = np.empty(100, np.uint8), np.empty(100, np.uint8)
    handle.prefetch(first)
    setup.started("read 0")
    readers = [in_thread(lambda out=out: handle.get(out)) for out in (first, second, first)]  # type: ignore[misc]
    setup.backend.open.set()
    for thread, _ in readers:
        thread.join()
    assert [
        results[0] is out for (_, results), out in zip(readers, (first, second, first), strict=True)
    ]
    assert (first == 1).all()
    assert (second == 1).all()
    setup.store._check()


@pytest.mark.parametrize("nbytes", [1000, 300_000])
def test_readers_prefetches_and_cancels_of_one_array(nbytes: int, tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, nbytes).astype(np.uint8)
    with DiskStore(tmp_path, codec="zstd", pack_below_nbytes=10_000) as store:
        handle = store.put(array)
        store.flush()

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            mine = np.empty_like(array)
            for _ in range(25):
                _use(handle, array, mine, int(random.integers(6)))

        for seed in range(0, 120, 4):
            workers = [in_thread(functools.partial(work, seed + number)) for number in range(4)]
            for thread, _ in workers:
                thread.join()
            assert [results for _, results in workers] == [[None]] * 4
            store.cancel_prefetch(handle)
            store._check()


def _use(handle: Handle, array: Bytes, mine: Bytes, choice: int) -> None:
    if choice == 0:
        handle.prefetch()
    elif choice == 1:
        handle.prefetch(np.empty_like(array))
    elif choice == 2:
        handle.store.cancel_prefetch(handle)
    elif choice == 3:
        found = handle.get()
        assert_same(found, array)
        found[:] = 0  # it belongs to this reader
    else:
        assert handle.get(mine) is mine
        assert_same(mine, array)
