"""The interface of all stores, and their figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offgrad_storage.entry import Entry, Handle
from offgrad_storage.errors import StoreError, copy_for_raise

__all__ = ["AbstractArrayStore", "Allocate", "Handle", "StoreStats"]

Array = NDArray[Any]
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Returns a new array of a shape and dtype: C-contiguous, uninitialised, without other users.

For example ``BufferPool().empty`` or ``numpy.empty``. A store calls it in the thread that calls the
store, perhaps in several at once, and without a lock held. That call raises its MemoryError.
"""


@dataclass(slots=True)
class StoreStats:
    """The figures of a store, now and so far. Bytes end in ``nbytes``, times in ``seconds``.

    Small arrays count as *packed* from the moment they are copied to a pack. A TieredStore sums up
    stored, written and pending bytes over RAM and all tiers.

    Attributes:
        puts: number of puts so far.
        gets: number of gets so far.
        prefetch_hits: gets whose read a prefetch had started or completed; for packed arrays, gets
            whose pack was in memory.
        live_handles: handles that live now.
        logical_nbytes: bytes of the arrays of live handles.
        stored_nbytes: bytes these arrays take in the store: encoded and rounded up to pages; while
            the write is pending, the bytes reserved. Packed arrays count without the unused bytes
            of their pack: on the disk it takes more.
        written_nbytes: stored bytes written so far. Packed arrays count when they are copied to the
            pack, which is written once it is full.
        read_nbytes: bytes of all gets so far.
        inflight_nbytes: bytes of arrays that are held in memory because their write is pending, or
            under way though their handle is dead. Packed arrays count by packs, once full.
        put_stall_seconds: time in which put, ``wait_captured`` and ``flush`` waited for writes. For
            a TieredStore, time in which puts evicted arrays.
        get_stall_seconds: duration of all gets.
        write_seconds: duration of writes, summed up over threads; without encoding.
        read_seconds: duration of prefetches, summed up over threads; without those of packs.
    """

    puts: int = 0
    gets: int = 0
    prefetch_hits: int = 0
    live_handles: int = 0
    logical_nbytes: int = 0
    stored_nbytes: int = 0
    written_nbytes: int = 0
    read_nbytes: int = 0
    inflight_nbytes: int = 0
    put_stall_seconds: float = 0.0
    get_stall_seconds: float = 0.0
    write_seconds: float = 0.0
    read_seconds: float = 0.0

    @property
    def overlap(self) -> float:
        """The part of ``write_seconds`` and ``read_seconds`` without a stalled call: 0 to 1."""
        work = self.write_seconds + self.read_seconds
        stall = self.put_stall_seconds + self.get_stall_seconds
        return max(0.0, 1.0 - stall / work) if work else 0.0


class AbstractArrayStore(ABC):
    """Moves arrays out of memory and returns them bit for bit.

    Any dtype of fixed size without Python objects, any shape and any memory order. Thread-safe. A
    store belongs to the process that made it; in a forked child it raises ForkedStoreError.

    To write a store, pass a ``Backend`` to ``BackendStore``: four methods that move bytes.
    """

    @abstractmethod
    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Store ``array``; the write may still be pending when this returns.

        Args:
            array: must not change until ``handle.captured`` is true.
            attributes: metadata of the array, stored with it if the format supports that.

        Raises:
            QuotaExceededError: the store's quota is used up.
            StoreError: any other failure. If a pending write fails, its arrays stay in memory, and
                the next put raises the error, once; ``handle.check`` raises it, too.
            TypeError: the dtype holds Python objects.
        """

    @abstractmethod
    def get(self, handle: Handle, out: Array | None = None) -> Array:
        """The stored array: bit for bit, with its shape and dtype.

        Args:
            handle: of this store.
            out: an array of the same shape and dtype to fill and return.

        Returns:
            ``out``, or the prefetched array, or a new C-contiguous array from ``allocate``.

        Raises:
            StoreError: it cannot be read.
            MemoryError: from ``allocate``.
            ValueError: the handle is of another store, or ``out`` has another shape or dtype.
        """

    @abstractmethod
    def prefetch(self, handle: Handle, out: Array | None = None) -> None:
        """Start reading in the background, into ``out`` or an array from ``allocate``.

        The next ``get`` without ``out`` returns that array, and waits for it if need be. It belongs
        to the store until then, so keep the handle. That ``get`` raises an error of the read. A
        second prefetch before it does nothing, or restarts with another ``out``. A ``get`` into
        another ``out`` ends the prefetch, and reads again if the prefetch had an ``out``.

        Reads begin in the order of the calls. Each call allocates its array at once, so prefetch a
        few arrays, not all. For a packed array only the pack is prefetched, and ``get`` allocates.
        A store without threads does nothing here.

        Raises:
            MemoryError: from ``allocate``.
            StoreClosedError: the store is closed.
            ForkedStoreError: the store belongs to the parent of this process.
            ValueError: the handle is of another store, or ``out`` has another shape or dtype.
        """

    @abstractmethod
    def cancel_prefetch(self, handle: Handle) -> None:
        """Discard a prefetch that no ``get`` has used; its array is free when this returns.

        Waits if the read is under way. Does nothing without a prefetch.
        """

    def plan(self, order: Sequence[Handle]) -> None:  # noqa: B027 (optional)
        """Announce the order of the next gets.

        Replaces the previous plan. A hint only: an incomplete or wrong plan costs time, never
        correctness. Only TieredStore uses it.
        """

    def flush(self) -> None:  # noqa: B027 (optional)
        """Wait until every pending write has ended.

        Tries failed writes once more. The next put, ``handle.check`` and ``close`` raise errors.
        """

    def trim(self) -> None:  # noqa: B027 (optional)
        """Reduce ``packs_nbytes`` as far as possible.

        Writes packs that are not full, waits for that and for reads of packs, and drops packs
        cached after reading that no prefetch wants. May be called within ``allocate`` and ``hold``.
        """

    @property
    def packs_nbytes(self) -> int:
        """Bytes of memory that packs of small arrays hold now.

        Packs that are being filled or written, packs whose write failed, and packs cached after
        reading. Does not wait.
        """
        return 0

    @property
    def lossless(self) -> bool:
        """Whether arrays come back bit for bit; False with a codec that rounds."""
        return True

    @property
    def reads_ahead(self) -> bool:
        """Whether ``prefetch`` starts reads."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Free everything; handles become useless. Does nothing the second time, nor in a fork.

        Waits for reads and writes that have begun, and cancels the rest; a waiting put raises
        StoreClosedError. A persistent store, as a ZarrStore with ``keep``, completes all writes.
        The exit of the interpreter closes all stores.

        Raises:
            StoreError: the first error of the background that no call has raised: of writes,
                prefetches, and freeing. The others are its notes. Or the drive has not answered for
                ``timeout_seconds``: then the store stays closed, and its space is freed when the
                drive answers or the process ends.
        """

    @abstractmethod
    def stats(self) -> StoreStats:
        """The figures so far; also after ``close``.

        Raises:
            ForkedStoreError: the store belongs to the parent of this process.
        """

    @abstractmethod
    def _check_open(self) -> None:
        """Raise StoreClosedError after ``close``."""

    @abstractmethod
    def _wait_captured(self, entry: Entry) -> None: ...

    def _wait_written(self, entry: Entry) -> None:
        """Wait until the write of ``entry`` has ended or failed."""
        self._wait_captured(entry)

    def _check_written(self, entry: Entry) -> None:
        """Raise the error of a failed write of ``entry``."""
        if entry.error is not None:
            raise copy_for_raise(entry.error)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except StoreError as second:
            if error is None:
                raise
            error.add_note(f"closing the store failed as well: {second}")
