"""Tensor memory: one pool of reusable buffers, an exact byte count, and a limit.

Arrays of at least `POOL_THRESHOLD` bytes come from a `BufferPool`, which reports each one when it
is allocated and when its last view dies. NumPy allocates smaller arrays; the `Storage` that holds
one counts it.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray
from offgrad_storage import BufferPool, StoreError

from offgrad.memory.registry import WeakRegistry
from offgrad.memory.units import format_nbytes, parse_nbytes

POOL_THRESHOLD = 64 * 1024

# Called after each change with the allocated bytes.
Observer = Callable[[int], None]


class OutOfMemoryError(MemoryError):
    """Tensor memory would exceed its limit, or the system has no memory left."""


class Reclaimable(Protocol):
    """An owner of tensor memory outside any tensor, such as a cache, that can free some of it."""

    def reclaim(self) -> None:
        """Free memory; may block. The failed allocation is then retried once.

        Raises:
            StoreError, MemoryError: some memory cannot be freed; the error becomes the cause of the
                `OutOfMemoryError`.
        """

    def held_by_purpose(self) -> Mapping[str, int]:
        """Return the held bytes by purpose, in the words of an `OutOfMemoryError`."""


class _Counter:
    """The bytes of live tensor data, their peak and their limit, for the whole process."""

    def __init__(self) -> None:
        # Re-entrant: a garbage collection may free tensors while the lock is held.
        self.lock = threading.RLock()
        self.allocated = 0
        self.peak = 0
        self.limits: list[int] = []
        self.limit: int | None = None
        self.observers: tuple[Observer, ...] = ()
        self.reclaimables: WeakRegistry[Reclaimable] = WeakRegistry()
        self.describe: Callable[[], str] = str

    def change(self, delta: int, *, after_reclaim: bool = False) -> None:
        """Add `delta` bytes, which may be negative, to the count."""
        exceeded = False
        with self.lock:
            # One statement without a call: no collection can run between its load and its store.
            self.allocated += delta
            allocated = self.allocated
            if delta > 0:
                if self.limit is not None and allocated > self.limit:
                    self.allocated -= delta
                    exceeded = True
                elif allocated > self.peak:
                    self.peak = allocated
        if exceeded:
            if after_reclaim:
                raise self._limit_error(delta)
            failure: Exception | None = None
            for reclaimable in self.reclaimables:
                try:
                    reclaimable.reclaim()
                except (StoreError, MemoryError) as error:
                    failure = error.with_traceback(None)  # its frames would hold memory
            try:
                self.change(delta, after_reclaim=True)
            except OutOfMemoryError as error:
                raise error from failure
            return
        for observer in self.observers:
            observer(allocated)

    def change_limits(self, change: Callable[[int], object], nbytes: int) -> None:
        """Add or remove a limit; the smallest applies."""
        with self.lock:
            change(nbytes)
            self.limit = min(self.limits, default=None)

    def _limit_error(self, requested: int) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"tensor memory is limited to {format_nbytes(self.limit or 0)}: "
            f"{format_nbytes(requested)} more were asked for with {format_nbytes(self.allocated)} "
            f"allocated. {self.describe()} Run the forward pass under offgrad.offload('disk'), "
            "make the batch smaller or raise the limit."
        )


counter = _Counter()
pool = BufferPool(on_change=counter.change)


def _renew_lock() -> None:
    counter.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[np.generic]:
    """Return an uninitialised C-ordered array for tensor data.

    Raises:
        OutOfMemoryError: if the limit would be exceeded or the system has no memory left.
    """
    dtype = np.dtype(dtype)
    nbytes = dtype.itemsize
    if isinstance(shape, int):
        shape = (shape,)
    for size in shape:
        nbytes *= size
    if nbytes < POOL_THRESHOLD:
        return np.empty(shape, dtype)
    try:
        return pool.empty(shape, dtype)
    except OutOfMemoryError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(
            f"the system has no memory left for {format_nbytes(nbytes)} of tensor data "
            f"({format_nbytes(counter.allocated)} are allocated). {counter.describe()} Run the "
            "forward pass under offgrad.offload('disk') or make the batch smaller."
        ) from error


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[np.generic]:
    """Return a C-ordered array of zeros for tensor data."""
    array = empty(shape, dtype)
    array[...] = 0
    return array


def contiguous(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return `array` itself if it is C-contiguous, else a C-ordered copy."""
    if array.flags.c_contiguous:
        return array
    return copy(array)


def copy(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return a C-ordered copy of `array`."""
    result = empty(array.shape, array.dtype)
    np.copyto(result, array)
    return result


def allocated() -> int:
    """Return the bytes of live tensor data."""
    return counter.allocated


def max_allocated() -> int:
    """Return the peak of `allocated()` since the last `reset_peak()`."""
    return counter.peak


def reset_peak() -> None:
    """Reset the peak to the currently allocated bytes."""
    with counter.lock:
        counter.peak = counter.allocated


@contextmanager
def limit(size: int | str) -> Iterator[None]:
    """Make allocations that would take tensor memory past `size` raise `OutOfMemoryError`.

    The limit applies to all threads of the process. Of nested limits the smallest applies.

    Args:
        size: bytes, or text such as ``"512MiB"``.
    """
    nbytes = parse_nbytes(size)
    counter.change_limits(counter.limits.append, nbytes)
    try:
        yield
    finally:
        counter.change_limits(counter.limits.remove, nbytes)


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Call `observer` with the allocated bytes after every change, from any thread.

    It may be called while a tensor is being freed, so it must neither block nor raise.
    """
    with counter.lock:
        counter.observers = (*counter.observers, observer)
    try:
        yield
    finally:
        with counter.lock:
            counter.observers = tuple(each for each in counter.observers if each is not observer)


def register_reclaimable(reclaimable: Reclaimable) -> None:
    """Call ``reclaimable.reclaim()``, while it lives, before an allocation fails."""
    counter.reclaimables.add(reclaimable)


def fits(nbytes: int) -> bool:
    """Return whether an allocation of `nbytes` would now stay within the limit."""
    return counter.limit is None or counter.allocated + nbytes <= counter.limit
