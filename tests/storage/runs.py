"""Helpers of the tests of runs: adjacent arrays, and the system calls for them."""

from __future__ import annotations

import fcntl
import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    AbstractArrayStore,
    BufferPool,
    DiskStore,
    Handle,
    StoreError,
    ZarrStore,
)
from offgrad_storage.testing import assert_same

from tests.storage.faults import Stored, assert_helpful

Array = NDArray[Any]
KINDS = ["disk", "disk-buffered", "zarr"]
MIB = 1 << 20
POOL = BufferPool()


class Calls:
    """Stands between stores and the calls by which they write and read several arrays at once.

    Attributes:
        log: of each call ``write`` or ``read``, the offset, and the length of each buffer.
        open: while it is not set, each call of an I/O thread waits for a permit.
        fault: called at each call: may raise an OSError, or return the bytes to move.
    """

    def __init__(self, patch: pytest.MonkeyPatch, directory: Path) -> None:
        self._directory = f"{directory}{os.sep}"
        self.log: list[tuple[str, int, list[int]]] = []
        self.open = threading.Event()
        self.open.set()
        self.permits = threading.Semaphore(0)
        self.fault: Callable[[str, int, int], int | None] = lambda kind, offset, nbytes: None
        patch.setattr(os, "pwritev", self._wrap("write", os.pwritev))
        patch.setattr(os, "preadv", self._wrap("read", os.preadv))

    def _wrap(self, kind: str, real: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._directory):
                return real(descriptor, buffers, offset)
            lengths = [buffer.nbytes for buffer in buffers]
            in_caller = threading.current_thread() is threading.main_thread()
            if in_caller and lengths == [4096]:  # the store asks whether O_DIRECT works
                return real(descriptor, buffers, offset)
            self.log.append((kind, offset, lengths))
            while (
                not in_caller and not self.open.is_set() and not self.permits.acquire(timeout=0.005)
            ):
                pass
            most = self.fault(kind, offset, sum(lengths))
            if most is not None:
                if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                    most -= most % 4096
                buffers = _first(buffers, most)
            return real(descriptor, buffers, offset)

        return call

    def of(self, kind: str) -> list[list[int]]:
        """The lengths of the buffers of each call of a kind."""
        return [lengths for called, _, lengths in self.log if called == kind]

    def fail_at(self, kind: str, place: int, code: int, times: float = float("inf")) -> None:
        """From now on, so many calls that would move the byte at ``place`` fail."""
        left = times

        def fault(called: str, offset: int, nbytes: int) -> None:
            nonlocal left
            if called == kind and offset <= place < offset + nbytes and left > 0:
                left -= 1
                raise OSError(code, os.strerror(code))

        self.fault = fault

    def heal(self) -> None:
        self.fault = lambda kind, offset, nbytes: None


def _first(buffers: list[memoryview], most: int) -> list[memoryview]:
    taken = []
    for buffer in buffers:
        taken.append(buffer[:most])
        most -= taken[-1].nbytes
    return taken


def make(kind: str, directory: Path, **options: Any) -> AbstractArrayStore:
    chosen: dict[str, Any] = {"threads": 1, "allocate": POOL.empty} | options
    if kind == "zarr":
        return ZarrStore(directory, **({"codec": "none"} | chosen))
    return DiskStore(directory, direct=kind == "disk", **chosen)


def until(condition: Callable[[], object]) -> None:
    """Wait for it. Unlike ``eventually``, this collects no garbage: the calls come at once."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.0005)


_NOISE = np.random.default_rng(0).integers(0, 256, 3 * MIB, np.uint8)


def pooled(nbytes: int, seed: int) -> Array:
    array = POOL.empty(nbytes, np.uint8)
    array[:] = _NOISE[64 * seed : 64 * seed + nbytes]
    return array


def held(calls: Calls, store: AbstractArrayStore, arrays: list[Array]) -> Stored:
    """Put all, while the write of the first has begun and waits, so that the others queue up."""
    calls.open.clear()
    begun = len(calls.of("write"))
    stored = [(store.put(arrays[0]), arrays[0])]
    until(lambda: len(calls.of("write")) > begun)
    stored += [(store.put(array), array) for array in arrays[1:]]
    return stored


def put_run(calls: Calls, store: AbstractArrayStore, count: int = 12, nbytes: int = MIB) -> Stored:
    """So many neighbours, written in few calls."""
    stored = held(calls, store, [pooled(nbytes, seed) for seed in range(count)])
    calls.open.set()
    store.flush()
    return stored


def prefetch_run(calls: Calls, stored: Stored) -> None:
    """Prefetch all, so that the others queue up while the read of the first waits."""
    calls.open.clear()
    begun = len(calls.of("read"))
    stored[0][0].prefetch()
    until(lambda: len(calls.of("read")) > begun)
    for handle, _ in stored[1:]:
        handle.prefetch()
    calls.open.set()


def assert_readable(stored: Stored) -> None:
    for handle, array in stored:
        assert_same(handle.get(), array)


def outcomes(stored: Stored) -> list[type[BaseException] | None]:
    """The result of a get of each: the array bit for bit, or a helpful error."""
    return _outcomes([(each[0], functools.partial(assert_readable, [each])) for each in stored])


def writes(stored: Stored) -> list[type[BaseException] | None]:
    """The result of the write of each: None or a helpful error. A get returns the array."""
    assert_readable(stored)
    return _outcomes([(handle, handle.check) for handle, _ in stored])


def _outcomes(
    actions: list[tuple[Handle, Callable[[], object]]],
) -> list[type[BaseException] | None]:
    results: list[type[BaseException] | None] = []
    for handle, action in actions:
        try:
            action()
            results.append(None)
        except StoreError as error:
            kind = "zarr" if isinstance(handle.store, ZarrStore) else "disk"
            assert_helpful(error, kind, handle)
            results.append(type(error))
    return results


def place_of(calls: Calls, number: int, nbytes: int = MIB) -> int:
    """Where in the file array ``number`` of a run begins."""
    first = next(offset for kind, offset, _ in calls.log if kind == "write")
    return first + number * nbytes
