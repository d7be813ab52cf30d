"""BufferPool: page-aligned, size-classed, reusable memory for arrays.

A new large array costs a page fault per 4 KiB, a reused one none, and a page-aligned one can be
written to disk with O_DIRECT without a copy. The pool returns ordinary NumPy arrays; their memory
returns to the pool when the last view dies.

Taking and returning memory uses no lock: the last view may die inside a garbage collection at any
allocation, in any thread, also in the middle of this code. Each step of both is a single
operation on a dict or deque, which the interpreter makes atomic.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from offgrad_storage._checks import check_count
from offgrad_storage.memory.blocks import Block, Blocks

PAGE = 4096
"""Alignment in bytes of every pooled array, and of everything written with O_DIRECT."""

_CACHE_SLACK = 64 << 20

Array = NDArray[Any]


def round_up(nbytes: int, multiple: int = PAGE) -> int:
    """The smallest multiple of ``multiple`` that is at least ``nbytes``."""
    return -(-nbytes // multiple) * multiple


@functools.lru_cache(256)
def size_class(nbytes: int) -> int:
    """The buffer size for ``nbytes``: whole pages, at most 12.5 % more than needed.

    There are eight classes between one power of two and the next.
    """
    pages = max(1, -(-nbytes // PAGE))
    step = 1 << max(0, (pages - 1).bit_length() - 4)
    return round_up(pages, step) * PAGE


class _Lease:
    """Owns one block while arrays use it: the base of all their views."""

    __slots__ = ("__array_interface__", "__weakref__", "block", "nbytes", "pool", "serial")

    def __init__(self, pool: BufferPool, block: Block, nbytes: int, serial: int) -> None:
        self.pool = pool
        self.block = block
        self.nbytes = nbytes
        self.serial = serial
        self.__array_interface__ = {
            "shape": (block.nbytes,),
            "typestr": "|u1",
            "data": (block.address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self.pool._take_back(self)


@dataclass(frozen=True)
class BufferPoolStats:
    """The figures of a BufferPool, in bytes and counts.

    Attributes:
        in_use_nbytes: exact bytes of all live arrays.
        reserved_nbytes: bytes of the buffers behind those arrays: rounded up to size classes.
        cached_nbytes: bytes of buffers kept for reuse.
        arrays: number of live arrays.
        takes: arrays returned by ``empty`` so far.
        maps: of these, arrays that needed new memory from the system.
    """

    in_use_nbytes: int
    reserved_nbytes: int
    cached_nbytes: int
    arrays: int
    takes: int
    maps: int


class BufferPool:
    """A pool of page-aligned memory for NumPy arrays.

    Args:
        capacity: bound of the bytes of buffers, in use and cached; None for none.
        on_change: called with ``+nbytes`` before an array is returned, and with ``-nbytes`` when
            its last view has died. If it raises in the former call, nothing is taken. The latter
            call may come from a garbage collection in any thread: it must neither wait nor raise.

    Thread-safe. A forked child may continue to use its copy of the pool.
    """

    def __init__(
        self, capacity: int | None = None, on_change: Callable[[int], object] | None = None
    ) -> None:
        if capacity is not None:
            check_count("capacity", capacity)
        self.capacity = capacity
        self._on_change = on_change
        self._blocks = Blocks()
        self._free: dict[int, deque[Block]] = {}
        self._live: dict[int, tuple[int, int]] = {}
        self._serial = itertools.count()
        self._returned = itertools.count()
        self._takes = self._maps = self._peak = 0
        self._mapped_nbytes = 0  # of all buffers, in use or cached
        self._map_lock = threading.RLock()
        _pools.add(self)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        """An uninitialised C-ordered array whose memory starts at a page boundary.

        Args:
            shape: any shape; an array of no bytes is an ordinary ``np.empty``.
            dtype: any dtype of fixed size that holds no Python objects.

        Raises:
            MemoryError: the system has no more, or the capacity is reached.
        """
        dtype = np.dtype(dtype)
        shape = (int(shape),) if isinstance(shape, int | np.integer) else tuple(shape)
        if dtype.hasobject:
            raise TypeError(f"a buffer takes dtypes without Python objects, got {dtype}")
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes <= 0:
            return np.empty(shape, dtype)
        if self._on_change is not None:
            self._on_change(nbytes)
        try:
            block = self._take(size_class(nbytes))
        except BaseException:
            if self._on_change is not None:
                self._on_change(-nbytes)
            raise
        serial = next(self._serial)
        self._takes = serial + 1
        self._live[serial] = (nbytes, block.nbytes)
        root = np.asarray(_Lease(self, block, nbytes, serial))
        return np.ndarray(shape, dtype, buffer=root)

    def owns(self, array: Array) -> bool:
        """Whether the memory of ``array``, perhaps a view, comes from this pool."""
        lease = lease_of(array)
        return lease is not None and lease.pool is self

    @staticmethod
    def padded(array: Array) -> NDArray[np.uint8] | None:
        """The bytes of a pooled array, rounded up to whole pages, for O_DIRECT; not a copy.

        Works for arrays of any pool. None if the array is not pooled, not C-contiguous, not at a
        page boundary, or if rounding would include memory of other arrays.
        """
        lease = lease_of(array)
        if lease is None or not array.flags.c_contiguous or not array.nbytes:
            return None
        start = array.__array_interface__["data"][0] - lease.block.address
        if start % PAGE or (array.nbytes % PAGE and (start, array.nbytes) != (0, lease.nbytes)):
            return None
        return np.asarray(lease)[start : start + round_up(array.nbytes)]

    @property
    def in_use_nbytes(self) -> int:
        """Exact bytes of all live arrays."""
        return sum(nbytes for nbytes, _ in self._live.copy().values())

    @property
    def cached_nbytes(self) -> int:
        """Bytes of buffers kept for reuse."""
        return sum(size * len(blocks) for size, blocks in self._free.copy().items())

    def stats(self) -> BufferPoolStats:
        """A snapshot of the pool's figures."""
        live = list(self._live.copy().values())
        return BufferPoolStats(
            in_use_nbytes=sum(nbytes for nbytes, _ in live),
            reserved_nbytes=self._reserved(),
            cached_nbytes=self.cached_nbytes,
            arrays=len(live),
            takes=self._takes,
            maps=self._maps,
        )

    def trim(self, nbytes: int | None = None) -> int:
        """Return cached buffers to the system, least recently used first.

        Args:
            nbytes: lower bound of the bytes to return, as far as cached; None for all.

        Returns:
            The bytes returned.
        """
        freed = 0
        while nbytes is None or freed < nbytes:
            oldest = min(
                (blocks for blocks in self._free.copy().values() if blocks),
                key=lambda blocks: _age(blocks),
                default=None,
            )
            if oldest is None:
                break
            try:
                block = oldest.popleft()
            except IndexError:
                continue  # another thread took it
            with self._map_lock:
                self._mapped_nbytes -= block.nbytes
                block.unmap()
            freed += block.nbytes
        return freed

    def _take(self, size: int) -> Block:
        try:
            return self._free[size].pop()
        except (KeyError, IndexError):
            pass
        with self._map_lock:
            reserved = self._reserved() + size
            if self.capacity is not None and reserved > self.capacity:
                raise MemoryError(
                    f"BufferPool: {size} bytes more would make {reserved} bytes of buffers, above "
                    f"its capacity of {self.capacity}; raise it, or drop arrays first"
                )
            # The next peak may be as high as the last; a cache far above it would waste memory.
            self._peak = max(self._peak, reserved)
            bound = self._peak + self._peak // 4 + _CACHE_SLACK
            if self.capacity is not None:
                bound = min(bound, self.capacity)
            self.trim(max(0, reserved + self.cached_nbytes - bound))
            self._maps += 1
            block = self._map_block(size)
            self._mapped_nbytes += size
            return block

    def _map_block(self, size: int) -> Block:
        # Trim as little as needed, since cached buffers will be reused: first none, then all.
        reason = ""
        for trimmed in (0, size, None):
            self.trim(trimmed)
            try:
                return self._blocks.make(size)
            except (OSError, OverflowError, ValueError, MemoryError) as error:
                reason = str(error)
        raise MemoryError(
            f"BufferPool: the system gives no {size} bytes ({reason}); {self._reserved()} bytes "
            "are in use, none are cached. Drop arrays, offload more, or raise the limit"
        )

    def _reserved(self) -> int:
        # Not a sum over all live arrays, which may be many thousands.
        return self._mapped_nbytes - self.cached_nbytes

    def _take_back(self, lease: _Lease) -> None:
        # Called by __del__: each step is atomic and never waits.
        block = lease.block
        block.returned = next(self._returned)
        self._live.pop(lease.serial, None)
        self._free.setdefault(block.nbytes, deque()).append(block)
        if self._on_change is not None:
            self._on_change(-lease.nbytes)


def _age(blocks: deque[Block]) -> int:
    try:
        return blocks[0].returned
    except IndexError:
        return 0  # emptied meanwhile: trim notices when it pops


def lease_of(array: object) -> _Lease | None:
    """The owner of the pooled memory of ``array``, perhaps a view; None if it is not pooled."""
    while array is not None:
        if isinstance(array, _Lease):
            return array
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return None


_pools: weakref.WeakSet[BufferPool] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A thread of the parent, absent in the child, may have held the lock.
    for pool in list(_pools):
        pool._map_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
