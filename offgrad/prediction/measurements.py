"""Measurements of a `Machine`: its drive, copies in memory, and what a session takes of computing.

The kernels and the session that training uses are measured, with stores as a session opens them.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Self

import numpy as np
from offgrad_storage import DiskStore

from offgrad import kernels, memory, ops
from offgrad.autograd import grad_mode, saved_tensor
from offgrad.ops._core.device import CPU
from offgrad.prediction.machine import Machine
from offgrad.session.named_stores import INFLIGHT_NBYTES, THREADS
from offgrad.session.session import OffloadSession

_NBYTES = 64 << 20  # more than caches hold; written and read at once
_LARGE_NBYTES, _SMALL_NBYTES = 4 << 20, 1 << 20
_TRIALS = 7
_CALLS = 20
_SAVES = 64
_AHEAD = 4
_STREAMED = 2 << 20  # elements; eight arrays are 64 MiB

Array = np.ndarray[Any, Any]
Directory = str | os.PathLike[str] | None


def measure(directory: Directory = None) -> Machine:
    """Measure the drive of `directory`, and what a session on it takes."""
    with DiskStore(
        directory,
        allocate=memory.empty,
        hold=memory.empty,
        inflight_nbytes=INFLIGHT_NBYTES,
        threads=THREADS,
        max_pack_nbytes=0,
    ) as store:
        _transfer(store, _LARGE_NBYTES)  # the file gets its space
        large, small = _transfer(store, _LARGE_NBYTES), _transfer(store, _SMALL_NBYTES)
        single_write, single_read = _single_seconds(store)
        writing, reading = _beside_computing(store)
    write_seconds, write_rate = _fit(large[0], small[0])
    read_seconds, read_rate = _fit(large[1], small[1])
    copy_rate = _copy_rate()
    pack_seconds, unpack_seconds, evict_seconds = _session_seconds(directory, copy_rate)
    return Machine(
        write_rate=write_rate,
        read_rate=read_rate,
        write_seconds=write_seconds,
        read_seconds=read_seconds,
        write_latency=max(0.0, single_write - write_seconds - _SMALL_NBYTES / write_rate),
        read_latency=max(0.0, single_read - read_seconds - _SMALL_NBYTES / read_rate),
        write_factor=max(1.0, writing.seconds / small[0]),
        read_factor=max(1.0, reading.seconds / small[1]),
        write_load=writing.load,
        read_load=reading.load,
        copy_rate=copy_rate,
        pack_seconds=pack_seconds,
        unpack_seconds=unpack_seconds,
        evict_seconds=evict_seconds,
    )


def _arrays(nbytes: int, total_nbytes: int = _NBYTES) -> list[Array]:
    """Return arrays of a size, more than caches hold."""
    content = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
    arrays = [memory.empty((nbytes,), np.uint8) for _ in range(total_nbytes // nbytes)]
    for each in arrays:
        each[...] = content
    return arrays


def _transfer(store: Any, nbytes: int) -> tuple[float, float]:
    """Return the seconds for each array to write and to read arrays of a size."""
    arrays = _arrays(nbytes)
    began = time.perf_counter()
    handles = [store.put(each) for each in arrays]
    store.flush()
    written = time.perf_counter()
    for index, handle in enumerate(handles):
        for later in handles[index : index + _AHEAD]:
            later.prefetch()
        handle.get()
    count = len(handles)
    return (written - began) / count, (time.perf_counter() - written) / count


def _fit(large: float, small: float) -> tuple[float, float]:
    """Return the seconds for an array and the rate that explain the times of both sizes."""
    rate = (_LARGE_NBYTES - _SMALL_NBYTES) / max(large - small, large / 8)
    return max(0.0, large - _LARGE_NBYTES / rate), rate


def _single_seconds(store: Any) -> tuple[float, float]:
    """Return the seconds of writing and reading one small array after the other has ended."""
    arrays = _arrays(_SMALL_NBYTES, _NBYTES // 2)
    handles, writes, reads = [], [], []
    for each in arrays:
        began = time.perf_counter()
        handle = store.put(each)
        handle.wait_captured()
        writes.append(time.perf_counter() - began)
        handles.append(handle)
    for handle in handles:
        began = time.perf_counter()
        handle.get()
        reads.append(time.perf_counter() - began)
    return float(np.median(writes)), float(np.median(reads))


def _beside_computing(store: Any) -> "tuple[_Beside, _Beside]":
    """Return what writes and reads take while the program computes on all threads."""
    arrays = _arrays(_SMALL_NBYTES, INFLIGHT_NBYTES // 2)
    compute = _computing()
    writes, reads = [], []
    for _ in range(_TRIALS + 1):
        began = time.perf_counter()
        for _ in range(_CALLS):
            compute()
        call = (time.perf_counter() - began) / _CALLS
        began, calls = time.perf_counter(), 0
        handles = [store.put(each) for each in arrays]
        while store.stats().inflight_nbytes:
            compute()
            calls += 1
        seconds = time.perf_counter() - began
        writes.append((seconds, seconds - calls * call))
        began, calls = time.perf_counter(), 0
        for each in handles:
            each.prefetch()
        while not all(each._fetch.done for each in handles):
            compute()
            calls += 1
        seconds = time.perf_counter() - began
        reads.append((seconds, seconds - calls * call))
        for each in handles:
            each.get()
    return _Beside.of(writes, arrays), _Beside.of(reads, arrays)


class _Beside(NamedTuple):
    """Writes or reads of an array beside computing.

    Attributes:
        seconds: that one takes.
        load: seconds that computing takes longer, for each byte.
    """

    seconds: float
    load: float

    @classmethod
    def of(cls, trials: list[tuple[float, float]], arrays: list[Array]) -> Self:
        seconds, lost = np.median(np.array(trials[1:]), axis=0)
        nbytes = sum(each.nbytes for each in arrays)
        return cls(float(seconds) / len(arrays), max(0.0, float(lost)) / nbytes)


def _computing() -> Callable[[], None]:
    """Return a product, and an activation of arrays that no cache holds, on all threads.

    They take about the same time: training waits for memory as well as for arithmetic.
    """
    a, b, product = (np.ones((512, 512), np.float32) for _ in range(3))
    arrays = itertools.cycle([np.ones(_STREAMED, np.float32) for _ in range(8)])

    def run() -> None:
        kernels.matmul(a, b, product)
        kernels.relu(next(arrays), next(arrays))

    return run


def _copy_rate() -> float:
    sources, targets = _arrays(_LARGE_NBYTES), _arrays(_LARGE_NBYTES)
    seconds = []
    for _ in range(_TRIALS):
        began = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            np.copyto(target, source)
        seconds.append(time.perf_counter() - began)
    return sum(each.nbytes for each in sources) / max(min(seconds), 1e-9)


def _session_seconds(directory: Directory, copy_rate: float) -> tuple[float, float, float]:
    """Return the CPU time of the computing thread for each tensor that a session packs, unpacks,
    and evicts from a budget.

    It is that of a chain of operations on small tensors, less that of the chain under ``keep``.
    """
    shape = (128, 128)
    nbytes = 4 * shape[0] * shape[1]
    folder = None if directory is None else os.fspath(directory)
    policies = ("keep", "disk", f"budget:{4 * nbytes}")
    sessions = [OffloadSession(each, directory=folder) for each in policies]
    times: Sequence[list[tuple[float, float]]] = ([], [], [])
    with isolated():
        x = ops.ones(*shape, requires_grad=True)
        for _ in range(_TRIALS + 1):
            for session, found in zip(sessions, times, strict=True):
                found.append(_chain(x, session))
    least = [np.min(np.array(each[1:]), axis=0) for each in times]
    packs, unpacks = np.maximum((least[1] - least[0]) / _SAVES - nbytes / copy_rate, 0.0)
    evictions = np.sum(least[2] - least[0]) / (_SAVES - 4) - packs - unpacks
    return float(packs), float(unpacks), max(float(evictions), 0.0)


def _chain(x: Any, session: OffloadSession) -> tuple[float, float]:
    """Return the CPU time of forward and of backward through a chain of operations."""
    began = time.thread_time()
    with session:
        y = x
        for _ in range(_SAVES):
            y = y.sigmoid()
    forward = time.thread_time()
    y.backward(y.detach())
    backward = time.thread_time()
    x.grad = None
    return forward - began, backward - forward


@contextmanager
def isolated() -> Iterator[None]:
    """Compute with gradients, outside of hooks and sessions of the caller."""
    state = saved_tensor.state
    hooks, state.hooks = state.hooks, ()
    try:
        with ExitStack() as block:
            block.enter_context(grad_mode.enable_grad())
            block.enter_context(CPU)
            yield
    finally:
        state.hooks = hooks
