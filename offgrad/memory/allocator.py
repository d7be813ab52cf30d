"""Tensor memory: one pool of reusable buffers, counted to the byte, with a limit.

Arrays of `POOL_THRESHOLD` bytes and more come from a `BufferPool`, which reports each of them here
when it is taken and when its last view dies. Smaller arrays are NumPy's own and are counted by the
`Storage` that holds them.
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

# Called with the bytes allocated after each change.
Observer = Callable[[int], None]


class OutOfMemoryError(MemoryError):
    """Tensor memory would exceed its limit, or the system has none left."""


class Reclaimable(Protocol):
    """Who holds tensor memory that is no tensor's, and can perhaps do without."""

    def reclaim(self) -> None:
        """Give back what can be done without; may wait. The allocation is then tried once more.

        Raises:
            StoreError, MemoryError: not all of it can be; it is the cause of an `OutOfMemoryError`.
        """

    def held_by_purpose(self) -> Mapping[str, int]:
        """Return the bytes held, by what for."""


class _Counter:
    """The bytes of live tensor data, their peak and their limit, for the whole process."""

    def __init__(self) -> None:
        # Re-entrant: a garbage collection inside the lock may free tensors.
        self.lock = threading.RLock()
        self.allocated = 0
        self.peak = 0
        self.limits: list[int] = []
        self.limit: int | None = None
        self.observers: tuple[Observer, ...] = ()
        self.borrowers: WeakRegistry[Reclaimable] = WeakRegistry()
        self.describe: Callable[[], str] = str

    def change(self, delta: int, *, relieved: bool = False) -> None:
        """Count `delta` bytes more or, if negative, less."""
        exceeded = False
        with self.lock:
            # One statement without a call in it: a collection cannot run between load and store.
            self.allocated += delta
            allocated = self.allocated
            if delta > 0:
                if self.limit is not None and allocated > self.limit:
                    self.allocated -= delta
                    exceeded = True
                elif allocated > self.peak:
                    self.peak = allocated
        if exceeded:
            if relieved:
                raise self._exceeded(delta)
            # Perhaps something only waits to be let go of.
            failure: Exception | None = None
            for borrower in self.borrowers:
                try:
                    borrower.reclaim()
                except (StoreError, MemoryError) as error:
                    failure = error.with_traceback(None)  # which would keep memory
            try:
                self.change(delta, relieved=True)
            except OutOfMemoryError as error:
                raise error from failure
            return
        for observer in self.observers:
            observer(allocated)

    def change_limits(self, change: Callable[[int], object], nbytes: int) -> None:
        """Add or remove a limit; the tightest counts."""
        with self.lock:
            change(nbytes)
            self.limit = min(self.limits, default=None)

    def _exceeded(self, wanted: int) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"tensor memory is limited to {format_nbytes(self.limit or 0)}: "
            f"{format_nbytes(wanted)} more were asked for with {format_nbytes(self.allocated)} "
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
    """Return the bytes of tensor data alive now."""
    return counter.allocated


def max_allocated() -> int:
    """Return the most bytes of tensor data alive at any one time since the last `reset_peak()`."""
    return counter.peak


def reset_peak() -> None:
    """Start a new peak at what is allocated now."""
    with counter.lock:
        counter.peak = counter.allocated


@contextmanager
def limit(size: int | str) -> Iterator[None]:
    """Make an allocation that would take tensor memory past `size` raise `OutOfMemoryError`.

    The limit holds for every thread of the process. Inside another limit the tighter one counts.

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
    """Call `observer` with the bytes allocated after every change, from any thread.

    It may be called while a tensor is being freed, so it must neither wait nor raise.
    """
    with counter.lock:
        counter.observers = (*counter.observers, observer)
    try:
        yield
    finally:
        with counter.lock:
            counter.observers = tuple(each for each in counter.observers if each is not observer)


def register_reclaimable(borrower: Reclaimable) -> None:
    """Ask `borrower`, while it lives, to give memory back before an allocation fails."""
    counter.borrowers.add(borrower)


def fits(nbytes: int) -> bool:
    """Return whether an allocation of `nbytes` would be within the limit as things are."""
    return counter.limit is None or counter.allocated + nbytes <= counter.limit
