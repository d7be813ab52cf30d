"""The contract of a store, and the handle to one stored array."""

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
"""Gives a new array of a shape and dtype: C-contiguous, uninitialised, nobody else's.

``BufferPool().empty`` and ``numpy.empty`` are such. A store calls it in the thread that calls the
store, perhaps in several at once, and without a lock held. Its MemoryError comes out of that call.
"""


@dataclass(slots=True)
class StoreStats:
    """What a store holds now and has done so far. Bytes end in ``nbytes``, times in ``seconds``.

    Small arrays that are *gathered* into packs count as such from the moment they are copied there.
    Of a TieredStore, stored, written and pending bytes are summed up over RAM and all tiers.

    Attributes:
        puts: arrays put so far.
        gets: arrays got so far.
        prefetch_hits: gets that found their read begun, perhaps done, by a prefetch. Of gathered
            arrays, those that found their pack in memory.
        live_handles: handles that live now.
        logical_nbytes: bytes of the arrays that living handles stand for.
        stored_nbytes: bytes these take in the store: encoded and rounded up to pages, as reserved
            while the write is pending. Of gathered arrays their own bytes, encoded, without what
            else there is in the pack: on the disk it is more.
        written_nbytes: stored bytes written so far. Those of gathered arrays count as soon as they
            are in a pack, which may have to be filled before it is written.
        read_nbytes: bytes of arrays got so far, wherever they came from.
        inflight_nbytes: bytes of arrays whose write is pending: they are still held in memory. Of
            gathered arrays, bytes of the full packs whose write is pending; packs that are being
            filled are not counted.
        put_stall_seconds: time that puts, ``wait_captured`` and ``flush`` spent waiting for writes:
            for memory in flight, or for quota. Of a TieredStore, that puts spent making room.
        get_stall_seconds: time that gets took.
        write_seconds: time that writes took, summed up over threads; without encoding.
        read_seconds: time that reads ahead took, summed up over threads; without those of packs.
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
        """The part of ``write_seconds`` and ``read_seconds`` in which nobody waited: 0 to 1."""
        work = self.write_seconds + self.read_seconds
        stall = self.put_stall_seconds + self.get_stall_seconds
        return max(0.0, 1.0 - stall / work) if work else 0.0


class AbstractArrayStore(ABC):
    """Takes arrays out of memory and gives them back bit for bit.

    Any dtype of fixed size without Python objects, any shape and any memory order. Thread-safe. A
    store belongs to the process that made it; a forked child that uses it gets a ForkedStoreError.

    To write a store, give a ``Backend`` to ``BackendStore``: four methods that move bytes.
    """

    @abstractmethod
    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Store ``array``; the write may still be pending when this returns.

        Args:
            array: must not change until the handle says ``captured``.
            attributes: facts about the array, kept with it where the format has a place for them.

        Raises:
            QuotaExceededError: the store's quota is spent.
            StoreError: as they occur; those of a pending write are raised by ``get`` and ``close``,
                and that of a pack of gathered arrays, which stay in memory, by the next put.
            TypeError: the dtype holds Python objects.
        """

    @abstractmethod
    def get(self, handle: Handle, out: Array | None = None) -> Array:
        """The stored array: bit for bit, with its shape and dtype.

        Args:
            handle: one of this store.
            out: written to and returned, if given; of the same shape and dtype.

        Returns:
            ``out``, or the array prefetched, or a new C-contiguous array from ``allocate``.

        Raises:
            StoreError: it cannot be read, or its write failed: then every get raises that error.
            MemoryError: of ``allocate``.
            ValueError: the handle is of another store, or ``out`` does not fit.
        """

    @abstractmethod
    def prefetch(self, handle: Handle, out: Array | None = None) -> None:
        """Start reading in the background, into ``out`` or an array from ``allocate``.

        The next ``get`` without ``out`` returns that array, and waits for it if need be. It belongs
        to the store until then, so keep the handle. An error in reading is raised by that ``get``.
        A second prefetch before that does nothing, or starts anew with another ``out``. A ``get``
        into an ``out`` of its own ends it as well.

        Reads begin in the order of the calls. Each call takes the memory of its array at once, so
        ask for a few ahead, not for all. Of a small array that is gathered, only the pack is read
        ahead, and ``get`` takes the memory. A store without threads does nothing here.

        Raises:
            MemoryError: of ``allocate``.
            StoreClosedError, ForkedStoreError: as they are.
            ValueError: the handle is of another store, or ``out`` does not fit.
        """

    @abstractmethod
    def cancel_prefetch(self, handle: Handle) -> None:
        """Forget a prefetch that no ``get`` has taken; its array is free when this returns.

        Waits if the read is under way. Does nothing if there is none.
        """

    def plan(self, order: Sequence[Handle]) -> None:  # noqa: B027 (most have no use for it)
        """Learn the order in which handles will be wanted next, to prepare for it.

        It replaces what was said before, and need not be complete, nor true: it changes how fast
        arrays come back, never which. Most stores ignore it.
        """

    def flush(self) -> None:  # noqa: B027 (some write at once)
        """Wait until all that was put is written, or has failed to be.

        The errors of failed writes are raised by ``get`` and ``close``.
        """

    @property
    def lossless(self) -> bool:
        """Whether arrays come back bit for bit; False where a codec rounds some."""
        return True

    @property
    def reads_ahead(self) -> bool:
        """Whether ``prefetch`` does anything."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Free everything; handles become useless. Does nothing the second time, nor in a fork.

        Reads and writes that have begun are waited for, the rest are dropped; a put that waits gets
        a StoreClosedError. A store that keeps its data, as a ZarrStore with ``keep``, writes all.

        Raises:
            StoreError: the first of the errors in the background that nobody was told: of writes,
                reads ahead, and freeing. The others are its notes.
        """

    @abstractmethod
    def stats(self) -> StoreStats:
        """The figures so far; also after ``close``.

        Raises:
            ForkedStoreError: this process is a fork of the one whose store it is.
        """

    @abstractmethod
    def _check_open(self) -> None:
        """Raise StoreClosedError after ``close``."""

    @abstractmethod
    def _wait_captured(self, entry: Entry) -> None: ...

    def _check_written(self, entry: Entry) -> None:
        """Raise the error of the write of ``entry``, if it has failed."""
        if entry.error is not None:
            raise copy_for_raise(entry.error)

    @abstractmethod
    def _drop(self, entry: Entry) -> None:
        """The handle has died. Called by the garbage collector: must not wait, raise or lock."""

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
