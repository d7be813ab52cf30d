"""Loops over a store's arrays, in the order of training: puts forward, gets backward.

Array sizes are powers of two: "1 MB" is 2**20 bytes.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from offgrad_storage import AbstractArrayStore, BufferPool, Handle

KB, MB = 1 << 10, 1 << 20
AHEAD = 64 * MB
"""Bytes that reads run ahead of their use, as in an offgrad session."""

Array = NDArray[Any]
Variants = dict[str, Callable[[], int]]
"""By name, functions that move arrays and return their bytes."""


def label(nbytes: int) -> str:
    """Return the size as text."""
    return f"{nbytes // MB} MB" if nbytes >= MB else f"{nbytes // KB} KB"


def normal_arrays(nbytes: int, total: int) -> list[Array]:
    """Return float32 arrays of `nbytes` each, from a BufferPool, touched, `total` in all."""
    pattern = np.random.default_rng(0).standard_normal(min(nbytes, 16 * MB) // 4, np.float32)
    pool = BufferPool()
    arrays = [pool.empty(nbytes // 4, np.float32) for _ in range(max(1, total // nbytes))]
    for index, array in enumerate(arrays):
        array.reshape(-1, pattern.size)[:] = np.roll(pattern, index)
    return arrays


def store_variants(name: str, store: AbstractArrayStore, arrays: Sequence[Array]) -> Variants:
    """Return a loop that puts all arrays, and one that gets them and drops their handles."""
    handles: list[Handle] = []

    def put() -> int:
        handles.extend(store.put(array) for array in arrays)
        wait_written(store, handles)
        return sum(array.nbytes for array in arrays)

    return {f"{name} put": put, f"{name} get": lambda: read_back(last_first(handles))}


def wait_written(store: AbstractArrayStore, handles: Iterable[Handle]) -> None:
    """Wait until the store has written the arrays, not only buffered them."""
    for handle in handles:
        handle.wait_captured()
    limit = time.monotonic() + 30
    while store.stats().inflight_nbytes:
        if time.monotonic() > limit:
            raise TimeoutError(f"{store} has not written {store.stats().inflight_nbytes} bytes")
        time.sleep(1e-4)


def last_first(handles: list[Handle]) -> Iterator[Handle]:
    """Yield the handles in the order of backward, removing each from the list."""
    while handles:
        yield handles.pop()


def read_back(handles: Iterable[Handle]) -> int:
    """Get all into new arrays, dropped at once, while reads run ahead; return the bytes."""
    ahead: deque[Handle] = deque()
    begun = got = 0
    for handle in handles:
        handle.prefetch()
        ahead.append(handle)
        begun += handle.nbytes
        while begun - got > AHEAD:
            got += ahead.popleft().get().nbytes
    while ahead:
        got += ahead.popleft().get().nbytes
    return got
