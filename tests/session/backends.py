"""Backends and stores that let a test block writes and record the order of reads."""

import threading
import time
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray
from offgrad_storage import (
    Backend,
    BackendStore,
    Entry,
    Handle,
)

from offgrad import memory

SECONDS = 60.0
"""The timeout of every wait, in seconds: far longer than any wait needs."""


class MemoryBackend(Backend):
    """Keeps bytes in a dict; logs reads and writes.

    Attributes:
        gate: writes wait until it is set, as it is at first.
        delay: seconds a write waits before it reads the array.
        reads, writes: serial numbers of the entries, in order.
    """

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__("MemoryStore")
        self.gate = threading.Event()
        self.gate.set()
        self.delay = delay
        self.kept: dict[int, bytes] = {}
        self.names: dict[int, str] = {}
        self.reads: list[int] = []
        self.writes: list[int] = []

    def write(self, entry: Entry, array: NDArray[Any]) -> int:
        """Wait, then copy."""
        if not self.gate.wait(SECONDS):
            raise OSError("the gate stayed closed")
        time.sleep(self.delay)
        self.writes.append(entry.serial)
        self.kept[entry.serial] = array.tobytes()
        return entry.nbytes

    def read(self, entry: Entry, out: NDArray[Any]) -> None:
        """Copy back."""
        self.reads.append(entry.serial)
        out[...] = np.frombuffer(self.kept[entry.serial], entry.dtype).reshape(entry.shape)

    def free(self, entry: Entry) -> None:
        """Forget."""
        self.kept.pop(entry.serial, None)

    def close(self) -> None:
        """Forget all."""
        self.gate.set()
        self.kept.clear()


def memory_store(backend: MemoryBackend, threads: int = 1) -> BackendStore:
    """Return a store over `backend` whose arrays are tensor memory."""
    return BackendStore(backend, threads=threads, allocate=memory.empty)


class RecordingStore(BackendStore):
    """A store in memory that numbers the arrays put and logs each put, prefetch and get.

    Attributes:
        events: ("put" or "prefetch" or "get", number of the array) in order.
        max_prefetched_nbytes: the peak of the bytes prefetched and not yet got.
    """

    def __init__(self, threads: int = 1) -> None:
        super().__init__(MemoryBackend(), threads=threads, allocate=memory.empty)
        self.events: list[tuple[str, int]] = []
        self.max_prefetched_nbytes = 0
        self._numbers: WeakKeyDictionary[Handle, int] = WeakKeyDictionary()
        self._unread: dict[int, int] = {}

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Number `array` and log the put."""
        handle = super().put(array, attributes=attributes)
        number = sum(kind == "put" for kind, _ in self.events)
        self._numbers[handle] = number
        self.events.append(("put", number))
        return handle

    def get(self, handle: Handle, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Log the get."""
        self.events.append(("get", self._numbers[handle]))
        self._unread.pop(self._numbers[handle], None)
        return super().get(handle, out)

    def prefetch(self, handle: Handle, out: NDArray[Any] | None = None) -> None:
        """Log the prefetch."""
        self.events.append(("prefetch", self._numbers[handle]))
        self._unread[self._numbers[handle]] = handle.nbytes
        self.max_prefetched_nbytes = max(self.max_prefetched_nbytes, sum(self._unread.values()))
        super().prefetch(handle, out)

    def all(self, wanted: str) -> list[int]:
        """Return the numbers of the events of one kind, in order."""
        return [number for kind, number in self.events if kind == wanted]
