"""Encoded bytes of an array, as opposed to its stored bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from offgrad_storage import (
    AbstractArrayStore,
    DiskStore,
    PoolStore,
    TieredStore,
    ZarrStore,
    codec,
)
from offgrad_storage.zarr.codec import ZarrCodec
from zarr.storage import MemoryStore

from tests.storage.gate import Setup

MASK = np.eye(300, 301, dtype=bool)
PLAIN = MASK.nbytes


def encoded_by(chosen: object) -> int:
    """Return the bytes that a codec makes of MASK."""
    data = chosen.encode(MASK)  # type: ignore[attr-defined]
    assert data.nbytes < PLAIN / 5
    return int(data.nbytes)


PACKED = encoded_by(codec("packbits"))
CHUNK = encoded_by(ZarrCodec("auto"))


def pages(nbytes: int) -> int:
    """Return `nbytes` rounded up to pages."""
    return -(-nbytes // 4096) * 4096


def packing_disk(path: Path) -> DiskStore:
    return DiskStore(path, codec="packbits", pack_below_nbytes=0)


STORES: dict[str, tuple[Callable[[Path], AbstractArrayStore], int, int]] = {
    "pool": (lambda _: PoolStore(codec="packbits"), PACKED, PACKED),
    "disk": (packing_disk, PACKED, pages(PACKED)),
    "packed": (lambda path: DiskStore(path, codec="packbits"), PACKED, PACKED),
    "plain disk": (lambda path: DiskStore(path, pack_below_nbytes=0), PLAIN, pages(PLAIN)),
    "zarr": (lambda path: ZarrStore(path), CHUNK, CHUNK),
    "tier below": (lambda path: TieredStore(0, packing_disk(path)), PACKED, pages(PACKED)),
    "tier of RAM": (lambda path: TieredStore(1 << 20, packing_disk(path)), PLAIN, PLAIN),
}


@pytest.mark.parametrize("kind", STORES)
def test_encoded_and_stored_bytes_by_store(kind: str, tmp_path: Path) -> None:
    make, encoded, stored = STORES[kind]
    with make(tmp_path) as store:
        handle = store.put(MASK)
        store.flush()
        assert (handle.encoded_nbytes, handle.stored_nbytes) == (encoded, stored)
        assert (handle.get() == MASK).all()


def test_an_incompressible_array_is_not_encoded(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, 50_000, np.uint8)
    with DiskStore(tmp_path, codec="zstd", pack_below_nbytes=0) as store:
        handle = store.put(array)
        store.flush()
        assert (handle.encoded_nbytes, handle.stored_nbytes) == (50_000, pages(50_000))


def test_zarr_elsewhere_counts_chunks_without_metadata() -> None:
    where = MemoryStore()
    with ZarrStore(where, codec="zstd") as store:
        handle = store.put(np.zeros((300, 301), np.float32))
        assert handle.encoded_nbytes <= handle.nbytes
        store.flush()
        chunks = {k: v for k, v in where._store_dict.items() if "/00000000/c/" in k}
        assert handle.encoded_nbytes == sum(map(len, chunks.values())) > 0
        assert handle.encoded_nbytes < handle.stored_nbytes
        assert not handle.get().any()


def test_a_pending_array_has_its_own_bytes_until_it_is_encoded(setup: Setup) -> None:
    handle = setup.put(1, nbytes=100)
    assert (handle.encoded_nbytes, handle.stored_nbytes) == (100, 100)
    setup.backend.open.set()
    handle.wait_captured()
    assert (handle.encoded_nbytes, handle.stored_nbytes) == (50, 50)


def test_an_evicted_array_has_the_encoded_bytes_of_the_tier_below(tmp_path: Path) -> None:
    with TieredStore(PLAIN, packing_disk(tmp_path)) as store:
        handle = store.put(MASK)
        assert handle.encoded_nbytes == PLAIN
        other = store.put(np.ones_like(MASK))
        store.flush()
        assert {handle.encoded_nbytes, other.encoded_nbytes} == {PLAIN, PACKED}
