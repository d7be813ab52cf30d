"""Places for bytes that let a test hold writes back and see the order of reads."""

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from offgrad_storage import Backend, BackendStore, Entry

from offgrad import memory

SECONDS = 60.0
"""How long anything here waits before it gives up: far longer than it takes."""


class MemoryBackend(Backend):
    """Keeps bytes in a dict; logs what it does.

    Attributes:
        gate: writes wait for it; open at first.
        delay: seconds a write waits before it looks at the array.
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
            raise OSError("nobody opened the gate")
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
