"""BackendStore: a store around the four methods of a backend."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offgrad_storage.backend import Backend
from offgrad_storage.base import (
    AbstractArrayStore,
    Allocate,
    Handle,
    StoreStats,
)
from offgrad_storage.codecs import Codec
from offgrad_storage.codecs import codec as find_codec
from offgrad_storage.entry import Entry, check_out, check_plain
from offgrad_storage.executor.executor import Executor
from offgrad_storage.memory.buffer_pool import BufferPool

Array = NDArray[Any]


class BackendStore(AbstractArrayStore):
    """A store that keeps its arrays in a ``Backend``.

    Args:
        backend: moves the bytes; the store owns it from now on.
        threads: bound of the I/O threads for writes and prefetches. With 0, ``put`` writes before
            it returns and ``prefetch`` does nothing.
        inflight_nbytes: bound of the bytes of arrays with a pending write; ``put`` waits when it is
            reached. One larger array may go alone.
        codec: encodes arrays (see ``codec``), in the I/O threads if there are any.
        seed: of codecs that round at random: bits depend on the array and the seed alone.
        allocate: allocates arrays that are read back; None for a separate BufferPool.
        hold: allocates the memory of packs, and copies of arrays whose write failed; None for a
            separate BufferPool. Without memory for a pack, an array is written alone.
        max_pack_nbytes: bound of the bytes of a pack; 0 for no packs.
        timeout_seconds: ``close``, and the exit of the interpreter, give up after so many seconds
            in which no read or write has ended.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        threads: int = 3,
        inflight_nbytes: int = 128 << 20,
        codec: str | Codec = "none",
        seed: int = 0,
        allocate: Allocate | None = None,
        hold: Allocate | None = None,
        max_pack_nbytes: int = 4 << 20,
        timeout_seconds: float = 60.0,
    ) -> None:
        self._allocate = BufferPool().empty if allocate is None else allocate
        try:
            chosen = find_codec(codec)
            self._executor = Executor(
                self,
                backend,
                threads=threads,
                inflight_nbytes=inflight_nbytes,
                hold=BufferPool().empty if hold is None else hold,
                max_pack_nbytes=max_pack_nbytes,
                codec=None if chosen.name == "none" else chosen,
                seed=seed,
                timeout_seconds=timeout_seconds,
            )
        except BaseException:
            backend.close()
            raise
        self._serial = itertools.count()
        self._threads = threads

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Store ``array``: see ``AbstractArrayStore.put``."""
        array = np.asarray(array)
        check_plain(array, self._executor.backend.name)
        handle = Handle(self, Entry(next(self._serial), array, dict(attributes or {})))
        self._executor.write(handle, array)
        return handle

    def get(self, handle: Handle, out: Array | None = None) -> Array:
        """Return the stored array: see ``AbstractArrayStore.get``."""
        entry = self._entry_of(handle)
        if out is not None:
            check_out(entry, out)
        return self._executor.get(handle, out, self._allocate)

    def prefetch(self, handle: Handle, out: Array | None = None) -> None:
        """Start reading: see ``AbstractArrayStore.prefetch``."""
        entry = self._entry_of(handle)
        if out is not None:
            check_out(entry, out, contiguous=True)
        self._executor.prefetch(handle, out, self._allocate)

    def cancel_prefetch(self, handle: Handle) -> None:
        """Discard a prefetch: see ``AbstractArrayStore.cancel_prefetch``."""
        self._entry_of(handle)
        self._executor.cancel_prefetch(handle)

    @property
    def lossless(self) -> bool:
        """Whether the codec is lossless."""
        return self._executor.lossless

    @property
    def reads_ahead(self) -> bool:
        """Whether there are I/O threads."""
        return bool(self._threads)

    def flush(self) -> None:
        """Wait for pending writes: see ``AbstractArrayStore.flush``."""
        self._executor.flush()

    def trim(self) -> None:
        """Write open packs and drop cached ones: see ``AbstractArrayStore.trim``."""
        self._executor.trim()

    @property
    def packs_nbytes(self) -> int:
        """Bytes of memory that packs hold now."""
        return self._executor.packs_nbytes

    def close(self) -> None:
        """Free everything: see ``AbstractArrayStore.close``."""
        self._executor.close()

    def stats(self) -> StoreStats:
        """The figures so far."""
        return self._executor.stats()

    def _entry_of(self, handle: Handle) -> Entry:
        if handle.store is not self:
            raise ValueError(f"{handle} belongs to another store than {self}")
        return handle._entry

    def _check_open(self) -> None:
        self._executor.check()

    def _wait_captured(self, entry: Entry) -> None:
        self._executor.wait_captured(entry)

    def _wait_written(self, entry: Entry) -> None:
        self._executor.wait_written(entry)

    def _check_written(self, entry: Entry) -> None:
        self._executor.check_written(entry)

    def _check(self) -> None:
        """Raise AssertionError unless the figures agree with the states of the arrays."""
        self._executor._check()

    def __repr__(self) -> str:
        return f"<{self._executor.backend.name}>"
