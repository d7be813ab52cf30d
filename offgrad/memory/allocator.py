"""Tensor memory: one pool of reusable buffers, an exact byte count, and a limit.

Arrays of at least `POOL_THRESHOLD` bytes come from a `BufferPool`, which counts each one until its
last view dies. NumPy allocates smaller arrays; the `Storage` that holds one counts it.
"""

from collections.abc import Callable, Iterator
from contextlib import _GeneratorContextManager, contextmanager
from threading import get_ident

import numpy as np
from numpy.typing import DTypeLike, NDArray
from offgrad_storage import BufferPool

from offgrad.memory.limited_counter import LimitedCounter, OutOfMemoryError, Reclaimable
from offgrad.memory.meta import MetaArray, meta_tensor_memory, shape_only
from offgrad.memory.units import format_nbytes, parse_nbytes

POOL_THRESHOLD = 64 * 1024
_MAX_TRIALS = 4  # where the system refuses memory, and sessions or pages free some

# Called after each change with the allocated bytes.
Observer = Callable[[int], None]

counter = LimitedCounter()
pool = BufferPool(counter=counter)


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[np.generic]:
    """Return an uninitialised C-ordered array for tensor data.

    Raises:
        OutOfMemoryError: if the limit would be exceeded or the system has no memory left.
    """
    if shape_only and get_ident() in shape_only:
        return meta_tensor_memory(shape, dtype)
    dtype = np.dtype(dtype)
    nbytes = dtype.itemsize
    if isinstance(shape, int):
        shape = (shape,)
    for size in shape:
        nbytes *= size
    if nbytes < POOL_THRESHOLD:
        return np.empty(shape, dtype)
    failure: MemoryError | None = None
    for _ in range(_MAX_TRIALS):
        try:
            return pool.empty(shape, dtype)
        except OutOfMemoryError:
            raise
        except MemoryError as error:
            failure = error.with_traceback(None)  # its frames would hold memory
        if not counter.reclaim()[0]:
            break
    raise OutOfMemoryError(
        f"the system has no memory left for {format_nbytes(nbytes)} of tensor data "
        f"({format_nbytes(counter.allocated)} are allocated). {counter.describe(nbytes)}"
    ) from failure


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
    if type(array) is MetaArray:
        return meta_tensor_memory(array.shape, array.dtype)
    result = empty(array.shape, array.dtype)
    if result.nbytes < POOL_THRESHOLD or type(result) is MetaArray:
        np.copyto(result, array)
    else:
        _copiers[-1](result, array)
    return result


def set_copier(copier: Callable[[NDArray[np.generic], NDArray[np.generic]], None]) -> None:
    """Let `copy` call ``copier(result, array)`` for large arrays, instead of `np.copyto`.

    The kernels, a layer above, copy on several threads.
    """
    _copiers.append(copier)


_copiers: list[Callable[[NDArray[np.generic], NDArray[np.generic]], None]] = [np.copyto]


def allocated() -> int:
    """Return the bytes of live tensor data."""
    return counter.allocated


def max_allocated() -> int:
    """Return the peak of `allocated()` since the last `reset_peak()`."""
    return counter.peak


def reset_peak() -> None:
    """Reset the peak to the currently allocated bytes."""
    counter.reset_peak()


def limit(size: int | str) -> _GeneratorContextManager[None]:
    """Make allocations that would take tensor memory past `size` raise `OutOfMemoryError`.

    The limit applies to all threads of the process. Of nested limits the smallest applies.

    Args:
        size: bytes, or text such as ``"512MiB"``.

    Raises:
        ValueError, TypeError: it is no size; here already, not where the block begins.
    """
    return _limit(parse_nbytes(size))


@contextmanager
def _limit(nbytes: int) -> Iterator[None]:
    limits, key = counter.limits, object()
    # The changes themselves are single steps: after Ctrl-C the limit is either there or ended.
    try:
        limits[key] = nbytes
        counter.apply_limits()
        yield
    finally:
        limits.pop(key, None)
        counter.apply_limits()


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Call `observer` with the allocated bytes after every change, from any thread.

    Memory that is freed is noticed, and reported, with the next allocation, the next look at
    `allocated()`, or at the end of the block; so no peak is missed. The observer must not raise.
    """
    observers, key = counter.observers, object()
    counter.settle()
    try:
        observers[key] = lambda count, *_: observer(count)
        yield
        counter.settle()
    finally:
        observers.pop(key, None)


def register_reclaimable(reclaimable: Reclaimable) -> None:
    """Call ``reclaimable.reclaim()``, while it lives, before an allocation fails."""
    counter.reclaimables.add(reclaimable)


def fits(nbytes: int) -> bool:
    """Return whether an allocation of `nbytes` would now stay within the limit."""
    return counter.allocated + nbytes <= counter.limit
