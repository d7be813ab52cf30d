"""A backend whose reads and writes wait for permits, and a store with it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from offgrad_storage import (
    Backend,
    BackendStore,
    BufferPool,
    Entry,
    Handle,
)
from offgrad_storage.testing import eventually

Array = NDArray[Any]


class GateBackend(Backend):
    """Keeps bytes in a dict; logs each action, then waits for a permit or the open gate."""

    def __init__(self, quota: int | None = None, keeps: bool = False) -> None:
        super().__init__("GateStore", quota)
        self.persistent = keeps
        self.kept: dict[int, bytes] = {}
        self.log: list[str] = []
        self.permits = threading.Semaphore(0)
        self.open = threading.Event()
        self.failures: deque[BaseException] = deque()
        self.closed = 0

    def _pass(self, action: str, entry: Entry) -> None:
        self.log.append(f"{action} {entry.serial}")
        while not self.open.is_set() and not self.permits.acquire(timeout=0.005):
            pass
        if self.failures:
            raise self.failures.popleft()

    def write(self, entry: Entry, array: Array) -> int:
        self._pass("write", entry)
        self.kept[entry.serial] = array.tobytes()
        entry.encoded_nbytes = array.nbytes // 2
        return entry.encoded_nbytes

    def read(self, entry: Entry, out: Array) -> None:
        self._pass("read", entry)
        out[...] = np.frombuffer(self.kept[entry.serial], out.dtype).reshape(out.shape)

    def free(self, entry: Entry) -> Callable[[], object]:
        def free_job() -> None:
            self.log.append(f"free {entry.serial}")
            self.kept.pop(entry.serial, None)

        return free_job

    def close(self) -> None:
        self.closed += 1


class Setup:
    def __init__(self, threads: int = 1, inflight: int = 1000, **options: Any) -> None:
        self.backend = GateBackend(**options)
        self.pool = BufferPool()
        self.store = BackendStore(
            self.backend, threads=threads, inflight_nbytes=inflight, allocate=self.pool.empty
        )

    def put(self, value: int, nbytes: int = 100) -> Handle:
        array = self.pool.empty(nbytes, np.uint8)
        array[:] = value
        return self.store.put(array)

    def failed(self, handle: Handle) -> None:
        eventually(lambda: handle._entry.error is not None)

    def started(self, what: str) -> None:
        eventually(lambda: what in self.backend.log)


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results
