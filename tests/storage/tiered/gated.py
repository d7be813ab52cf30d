"""A TieredStore over a store behind a gate."""

from __future__ import annotations

import numpy as np
from offgrad_storage import (
    AbstractArrayStore,
    BufferPool,
    Handle,
    TieredStore,
)

from tests.storage.gate import Setup


class Gated:
    """A TieredStore over a store behind a gate, and perhaps over others."""

    def __init__(self, nbytes: int, *others: AbstractArrayStore) -> None:
        self.gate = Setup()
        self.pool = BufferPool()
        self.store = TieredStore(
            nbytes, self.gate.store, *others, allocate=self.pool.empty, hold=self.pool.empty
        )

    def fail(self, number: int) -> None:
        self.gate.backend.failures.append(OSError(number, "injected"))


def put(store: AbstractArrayStore, value: int, nbytes: int = 100) -> Handle:
    return store.put(np.full(nbytes, value, np.uint8))


def holds(handle: Handle, value: int) -> bool:
    return bool((handle.get() == value).all())


def places(*handles: Handle) -> list[str]:
    return [handle._entry.tier_state.name for handle in handles]  # type: ignore[attr-defined]


def below_and_written(gated: Gated, *values: int) -> list[Handle]:
    """Arrays of 100 bytes, below alone."""
    gated.gate.backend.permits.release(len(values))
    stored = [put(gated.store, 0) for _ in range(3)]
    gated.store.plan(stored)
    handles = [put(gated.store, value) for value in values]
    for handle in handles:
        handle.wait_captured()
    assert places(*handles) == ["lower"] * len(values)
    return handles
