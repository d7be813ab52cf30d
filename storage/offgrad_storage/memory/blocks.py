"""Blocks: the memory of a BufferPool, in huge pages where the kernel has them.

A direct write or read from 4 KiB pages is a quarter slower than from huge ones, and needs three
times the CPU time. So blocks smaller than a huge page are cut from slabs of several.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Iterable
from weakref import ref

import numpy as np

from offgrad_storage.memory.extents import Extents

_HUGE_PAGE = 2 << 20
_SLAB = 8 << 20
_MAX_SLABS = 16  # searched for space before a new one is made
_HAS_HUGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE")


class Block:
    """A range of memory that starts at a page boundary.

    Attributes:
        address: where it starts.
        nbytes: its length, whole pages.
        used_nbytes: the bytes of the array in it.
        returned: when it was last returned, by the counter of its pool.
    """

    __slots__ = ("_mapping", "_start", "address", "nbytes", "returned", "used_nbytes")

    def __init__(self, mapping: _Mapping, start: int, nbytes: int) -> None:
        self._mapping = mapping
        self._start = start
        self.address = mapping.address + start
        self.nbytes = nbytes
        self.used_nbytes = self.returned = 0

    def unmap(self) -> None:
        """Return the memory to the system."""
        self._mapping.free(self._start, self.nbytes)

    def split(self, nbytes: int) -> tuple[Block, Block]:
        """The first ``nbytes`` and the rest, as blocks; this one is not used any more."""
        rest = Block(self._mapping, self._start + nbytes, self.nbytes - nbytes)
        rest.returned = self.returned
        return Block(self._mapping, self._start, nbytes), rest

    @staticmethod
    def join(blocks: list[Block]) -> Block:
        """One block over neighbours in the order of addresses; these are not used any more."""
        first = blocks[0]
        joined = Block(first._mapping, first._start, sum(block.nbytes for block in blocks))
        joined.returned = min(block.returned for block in blocks)
        return joined

    @staticmethod
    def best_run(blocks: Iterable[Block], nbytes: int) -> list[Block]:
        """The block or neighbours with the least bytes from ``nbytes``; empty if there are none."""
        best: list[Block] = []
        least = math.inf
        run: list[Block] = []
        total = 0
        for block in sorted(blocks, key=lambda block: block.address):
            if run and (
                run[-1]._mapping is not block._mapping
                or run[-1]._start + run[-1].nbytes != block._start
            ):
                run, total = [], 0
            run.append(block)
            total += block.nbytes
            while total - run[0].nbytes >= nbytes:
                total -= run.pop(0).nbytes
            if nbytes <= total < least:
                best, least = run.copy(), total
        return best


class _Slabs(dict[int, "_Mapping"]):
    """Slabs with free space, by their id. They refer to it weakly, so that no cycle arises."""

    __slots__ = ("__weakref__",)


class Blocks:
    """Makes blocks. For one thread at a time, as is ``Block.unmap``."""

    def __init__(self) -> None:
        self._slabs = _Slabs()  # the last ones

    def make(self, nbytes: int) -> Block:
        """A new block of whole pages.

        Raises:
            OSError, OverflowError, ValueError, MemoryError: the system has no memory.
        """
        if nbytes >= _HUGE_PAGE or not _HAS_HUGE_PAGES:
            return _first_of(_Mapping(nbytes), nbytes)
        for slab in list(self._slabs.values()):
            start = slab.take(nbytes)
            if start is not None:
                return Block(slab, start, nbytes)
        try:
            slab = _Mapping(_SLAB, self._slabs)
        except OSError:  # little memory is left
            return _first_of(_Mapping(nbytes), nbytes)
        block = _first_of(slab, nbytes)
        for key in list(self._slabs)[: 1 - _MAX_SLABS]:
            self._slabs.pop(key, None)
        self._slabs[id(slab)] = slab
        return block


class _Mapping:
    """One private anonymous mapping. Only its address is kept, so it can always be unmapped.

    A mapping with free space is in ``with_room``, if passed.

    A finalizer or signal may interrupt ``take`` and ``free`` and call them, and a fork may leave
    the child with an interrupted call: then the mapping stays unchanged.
    """

    def __init__(self, nbytes: int, with_room: _Slabs | None = None) -> None:
        self.nbytes = nbytes
        self._with_room = None if with_room is None else ref(with_room)
        self._used = Extents()
        self._freed: list[tuple[int, int]] = []  # ranges, before they are free in _used
        self._busy = False
        self._map = _map(nbytes)
        self.address = _address(self._map)
        # Aligning takes address space, a quarter of it at most, on kernels that do not align.
        if nbytes >= _SLAB and self.address % _HUGE_PAGE:
            self._map.close()
            self._map = _map(nbytes + _HUGE_PAGE - mmap.PAGESIZE)
            self.address = _address(self._map)
            self.address += -self.address % _HUGE_PAGE
        if nbytes >= _HUGE_PAGE and _HAS_HUGE_PAGES:
            with contextlib.suppress(OSError):  # a kernel without huge pages: only slower
                self._map.madvise(mmap.MADV_HUGEPAGE)

    @property
    def closed(self) -> bool:
        return self._map.closed

    def take(self, nbytes: int) -> int | None:
        """Take a range; return its start, or None if there is no space."""
        if self._busy:
            return None
        self._busy = True
        start = None if self.closed else self._used.allocate(nbytes, self.nbytes)
        self._busy = False
        self._free_pending()
        return start

    def free(self, start: int, nbytes: int) -> None:
        """Free a range; unmap the mapping with its last range."""
        self._freed.append((start, nbytes))
        self._free_pending()

    def _free_pending(self) -> None:
        while self._freed and not self._busy:
            self._busy = True
            if self._freed:
                self._release(*self._freed.pop())
            self._busy = False

    def _release(self, start: int, nbytes: int) -> None:
        self._used.free(start, nbytes)
        with_room = None if self._with_room is None else self._with_room()
        if self._used.free_nbytes == self._used.end:
            self._map.close()
            if with_room is not None:
                with_room.pop(id(self), None)
            return
        if with_room is not None:
            with_room[id(self)] = self
        offset = self.address - _address(self._map) + start
        with contextlib.suppress(OSError):  # locked memory stays until it is unmapped
            self._map.madvise(mmap.MADV_DONTNEED, offset, nbytes)


def _first_of(mapping: _Mapping, nbytes: int) -> Block:
    """The first block of a new mapping."""
    start = mapping.take(nbytes)
    assert start is not None
    return Block(mapping, start, nbytes)


def _map(nbytes: int) -> mmap.mmap:
    if os.name == "nt":
        return mmap.mmap(-1, nbytes)
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _address(mapping: mmap.mmap) -> int:
    address: int = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
    return address
