"""BufferPool: page-aligned, size-classed, reusable memory for arrays.

A new large array costs a page fault per 4 KiB, a reused one none, and a page-aligned one can be
written to disk with O_DIRECT without a copy. The pool returns ordinary NumPy arrays; their memory
returns to the pool when the last view dies.

An array takes a cached buffer of its size class, else a part of the larger buffer or the
neighbouring buffers that fit best, else new memory from the system.

The last view may die inside a garbage collection at any moment, in any thread, also in the middle
of this code. A weak reference notices it and queues the buffer, which the next use of the pool
takes back. A buffer changes hands by one call of a deque, which no other thread can split, also
where a debugger steps through these lines; no lock is needed. Masked blocks keep Ctrl-C out.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from offgrad_storage._checks import check_count
from offgrad_storage.interrupts import MaskedLock, masked
from offgrad_storage.memory.blocks import Block, Blocks
from offgrad_storage.memory.counter import DeathRef, MemoryCounter

PAGE = 4096
"""Alignment in bytes of every pooled array, and of everything written with O_DIRECT."""

_CACHE_SLACK = 8 << 20
_MAX_CANDIDATES = 2000  # to sort more takes longer than new memory

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
    """The base of all views of one array; its block returns to the pool when it dies."""

    __slots__ = ("__array_interface__", "__weakref__", "block", "nbytes", "pool")

    __array_interface__: dict[str, Any]
    block: Block

    def __init__(self, pool: BufferPool, nbytes: int) -> None:
        self.pool = pool
        self.nbytes = nbytes


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
        counter: counts the bytes of living arrays, and may refuse some; other pools may share it.

    Thread-safe. A forked child may continue to use its copy of the pool.
    """

    def __init__(self, capacity: int | None = None, counter: MemoryCounter | None = None) -> None:
        if capacity is not None:
            check_count("capacity", capacity)
        self.capacity = capacity
        self._counter = counter
        self._blocks = Blocks()
        self._free: dict[int, deque[Block]] = {}  # by their size
        self._live: dict[DeathRef, Block] = {}
        self._dead: deque[DeathRef] = deque()
        self._on_death: Callable[[Any], object] = self._dead.append
        self._returned = self._takes = self._maps = self._peak = 0
        self._mapped_nbytes = 0  # of all buffers, in use or cached
        # Reentrant: a finalizer of the program's may use the pool.
        self._map_lock = MaskedLock(reentrant=True)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        """An uninitialised C-ordered array whose memory starts at a page boundary.

        Args:
            shape: any shape; an array of no bytes is an ordinary ``np.empty``.
            dtype: any dtype of fixed size that holds no Python objects.

        Raises:
            MemoryError: the system has no more, or the capacity is reached.
        """
        dtype = np.dtype(dtype)
        if type(shape) is not tuple:
            shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if dtype.hasobject:
            raise TypeError(f"a buffer takes dtypes without Python objects, got {dtype}")
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes <= 0:
            return np.empty(shape, dtype)
        lease = _Lease(self, nbytes)
        if self._counter is not None:
            self._counter.add(lease, nbytes)
        block = self._take(lease, size_class(nbytes))
        lease.__array_interface__ = {
            "shape": (block.nbytes,),
            "typestr": "|u1",
            "data": (block.address, False),
            "version": 3,
        }
        return np.ndarray(shape, dtype, buffer=np.asarray(lease))

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
        self._settle()
        return sum(block.used_nbytes for block in self._live.copy().values())

    @property
    def cached_nbytes(self) -> int:
        """Bytes of buffers kept for reuse."""
        self._settle()
        return sum(size * len(blocks) for size, blocks in self._free.copy().items())

    def stats(self) -> BufferPoolStats:
        """A snapshot of the pool's figures."""
        self._settle()
        live = list(self._live.copy().values())
        return BufferPoolStats(
            in_use_nbytes=sum(block.used_nbytes for block in live),
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
        with self._map_lock:
            self._settle()
            while nbytes is None or freed < nbytes:
                oldest = min(
                    (blocks for blocks in self._free.copy().values() if blocks),
                    key=_age,
                    default=None,
                )
                if oldest is None:
                    break
                try:
                    block = oldest.popleft()
                except IndexError:
                    continue  # another thread took the last one
                self._mapped_nbytes -= block.nbytes
                block.unmap()
                freed += block.nbytes
        return freed

    def _settle(self) -> None:
        """Take back the blocks of arrays that have died."""
        if self._dead:
            with masked:
                self._take_back()

    def _take_back(self) -> None:
        while self._dead:
            try:
                reference = self._dead.popleft()
            except IndexError:  # another thread took the last one
                return
            block = self._live.pop(reference, None)
            if block is not None:  # it is if there was no memory for it
                self._returned += 1
                block.returned = self._returned
                self._free[block.nbytes].append(block)

    def _take(self, lease: _Lease, size: int) -> Block:
        """Give ``lease`` a block until it dies."""
        reference = DeathRef(lease, self._on_death)
        with masked:
            self._take_back()
            free = self._free.get(size)
            if free is None:
                free = self._free.setdefault(size, deque())
            try:
                block = free.pop()
            except IndexError:  # there is none, or another thread took the last one
                pass
            else:
                self._takes += 1
                lease.block = self._live[reference] = block
                block.used_nbytes = lease.nbytes
                return block
        with self._map_lock:
            reserved = self._reserved() + size
            if self.capacity is not None and reserved > self.capacity:
                raise MemoryError(
                    f"BufferPool: {size} bytes more would make {reserved} bytes of buffers, above "
                    f"its capacity of {self.capacity}; raise it, or drop arrays first"
                )
            # The next peak may be as high as the last; a cache above it would waste memory.
            self._peak = max(self._peak, reserved)
            cut = self._cut(size)
            if cut is None:
                bound = self._peak + self._peak // 32 + _CACHE_SLACK
                if self.capacity is not None:
                    bound = min(bound, self.capacity)
                self.trim(max(0, reserved + self.cached_nbytes - bound))
                cut = self._map_block(size)
                self._maps += 1
                self._mapped_nbytes += size
            block = cut
            self._takes += 1
            lease.block = self._live[reference] = block
            block.used_nbytes = lease.nbytes
            return block

    def _cut(self, size: int) -> Block | None:
        """Cut a block from the cached block or neighbours that fit best; None if none do."""
        cached = [block for blocks in self._free.copy().values() for block in list(blocks)]
        if len(cached) > _MAX_CANDIDATES:
            return None
        run = Block.best_run(cached, size)
        taken = []
        for block in run:
            with contextlib.suppress(ValueError):  # another thread took it
                self._free[block.nbytes].remove(block)
                taken.append(block)
        if not run or len(taken) < len(run):
            for block in taken:
                self._free[block.nbytes].append(block)
            return None
        block, rest = Block.join(run).split(size)
        if rest.nbytes:
            self._free.setdefault(rest.nbytes, deque()).appendleft(rest)
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


def _age(blocks: deque[Block]) -> int:
    try:
        return blocks[0].returned
    except IndexError:
        return 0  # emptied meanwhile: trim notices


def lease_of(array: object) -> _Lease | None:
    """The owner of the pooled memory of ``array``, perhaps a view; None if it is not pooled."""
    while array is not None:
        if isinstance(array, _Lease):
            return array
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return None
