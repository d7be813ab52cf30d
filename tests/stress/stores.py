"""Stores of every kind, small enough that each limit is reached, and drives that fail and stall."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from offgrad_storage import (
    AbstractArrayStore,
    Allocate,
    DiskStore,
    PoolStore,
    TieredStore,
    ZarrStore,
)
from offgrad_storage.testing.helpers import backends_of

from tests.session.backends import MemoryBackend, memory_store

MIB = 1 << 20

Make = Callable[[Path, Allocate], AbstractArrayStore]


def _tiered(folder: Path, allocate: Allocate, nbytes: int) -> AbstractArrayStore:
    return TieredStore(
        nbytes,
        PoolStore(256 << 10, allocate=allocate),
        DiskStore(folder, allocate=allocate, pack_below_nbytes=32 << 10),
        allocate=allocate,
    )


STORES: dict[str, Make] = {
    "pool": lambda folder, allocate: PoolStore(allocate=allocate),
    "pool:lz4": lambda folder, allocate: PoolStore(codec="lz4", allocate=allocate),
    "disk": lambda folder, allocate: DiskStore(folder, allocate=allocate),
    "disk:lz4": lambda folder, allocate: DiskStore(folder, codec="lz4", allocate=allocate),
    "disk of small packs": lambda folder, allocate: DiskStore(
        folder, pack_below_nbytes=32 << 10, threads=1, allocate=allocate
    ),
    "disk without packs": lambda folder, allocate: DiskStore(
        folder, pack_below_nbytes=0, inflight_nbytes=300 << 10, threads=2, allocate=allocate
    ),
    "disk:sparse without packs": lambda folder, allocate: DiskStore(
        folder, codec="sparse", pack_below_nbytes=0, allocate=allocate
    ),
    "disk without threads": lambda folder, allocate: DiskStore(
        folder, threads=0, allocate=allocate
    ),
    "disk:zstd without threads": lambda folder, allocate: DiskStore(
        folder, threads=0, codec="zstd", direct=False, allocate=allocate
    ),
    "zarr": lambda folder, allocate: ZarrStore(folder, allocate=allocate),
    "zarr:blosc-lz4": lambda folder, allocate: ZarrStore(
        folder, codec="blosc-lz4", threads=1, inflight_nbytes=300 << 10, allocate=allocate
    ),
    "zarr, kept": lambda folder, allocate: ZarrStore(
        folder, codec="none", keep=True, allocate=allocate
    ),
    "tiered": lambda folder, allocate: _tiered(folder, allocate, 400 << 10),
    "tiered without RAM": lambda folder, allocate: TieredStore(
        0, DiskStore(folder, allocate=allocate), allocate=allocate
    ),
    "own": lambda folder, allocate: memory_store(MemoryBackend(), threads=1),
    "own without threads": lambda folder, allocate: memory_store(MemoryBackend(), threads=0),
}
"""By name, the function that makes a store."""

KEPT = ("zarr, kept",)
"""Stores in which arrays outlive their handles."""


class Drive:
    """Makes the inputs and outputs of stores late, and some of them fail.

    Args:
        random: decides.
        delay: maximum of seconds for each.

    Attributes:
        failures: share of them that fail.
        faults: number of errors raised so far.
    """

    def __init__(self, random: Random, delay: float = 0.0) -> None:
        self._random = random
        self._lock = threading.Lock()
        self._delay = delay
        self.failures = 0.0
        self.faults = 0

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of a backend, late; or raise an OSError."""
        with self._lock:
            delay = self._random.random() * self._delay
            fails = self._random.random() < self.failures
            self.faults += fails
        if delay:
            time.sleep(delay)
        if fails:
            raise OSError(5, "an error that the stress run injects")
        return method(*arguments)

    @contextmanager
    def serving(self, stores: list[AbstractArrayStore]) -> Iterator[None]:
        """Stand between stores and their bytes."""
        names = ("write", "read", "write_run", "read_run", "read_part")
        changed: list[Any] = []
        for store in stores:
            for backend in backends_of(store):
                changed.append(backend)
                for name in names:
                    setattr(backend, name, self._around(getattr(backend, name)))
        try:
            yield
        finally:
            for backend in changed:
                for name in names:
                    delattr(backend, name)

    def _around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: self.call(method, *arguments)
