"""Neighbours that are written and read in one call: fewer calls, and the same arrays."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from offgrad_storage import Handle, ZarrStore
from offgrad_storage.testing import assert_same

from tests.storage.faults import linux_only
from tests.storage.gate import in_thread
from tests.storage.runs import (
    KINDS,
    MIB,
    Calls,
    assert_readable,
    held,
    make,
    pooled,
    prefetch_run,
    put_run,
    until,
)

pytestmark = linux_only

Array = NDArray[Any]


# ---- fewer system calls


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_go_in_few_calls_and_come_back_bit_for_bit(
    kind: str, order: str, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path) as store:
        stored = put_run(calls, store)
        assert [len(each) for each in calls.of("write")] == [1, 11]
        stored = stored[:: 1 if order == "forward" else -1]
        prefetch_run(calls, stored)
        until(lambda: sum(map(len, calls.of("read"))) >= 12)
        assert_readable(stored)
        assert sum(map(len, calls.of("read"))) == 12, "something was read twice or not ahead"
        assert len(calls.of("read")) <= 3
        assert store.stats().prefetch_hits == store.stats().gets == 12
        assert store.stats().written_nbytes == store.stats().read_nbytes == 12 * MIB
        assert store.stats().inflight_nbytes == 0


@pytest.mark.parametrize("kind", ["disk", "disk-buffered"])
def test_no_call_is_of_more_than_a_few_dozen_arrays(
    kind: str, tmp_path: Path, calls: Calls
) -> None:
    with make(kind, tmp_path, pack_below_nbytes=0) as store:
        stored = put_run(calls, store, count=1500, nbytes=4096)  # more than IOV_MAX
        assert sum(map(len, calls.of("write"))) >= 1500
        assert 10 < max(map(len, calls.of("write"))) <= 64
        prefetch_run(calls, stored)
        assert_readable(stored)
        assert 10 < max(map(len, calls.of("read"))) <= 64


@pytest.mark.parametrize("inflight", [0, 4096, 256 << 10, 4 * MIB])
@pytest.mark.parametrize("kind", ["disk", "disk-buffered"])
def test_a_run_is_a_part_of_the_bytes_in_flight(
    kind: str, inflight: int, tmp_path: Path, calls: Calls
) -> None:
    size = 64 << 10
    with make(kind, tmp_path, pack_below_nbytes=0, inflight_nbytes=inflight) as store:
        arrays = [pooled(size, seed) for seed in range(100)]
        stored = [(store.put(array), array) for array in arrays]
        store.flush()
        for handle, _ in stored:
            handle.prefetch()
        assert_readable(stored)
        for kinds in ("write", "read"):
            assert max(map(sum, calls.of(kinds))) <= max(size, inflight // 4)


def test_a_kept_zarr_folder_written_in_runs_is_read_by_zarr(tmp_path: Path, calls: Calls) -> None:
    with make("zarr", tmp_path, keep=True) as store:
        assert isinstance(store, ZarrStore)
        stored = held(calls, store, [pooled(MIB, seed) for seed in range(8)])
        closing, results = in_thread(store.close)
        calls.open.set()
        closing.join()
        assert results == [None]
        assert max(map(len, calls.of("write"))) > 1
        group = zarr.open_group(store.path, mode="r")
        (values,) = [array for _, array in group.arrays()]
        for slot, (_, array) in enumerate(stored):
            assert_same(np.asarray(values[slot]), array)


# ---- arrays of all sorts


def sorts(seed: int) -> list[Array]:
    """Pooled and not, of whole pages and not, empty, Fortran, small: neighbours of each other."""
    noise = np.random.default_rng(seed).integers(0, 1 << 16, (600, 512))
    arrays: list[Array] = [
        pooled(MIB, seed),
        pooled(MIB + 5, seed),
        pooled(2 * MIB, seed),
        np.empty((0, 3), np.float32),
        np.asfortranarray(noise),
        noise[::-1],
        np.asarray(3.5),
        pooled(1000, seed),
        np.zeros((600, 512)),
        pooled(MIB, seed + 1).view(">f4"),
        noise < 30_000,
        pooled(MIB, seed + 2).reshape(2, -1)[:, 7:],
    ]
    random.Random(seed).shuffle(arrays)
    return arrays


@pytest.mark.parametrize(
    "options", [{}, {"pack_below_nbytes": 0}, {"codec": "zstd"}, {"threads": 3}]
)
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_of_all_sorts_come_back_bit_for_bit(
    kind: str, options: dict[str, Any], tmp_path: Path, calls: Calls
) -> None:
    if kind == "zarr" and "pack_below_nbytes" in options:
        options = {"codec": "auto"}
    with make(kind, tmp_path, **options) as store:
        for seed in (0, 1):
            calls.open.clear()
            stored = [(store.put(array), array) for array in sorts(seed)]
            calls.open.set()
            store.flush()
            for ordered in (stored, stored[::-1]):
                calls.open.clear()
                for handle, _ in ordered:
                    handle.prefetch()
                calls.open.set()
                assert_readable(ordered)
        targets = [np.empty(array.shape, array.dtype) for _, array in stored]  # not pooled
        for (handle, _), target in zip(stored, targets, strict=True):
            handle.prefetch(target)
        for (handle, array), target in zip(stored, targets, strict=True):
            assert handle.get() is target
            assert_same(target, array)


@pytest.mark.parametrize("kind", KINDS)
def test_random_puts_drops_and_prefetches_of_neighbours(kind: str, tmp_path: Path) -> None:
    choose = random.Random(3)
    size, options = (MIB, {}) if kind == "zarr" else (64 << 10, {"pack_below_nbytes": 0})
    kept: dict[int, tuple[Handle, Array]] = {}
    with make(kind, tmp_path, threads=3, inflight_nbytes=40 * size, **options) as store:
        for number in range(200):
            array = pooled(size * choose.choice([1, 1, 1, 2]), number)
            kept[number] = store.put(array), array
            for victim in choose.sample(list(kept), min(len(kept), choose.choice([0, 0, 1, 2]))):
                del kept[victim]
            if number % 10 == 9:
                some = list(kept.values())[:: choose.choice([-1, 1, 2])]
                for handle, _ in some:
                    handle.prefetch()
                if choose.random() < 0.3:
                    store.cancel_prefetch(some[0][0])
                assert_readable(some[: choose.randrange(1, 20)])
        assert_readable(list(kept.values()))
        store.flush()
        stats = store.stats()
        expected = sum(array.nbytes for _, array in kept.values())
        assert stats.stored_nbytes == stats.logical_nbytes == expected
        assert stats.live_handles == len(kept)
